"""How a netcheck goes while it goes: who is there, which phase it is, who is waited for and what to run there.

`make_view()` gives what `netcheck.run` calls its audience: a live view where stderr is a terminal, else single lines there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TextIO

import msgspec

from ddpdoctor.base.text import listed, one_line, plural

if TYPE_CHECKING:
    from ddpdoctor.facts.fleet import MissingNode
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.network_check.protocol.hub import Hub
    from ddpdoctor.network_check.protocol.messages import Waiting
    from ddpdoctor.network_check.results import RunResult

PHASES = {
    "join": "waiting for all nodes",
    "compare": "comparing the nodes",
    "reach": "every node dials every other",
    "links": "latency and bandwidth, pair by pair",
    "gloo": "torch's own store, and an all_reduce with gloo",
    "nccl": "an all_reduce with NCCL on the GPUs",
    "smoke": "all ranks train, stage by stage",
}

_OURS = "ddpdoctor"
"""What an answer of node 0 is called (identification.DDPDOCTOR)."""

_NOT_YET = {
    "connected": "answers",
    "refused": "refuses, so nobody listens there yet, or a filter rejects",
    "silent": "doesn't answer",
    "no route": "has no route from here",
    "no host": "is nobody's address",
    "prohibited": "is forbidden by a filter or a router",
    "reset": "cuts the connection off",
    "failed": "can't be dialled",
}
"""Each `Met`, as what the address does."""

_QUIET_SECONDS = 1.0
"""A run that is over by then needs no words."""
_BETWEEN_SECONDS = 2.0
_AGAIN_SECONDS = (15.0, 30.0, 60.0)
"""After how long the same is said again: the first time, the second, and from then on."""


class Seat(msgspec.Struct, frozen=True):
    """One node that has joined. state: "looking at itself", "ready", or how it was lost."""

    rank: int
    host: str
    ready: bool
    lost: str = ""

    @property
    def name(self) -> str:
        return one_line(self.host) or f"node {self.rank}"


class NetcheckProgress:
    """What is known so far; both views read it, from a thread of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, command: str = "netcheck") -> None:
        self.title = command
        self._clock = clock
        self.began = clock()
        self.met: Meeting | None = None
        self.nnodes = 0
        self.seats: tuple[Seat, ...] = ()
        self.absent: tuple[MissingNode, ...] = ()
        self.command: Callable[[int], str] | None = None
        self.phase = ""
        self.phase_began = self.began
        self.past: tuple[tuple[str, float], ...] = ()
        self.waited_for: tuple[str, ...] = ()
        self.first: int | None = None

    @property
    def seconds(self) -> float:
        return self._clock() - self.began

    @property
    def phase_seconds(self) -> float:
        return self._clock() - self.phase_began

    def meeting(self, meeting: Meeting) -> None:
        self.met = meeting

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        self.nnodes = hub.nnodes
        names = hub.names
        self.seats = tuple(
            Seat(rank, names[rank], peer.facts is not None, peer.lost) for rank, peer in sorted(hub.peers.items())
        )
        # Node 0 is where we are.
        here = {0} | {seat.rank for seat in self.seats}
        self.absent = tuple(missing_node for missing_node in hub.absent() if missing_node.rank not in here)
        self.command = command

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        self.command = command or self.command
        if waiting.phase != self.phase:
            if self.phase:
                self.past = (*self.past, (self.phase, self.phase_seconds))
            self.phase, self.phase_began = waiting.phase, self._clock()
        self.waited_for, self.first = waiting.waited_for, waiting.first

    def verdict(self, end: RunResult) -> None:
        """It is printed when all have been told."""


def absent_name(one: MissingNode) -> str:
    """ "node 2", "node 2 (gpu07)"."""
    return f"node {one.rank} ({one_line(one.host)})" if one.host else f"node {one.rank}"


