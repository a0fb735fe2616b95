"""The way to the hub: every address of the master's name, again and again, until it greets or the time is up."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.network_check.phases import port_identification as identification
from ddpdoctor.network_check.phases.ip_counters import count
from ddpdoctor.network_check.protocol.messages import MAX_BYTES_BEFORE_WELCOME, MAX_LINE_BYTES, Greeting
from ddpdoctor.network_check.protocol.tcp_connections import Destination, UnknownNameError, connect, destinations

DDPDOCTOR: Final = "ddpdoctor"

GREETING_SECONDS: Final = 2.0
STRANGER_SECONDS: Final = 8.0
"""After so long we no longer wait for something to go away that certainly isn't part of a job."""

MIN_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 1.0
"""Seconds between tries: short at first, since nodes are started moments apart."""

IPV6_DELAY_SECONDS: Final = 0.1
"""Seconds that IPv6 leaves to IPv4 where the name has both: nodes that come the same way have addresses of one family, and
the peers' are taken from them."""

PROBE_PACKETS: Final = 4
"""First packets (SYN) by which a host finds out whether its own filter takes them away."""

ANSWER_SECONDS: Final = 0.25
"""For the answers to those packets; as long before, none may come that belongs to nobody."""

UNANSWERED: Final = (ConnectOutcome.SILENT, ConnectOutcome.REFUSED, ConnectOutcome.PROHIBITED)
"""Outcomes that a filter on this host's output can bring about."""

Counter = Literal["untransmitted", "undelivered"]
"""A counter of the kernel's: packets that were to be sent and weren't, or that came and were handed to nobody."""

GONE: Final = "the connection was closed at once, without a word"


@dataclass(frozen=True)
class Connection:
    """The hub, which has greeted us. `own_address` is our own end's; `address` and `port` are where it was met."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: Greeting
    own_address: str
    address: str
    port: int


async def find_hub(
    master: str, ports: Sequence[int], seconds: float, on_change: Callable[[Meeting], None]
) -> tuple[Meeting, Connection | None]:
    """Go to the master until its hub greets; None where it didn't within `seconds`, or where something holds the port
    that won't go away. `on_change` is told whenever the outcome changes.

    All addresses and ports are tried side by side, so that a silent one doesn't hold up the others; of several hubs the
    first port's counts.
    """
    search = _Search(master, ports, on_change)
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            found = await destinations(master, ports[0], max(0.5, min(left, 5.0)))
            break
        except UnknownNameError as error:
            search.unresolved(str(error))
        if time.monotonic() + MAX_PAUSE_SECONDS >= deadline:
            return search.meeting(), None
        await asyncio.sleep(MAX_PAUSE_SECONDS)
    search.resolved()
    both = any(destination.family == socket.AF_INET for destination in found)
    ways = [
        _Way(
            destination.at_port(port),
            search,
            IPV6_DELAY_SECONDS if both and destination.family == socket.AF_INET6 else 0.0,
        )
        for port in ports
        for destination in found
    ]
    connection = await _first(ways, search, deadline)
    return search.meeting(), connection


async def look_at_master(master: str, port: int, seconds: float = 10.0) -> Meeting:
    """Find out what this side alone can see: each address of the master is tried until its outcome is certain, and who listens
    there is asked who he is."""
    search = _Search(master, [port], lambda meeting: None)
    try:
        found = await destinations(master, port)
    except UnknownNameError as error:
        search.unresolved(str(error))
        return search.meeting()
    looks = [asyncio.ensure_future(_Way(destination, search).look()) for destination in found]
    try:
        await asyncio.wait(looks, timeout=seconds)
    finally:
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
    return search.meeting()


async def _first(ways: list[_Way], search: _Search, deadline: float) -> Connection | None:
    tasks = [asyncio.ensure_future(way.follow()) for way in ways]
    try:
        waiting: set[asyncio.Future[Connection | None]] = set(tasks)
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                break
            if not done or search.hopeless():
                return None
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    met = [end for end in ended if isinstance(end, Connection)]
    for connection in met[1:]:
        connection.writer.close()
    return met[0] if met else None


async def count_filtered(there: Destination, counter: Counter) -> int | None:
    """Count how many of PROBE_PACKETS first packets to it, or of the answers to them, this host's own kernel takes away: all of them
    at the least, or 0; None where it doesn't count them.

    connect() hands the packet to the filters on output before it returns, so that hardly anything else comes between the
    looks at the counters, and no more than in another moment as long. Answers take their time.
    """
    looks = [getattr(count(there.address), counter)]
    with ExitStack() as held:
        for probes in (0, PROBE_PACKETS):
            for _ in range(probes):
                with suppress(OSError):
                    # Open until the answer has had its time, or it would be one to nobody.
                    probe = held.enter_context(socket.socket(there.family, socket.SOCK_STREAM))
                    probe.setblocking(False)
                    probe.connect(there.sockaddr)
            if counter == "undelivered":
                await asyncio.sleep(ANSWER_SECONDS)
            looks.append(getattr(count(there.address), counter))
    if None in looks:
        return None
    idle, grown = looks[1] - looks[0], looks[2] - looks[1]
    taken = grown >= PROBE_PACKETS if counter == "undelivered" else grown == PROBE_PACKETS
    return int(grown) if taken and not idle else 0


class _Search:
    """Everything that is known so far."""

    def __init__(self, master: str, ports: Sequence[int], on_change: Callable[[Meeting], None]) -> None:
        self._master, self._ports, self._on_change = master, ports, on_change
        self._started = time.monotonic()
        self._filtered: dict[Counter, dict[Destination, int | None]] = {"untransmitted": {}, "undelivered": {}}
        """Packets to each destination that did not leave this host, 0 once some did; and its answers that were handed to nobody."""
        self._listening = asyncio.Lock()
        self._unresolved = ""
        self._attempts: dict[Destination, Attempt] = {}
        self._identities: dict[Destination, tuple[str, str]] = {}
        self._last_outcome: tuple[object, ...] = ()

    def unresolved(self, why: str) -> None:
        self._unresolved = why
        self._tell()

    def resolved(self) -> None:
        self._unresolved = ""

    def note(self, there: Destination, attempt: Attempt, identity: tuple[str, str]) -> None:
        before = self._attempts.get(there)
        self._attempts[there] = msgspec.structs.replace(attempt, tries=before.tries + 1 if before else 1)
        self._identities[there] = identity
        self._tell()

    async def look_for_filter(self, there: Destination, met: ConnectOutcome) -> None:
        """Find out whether packets to it, or answers of a silent destination, get lost on this host."""
        if met is ConnectOutcome.SILENT:
            async with self._listening:
                await self._count_filtered(there, "undelivered")
        if met in UNANSWERED:
            await self._count_filtered(there, "untransmitted")

    async def _count_filtered(self, there: Destination, counter: Counter) -> None:
        lost = await count_filtered(there, counter)
        found = self._filtered[counter]
        before = found.get(there)
        starts_over = lost is None or before is None or (lost == 0 and counter == "untransmitted")
        found[there] = lost if starts_over else lost + before  # type: ignore[operator]

    def _tell(self) -> None:
        """Tell of it where the outcome isn't the same as before."""
        now = self.meeting()
        outcome = (
            now.unresolved,
            [(attempt.address, attempt.met) for attempt in now.attempts],
            now.answered_by,
            now.banner,
        )
        if outcome != self._last_outcome:
            self._last_outcome = outcome
            self._on_change(now)

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def hopeless(self) -> bool:
        """Whether a stranger has the port, and the other addresses are out of this host's reach."""
        return all(
            self._identities[there][0] or attempt.met is ConnectOutcome.NO_ROUTE
            for there, attempt in self._attempts.items()
        )

    def meeting(self) -> Meeting:
        shown = self._shown()
        answered = [self._identities[there] for there in shown if self._identities[there][0]]
        identity, banner = answered[0] if answered else ("", "")
        return Meeting(
            master=self._master,
            port=shown[0].sockaddr[1] if shown else self._ports[0],
            unresolved=self._unresolved,
            attempts=tuple(self._attempts[there] for there in shown),
            untransmitted=_of_all(self._filtered["untransmitted"]),
            undelivered=_of_all(self._filtered["undelivered"]),
            answered_by=identity,
            banner=banner,
            waited=round(self.seconds(), 3),
        )

    def _shown(self) -> list[Destination]:
        """The destinations of the port that tells most: the hub's, else the first that no stranger holds, since the hub
        takes the first free one."""
        ports: dict[int, list[Destination]] = {}
        for there in self._attempts:
            ports.setdefault(there.sockaddr[1], []).append(there)
        ordered = [ports[port] for port in self._ports if port in ports]
        for wanted in ({DDPDOCTOR}, {""}):
            for group in ordered:
                if any(self._identities[there][0] in wanted for there in group):
                    return group
        return ordered[0] if ordered else []