def way_to_master(meeting: Meeting) -> str:
    """What going to the master came to so far; "" before the first try has ended."""
    if meeting.unresolved:
        return one_line(f"the name {meeting.master} is not known yet: {meeting.unresolved}")
    tried = [f"{attempt.address} {_NOT_YET.get(attempt.met.value, attempt.met.value)}" for attempt in meeting.attempts]
    who = meeting.answered_by if meeting.answered_by not in ("", _OURS) else ""
    return one_line(listed(tried, 3) + (f"; it is {who}, not ddpdoctor" if who else ""))


def status(progress: NetcheckProgress) -> str:
    """How it stands, in one line; "" where there is nothing to say yet."""
    if progress.phase and progress.phase != "join":
        lost = [f"{seat.name} is lost" for seat in progress.seats if seat.lost]
        return "; ".join([f"{progress.phase}: {PHASES.get(progress.phase, 'under way')}", *lost])
    if progress.nnodes:
        return _who_is_here(progress)
    if progress.phase:
        waited_for = listed(map(one_line, progress.waited_for))
        return f"Joined; waiting for {waited_for or 'the others'}{_run_on(progress, progress.first)}"
    met = progress.met
    way = way_to_master(met) if met is not None else ""
    return one_line(f"Node 0 is not met yet at {met.master}, port {met.port}: {way}") if met is not None and way else ""


def _who_is_here(progress: NetcheckProgress) -> str:
    lost = [f"{seat.name} is lost" for seat in progress.seats if seat.lost]
    looking = [seat.name for seat in progress.seats if not seat.ready and not seat.lost]
    parts = [f"{len(progress.seats)} of {plural(progress.nnodes, 'node')} joined", *lost]
    if looking:
        parts.append(f"{listed(looking, 3)} still looking at the host")
    if progress.absent:
        waited_for = listed(map(absent_name, progress.absent), 4)
        parts.append(f"waiting for {waited_for}{_run_on(progress, progress.absent[0].rank)}")
    return "; ".join(parts)


def _run_on(progress: NetcheckProgress, rank: int | None) -> str:
    """The end of a sentence about those who haven't come: what to run on the node of that rank."""
    if rank is None or progress.command is None:
        return ""
    return f". Run on node {rank}: {progress.command(rank)}"


class NetcheckView(Protocol):
    """Who is told how it goes. All but `close` may be called as often as anything changes, and return at once."""

    def meeting(self, meeting: Meeting) -> None:
        """What this node's way to the master came to so far."""

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        """Node 0: somebody came, went or was refused. command: what to run on the node of that rank."""

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        """What the hub tells all nodes: the phase, and who is waited for. command: as for `hub`."""

    def verdict(self, end: RunResult) -> None:
        """Node 0: this is how it ends; next, the others are told."""

    def say(self, text: str) -> None:
        """A line that stays on the screen."""

    def close(self) -> None:
        """The verdict comes now, or nothing more: the screen is as it was before. More than once does no harm."""


class NetcheckLines(NetcheckProgress):
    """For a log: a line on `file` when something changes, at most every few seconds; nothing in the first one."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic, command: str = "netcheck") -> None:
        super().__init__(clock, command)
        self._file = file
        self._said = ""
        self._said_at = -_BETWEEN_SECONDS
        self._repeated = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(f"ddpdoctor {self.title}: {text}", file=self._file, flush=True)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(1)

    def due(self) -> str:
        """The line to say now, or ""."""
        seconds = self.seconds
        text = status(self)
        if not text or seconds < _QUIET_SECONDS or seconds - self._said_at < _BETWEEN_SECONDS:
            return ""
        again = text == self._said
        if again and seconds - self._said_at < _AGAIN_SECONDS[min(self._repeated, len(_AGAIN_SECONDS) - 1)]:
            return ""
        self._repeated = self._repeated + 1 if again else 0
        self._said, self._said_at = text, seconds
        return f"ddpdoctor {self.title}, {seconds:.0f} s: {text}"

    def _watch(self) -> None:
        while not self._closed.wait(0.2):
            if line := self.due():
                try:
                    print(line, file=self._file, flush=True)
                except (OSError, ValueError):
                    # Nobody reads stderr any more; the verdict goes elsewhere.
                    return


def names(seats: Sequence[Seat], most: int) -> str:
    return listed((seat.name for seat in seats), most)