def _of_all(packets: dict[Destination, int | None]) -> int | None:
    """Add up the packets; 0 where this host takes some destinations' and not others': then its filter isn't why nobody is met."""
    found = list(packets.values())
    known = [answer for answer in found if answer is not None]
    if not known:
        return None
    return sum(known) if all(found) else 0


class _Way:
    """One address and port."""

    def __init__(self, there: Destination, search: _Search, head_start: float = 0.0) -> None:
        """head_start: seconds that it leaves to others."""
        self._there, self._search, self._head_start = there, search, head_start
        self._stranger = ("", "")
        self._held_since = 0.0
        """Since when somebody else answers there; 0 while nobody does."""

    async def follow(self) -> Connection | None:
        """Try again and again until the hub greets; None: something else is there to stay."""
        await asyncio.sleep(self._head_start)
        while True:
            connection = await self._try()
            if connection:
                return connection
            if self._is_here_to_stay():
                return None
            pause = MAX_PAUSE_SECONDS if self._stranger[0] else self._search.seconds() / 20
            await asyncio.sleep(max(MIN_PAUSE_SECONDS, min(MAX_PAUSE_SECONDS, pause)))

    async def look(self) -> None:
        """Try until somebody answers, but twice at most."""
        for _ in range(2):
            connection = await self._try()
            if connection:
                connection.writer.close()
            if connection or self._stranger[0]:
                return
            await asyncio.sleep(MAX_PAUSE_SECONDS)

    def _is_here_to_stay(self) -> bool:
        """A store may be that of a job which is about to end, and who says nothing may be one of ours that is overloaded."""
        certain = self._stranger[0] not in ("", identification.STORE, identification.SILENT)
        return certain and time.monotonic() - self._held_since >= STRANGER_SECONDS

    async def _try(self) -> Connection | None:
        attempt, connected = await connect(self._there)
        if connected is None:
            self._forget()
            await self._search.look_for_filter(self._there, attempt.met)
            self._search.note(self._there, attempt, self._stranger)
            return None
        self._held_since = self._held_since or time.monotonic()
        reader, writer = await asyncio.open_connection(sock=connected, limit=MAX_LINE_BYTES)
        kept = False
        try:
            own = str(writer.get_extra_info("sockname")[0])
            said, cut = await _first_line(reader)
            greeting = _as_greeting(said)
            if greeting:
                kept = True
                self._search.note(self._there, attempt, (DDPDOCTOR, ""))
                return Connection(reader, writer, greeting, own, self._there.address, self._there.sockaddr[1])
        finally:
            if not kept:
                writer.close()
        if cut and not said:
            self._forget()
            attempt = msgspec.structs.replace(attempt, met=ConnectOutcome.RESET, words=cut)
        elif said or not self._stranger[0]:
            self._stranger = identification.by_its_words(said) if said else await identification.identify(self._there)
        self._search.note(self._there, attempt, self._stranger)
        return None

    def _forget(self) -> None:
        self._stranger = ("", "")
        self._held_since = 0.0


async def _first_line(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """The first line, at most MAX_BYTES_BEFORE_WELCOME bytes of it, as far as it came within GREETING_SECONDS; and the words of
    the system, or ours, where the connection was cut before its end."""
    said = bytearray()

    async def read() -> str:
        while len(said) < MAX_BYTES_BEFORE_WELCOME and not said.endswith(b"\n"):
            piece = await reader.read(1)
            if not piece:
                return GONE
            said.extend(piece)
        return ""

    try:
        cut = await within(GREETING_SECONDS, read())
    except TimeoutError:
        cut = ""
    except OSError as error:
        cut = error.strerror or str(error)
    return bytes(said), cut


def _as_greeting(line: bytes) -> Greeting | None:
    try:
        return msgspec.json.decode(line, type=Greeting)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
