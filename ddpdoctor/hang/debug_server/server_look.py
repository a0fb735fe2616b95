"""Looks at the ranks of a job through torch's debug server: twice, some seconds apart, and at their stacks in between.

What a rank tells is its own word: where its threads stand (which takes Python's lock, for a moment), which collectives it has called,
and what it waits for by torch's counters. Of its process, its processor time and its DataLoader's workers nothing is known.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ddpdoctor.base.ownership import user_name
from ddpdoctor.base.text import clip, human, listed, masked, ranks_named
from ddpdoctor.facts.hang import STATE_UNTOLD, Frame, Hang, RankLook, Recorded, RecordedGroup, Watched, WatchedRank
from ddpdoctor.hang.debug_server.budget import Budget, OverBudgetError
from ddpdoctor.hang.debug_server.pages import (
    NO_CONNECTION,
    OK,
    TIMED_OUT,
    TOO_LONG,
    UNREADABLE,
    NotServedError,
    Page,
    RankAnswer,
    ServerAddress,
    await_first_word,
    fetch_page,
    resolve,
)
from ddpdoctor.hang.debug_server.told_stacks import ToldStack, parse_stacks
from ddpdoctor.hang.flight_recorder.dump_format import Dump, parse_dump
from ddpdoctor.hang.flight_recorder.plain_pickles import NotRead
from ddpdoctor.hang.stack_sampling import compare_stacks
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.tcp_sockets import LISTEN, read_sockets

SOURCE: Final = "torch's debug server"
STACKS: Final = "/stacks"
RECORDERS: Final = ("/fr_trace_json", "/fr_trace_nccl_json")
"""Those of gloo and the like, and NCCL's, which tells only what is open."""
COUNTERS: Final = "/wait_counters"
PAGE_BYTES: Final = {STACKS: 64 << 20, RECORDERS[0]: 256 << 20, RECORDERS[1]: 64 << 20, COUNTERS: 64 << 20}
"""1,024 ranks tell 17 MiB of stacks; full recorders of gloo are 1.5 MiB a rank, of which the last calls are kept."""
PAGE_KEPT_BYTES: Final = 20 << 20
"""Of one page, as text: none takes it all from the others."""
FIRST_SHARE: Final = 0.45
SAMPLES_SHARE: Final = 0.55
"""Of the budget, what is used when the first look, and when the stacks in between are through."""
PAGE_SECONDS: Final = 75.0
"""The server itself waits up to 60 for ranks that don't answer, for all of them at once."""
MAX_LOAD: Final = 0.1
"""Of the time between the looks ranks spend at most so much on telling where they stand."""
MIN_PAUSE_SECONDS: Final = 0.2
MAX_COUNTERS: Final = 10_000
HEARTBEAT_COUNTERS: Final = "TCPStore__"
"""NCCL's watchdogs ask the store all the while."""
COUNTER_PREFIX: Final = "pytorch.wait_counter."
NOT_TOLD: Final = "Processor time, bytes and DataLoader workers: a debug server doesn't tell of them, so whether a rank computes where it stands isn't known."
REFUSED: Final = re.compile(r"Connection refused|Connect call failed|Errno 111\b")

T = TypeVar("T")


class Told(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What a rank has answered. status, listens: as in `RankAnswer`. said: its words where it gave no answer."""

    host: str
    listens: str
    status: int
    said: str = ""
    value: T | None = None

    @property
    def refuses(self) -> bool:
        """Whether nothing listens any more where the rank did."""
        return self.status == NO_CONNECTION and REFUSED.search(self.said) is not None


class WaitCounter(msgspec.Struct, frozen=True):
    """How often a rank has begun something that torch counts, and how often it is within it just now."""

    total_calls: int = 0
    active_count: int = 0


Counters = Mapping[str, WaitCounter]


class Inquiry(NamedTuple):
    """Whom is asked, and how much of what it answers is taken."""

    address: ServerAddress
    places: Sequence[tuple[socket.AddressFamily, Any]]
    budget: Budget


class StackSamples:
    """How often the main thread of each rank was seen where between the looks."""

    def __init__(self) -> None:
        self.by_rank: dict[int, Counter[tuple[str, ...]]] = {}
        self.cut = ""
        """Why no more of them were read."""

    def add(self, rank: int, frames: Sequence[Frame], budget: Budget) -> None:
        """Count a stack, the innermost frame first.

        Raises:
            OverBudgetError: it is a new one, and too much.
        """
        stack = _outermost_first(frames)
        seen = self.by_rank.get(rank, Counter())
        if stack and stack not in seen:
            budget.keep(len(repr(stack)))
        if stack:
            seen[stack] += 1
            self.by_rank[rank] = seen


class ServedMoment(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says at one moment: a page each, or why there is none. seconds: since the look began."""

    seconds: float
    stacks: Page[Told[ToldStack]] | str
    recorders: tuple[Page[Told[Dump]] | str, ...]
    counters: Page[Told[Counters]] | str

    @property
    def pages(self) -> tuple[Page[Any], ...]:
        return tuple(page for page in (self.stacks, *self.recorders, self.counters) if isinstance(page, Page))

    @property
    def ranks(self) -> int:
        return max((max(page.by_rank, default=-1) + 1 for page in self.pages), default=0)

    def words_of(self, rank: int) -> Iterator[Told[Any]]:
        """Yield what the rank told, or why it didn't, page by page."""
        return (page.by_rank[rank] for page in self.pages if rank in page.by_rank)

    def stack(self, rank: int) -> Told[ToldStack] | None:
        return _of(self.stacks, rank)

    def dumps(self, rank: int) -> list[Dump]:
        """Its flight recorders, as far as they have entries."""
        told = (_of(page, rank) for page in self.recorders)
        return [one.value for one in told if one and one.value and one.value.groups]


def _of(page: Page[Told[T]] | str, rank: int) -> Told[T] | None:
    return page.by_rank.get(rank) if isinstance(page, Page) else None


async def look_at_server(address: ServerAddress, seconds: int) -> Hang:
    """Ask a server for all that it knows of the ranks, twice, so many seconds apart.

    Raises:
        NotServedError: neither stacks nor flight recorders could be had.
    """
    inquiry = Inquiry(address, await resolve(address), Budget())
    await await_first_word(address, inquiry.places)
    began = time.monotonic()
    inquiry.budget.open(FIRST_SHARE)
    first = await _ask(inquiry, began)
    if first.ranks == 0:
        raise NotServedError(next(why for why in (first.stacks, *first.recorders) if isinstance(why, str)))
    inquiry.budget.open(SAMPLES_SHARE)
    samples = await _stacks_between(inquiry, first, began + first.seconds + seconds)
    inquiry.budget.open(1.0)
    second = await _ask(inquiry, began)
    moments = (first, second) if second.ranks else (first,)
    return _hang(address, moments, samples, [*_troubles(samples, first, second), *_whose(address, inquiry.places)])


async def _ask(inquiry: Inquiry, began: float) -> ServedMoment:
    seconds = round(time.monotonic() - began, 3)
    stacks, recorders, counters = await asyncio.gather(
        _page(inquiry, STACKS, parse_stacks),
        asyncio.gather(*(_page(inquiry, path, parse_dump) for path in RECORDERS)),
        _page(inquiry, COUNTERS, _parse_counters),
    )
    return ServedMoment(seconds=seconds, stacks=stacks, recorders=tuple(recorders), counters=counters)


async def _page(inquiry: Inquiry, path: str, parse: Callable[[bytes], T]) -> Page[Told[T]] | str:
    kept = 0

    def take(answer: RankAnswer) -> Told[T]:
        nonlocal kept
        status, value = answer.status, None
        said = clip(masked(answer.body[:2000].decode("utf-8", "replace"))) if status != OK else ""
        if status == OK:
            try:
                value = parse(answer.body)
            except NotRead as error:
                status, said = UNREADABLE, str(error)
        told = Told(host=answer.host, listens=answer.listens, status=status, said=said, value=value)
        size = len(repr(told))
        kept += size
        if kept > PAGE_KEPT_BYTES:
            raise OverBudgetError(f"it tells more than the {human(PAGE_KEPT_BYTES)} that are kept of a page")
        inquiry.budget.keep(size)
        return told

    return await _fetched(inquiry, path, take)


async def _fetched(inquiry: Inquiry, path: str, take: Callable[[RankAnswer], T]) -> Page[T] | str:
    address, places, budget = inquiry
    try:
        return await fetch_page(address, places, path, take, PAGE_SECONDS, PAGE_BYTES[path], budget)
    except NotServedError as error:
        return str(error)


def _parse_counters(text: bytes) -> Counters:
    try:
        found = msgspec.json.decode(text, type=dict[str, WaitCounter])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise NotRead("its counters are no JSON of torch's") from None
    return {masked(name)[:200]: found[name] for name in list(found)[:MAX_COUNTERS]}


async def _stacks_between(inquiry: Inquiry, first: ServedMoment, until: float) -> StackSamples:
    """Ask for the stacks again and again, as often as costs the ranks little."""
    samples = StackSamples()

    def take(answer: RankAnswer) -> None:
        if answer.status == OK:
            samples.add(answer.rank, parse_stacks(answer.body).frames, inquiry.budget)

    last: Page[Any] | str = first.stacks
    while isinstance(last, Page) and not samples.cut:
        pause = max(MIN_PAUSE_SECONDS, last.seconds / MAX_LOAD)
        if time.monotonic() + pause >= until:
            break
        await asyncio.sleep(pause)
        last = await _fetched(inquiry, STACKS, take)
        samples.cut = last if isinstance(last, str) else last.cut
    await asyncio.sleep(max(0.0, until - time.monotonic()))
    return samples


# --- what came of it --------------------------------------------------------------------------------------------------------


def _hang(
    address: ServerAddress,
    moments: Sequence[ServedMoment],
    samples: StackSamples,
    hidden: Sequence[str],
) -> Hang:
    first, last = moments[0], moments[-1]
    reachable = _reachable_hosts(moments)
    count = max(moment.ranks for moment in moments)
    recorded = tuple(one for rank in range(count) if (one := _recorded(rank, last)))
    refused = tuple(
        f"rank {rank}'s flight recorder: {told.said}"
        for page in last.recorders
        if isinstance(page, Page)
        for rank, told in page.by_rank.items()
        if told.status == UNREADABLE
    )
    return Hang(
        server=str(address),
        world_size=count,
        backend=_backends(recorded),
        groups=max((len(one.groups) for one in recorded), default=0),
        ranks=tuple(_watched_rank(rank, moments, samples, reachable) for rank in range(count)),
        between=round(last.seconds - first.seconds, 3),
        recorded=recorded,
        dumps=f"calls of {ranks_named(one.rank for one in recorded)}" if recorded else "they hold no calls",
        refused=refused[:50],
        hidden=(*hidden, NOT_TOLD),
    )


def _backends(recorded: Iterable[Recorded]) -> str:
    names = (call.name for one in recorded for group in one.groups for call in group.entries)
    return " and ".join(sorted({name.partition(":")[0] for name in names if ":" in name}, reverse=True)[:4])


def _watched_rank(
    rank: int,
    moments: Sequence[ServedMoment],
    samples: StackSamples,
    reachable: frozenset[str],
) -> WatchedRank:
    last = moments[-1]
    host = next((told.host for moment in moments for told in moment.words_of(rank) if told.host), "")
    own = list(last.words_of(rank))
    if own and all(told.refuses for told in own) and host in reachable:
        listened = own[0].listens or "its address"
        return WatchedRank(rank=rank, host=host, gone=f"nothing listens at {listened} any more, and its host answers")
    told = _of(last.counters, rank)
    active = [
        name.removeprefix(COUNTER_PREFIX)
        for name, counter in ((told and told.value) or {}).items()
        if counter.active_count > 0
    ]
    return WatchedRank(rank=rank, host=host, watched=_watched(rank, moments, samples), counters=tuple(active[:8]))


def _reachable_hosts(moments: Iterable[ServedMoment]) -> frozenset[str]:
    """Name the hosts of which any rank has answered: a firewall between hosts refuses all of one."""
    pages = (page for moment in moments for page in moment.pages)
    return frozenset(told.host for page in pages for told in page.by_rank.values() if told.status == OK and told.host)


def _watched(rank: int, moments: Sequence[ServedMoment], samples: StackSamples) -> Watched:
    looks = tuple(_look(rank, moment) for moment in moments)
    counted = Counter(_outermost_first(look.frames) for look in looks if look.frames)
    counted.update(samples.by_rank.get(rank, {}))
    found = compare_stacks(0, counted) if counted else Watched(pid=0)
    return msgspec.structs.replace(found, looks=looks, moved=found.moved + _has_gone_on(rank, moments))


def _outermost_first(frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(f"{frame.function} ({frame.path}:{frame.line})" for frame in reversed(frames))


def _look(rank: int, moment: ServedMoment) -> RankLook:
    told = moment.stack(rank)
    stack = (told.value if told else None) or ToldStack()
    return RankLook(
        seconds=moment.seconds,
        frames=stack.frames,
        others=stack.others,
        source=SOURCE if stack.frames else _why_no_stack(rank, moment),
        state=STATE_UNTOLD,
    )


def _why_no_stack(rank: int, moment: ServedMoment) -> str:
    told = moment.stack(rank)
    if told is None:
        return "the page of stacks could not be had, or breaks off before it"
    if told.status == TIMED_OUT:
        if any(other.status == OK for other in moment.words_of(rank)):
            return "its process answers and its Python doesn't: some native code keeps Python's lock (the GIL)"
        return "it gave the debug server no answer in time: it is stopped, or not to be reached"
    if told.refuses:
        return f"nothing listens at {told.listens or 'its address'}: its process has ended, or a firewall stands in between"
    if told.status == NO_CONNECTION:
        return f"the debug server has no connection to it ({told.said})"
    if told.status == TOO_LONG:
        return "its answer is too long"
    if told.status != OK:
        return f"it gave the debug server no stack ({told.said or 'its answer is cut off'})"
    return "its main thread is not among those that it tells of"


def _has_gone_on(rank: int, moments: Sequence[ServedMoment]) -> bool:
    """Whether a rank has called or done more between the looks, by its recorders and counters."""
    if len(moments) < 2:
        return False
    first, last = moments[0], moments[-1]
    recorders = [
        (_of(page, rank), _of(later, rank)) for page, later in zip(first.recorders, last.recorders, strict=True)
    ]
    counters = _of(first.counters, rank), _of(last.counters, rank)
    return any(_differ(_reached, *pair) for pair in recorders) or _differ(_calls_counted, *counters)


def _differ(measure: Callable[[T], object], before: Told[T] | None, after: Told[T] | None) -> bool:
    if not (before and after) or before.value is None or after.value is None:
        return False
    return measure(before.value) != measure(after.value)


def _reached(dump: Dump) -> list[tuple[object, ...]]:
    """How far a rank has come in each group."""
    return [
        (
            group.group,
            group.last_enqueued,
            group.last_completed,
            [(call.number, call.state) for call in group.entries[-1:]],
        )
        for group in dump.groups
    ]


def _calls_counted(counters: Counters) -> dict[str, int]:
    return {name: counter.total_calls for name, counter in counters.items() if HEARTBEAT_COUNTERS not in name}


def _recorded(rank: int, moment: ServedMoment) -> Recorded | None:
    """Make one dump of what all its recorders say. Each counts its calls for itself: of several only the times tell the order."""
    dumps = moment.dumps(rank)
    if not dumps:
        return None
    groups: list[RecordedGroup] = []
    for dump in dumps:
        for group in dump.groups:
            taken = any(group.group == other.group for other in groups)
            name = (
                f"{group.group} ({group.entries[-1].name.partition(':')[0]})"
                if taken and group.entries
                else group.group
            )
            if not taken or group.entries:
                places = group.places if len(dumps) == 1 else ()
                groups.append(msgspec.structs.replace(group, group=name, places=places))
    when = next(page.asked_at for page in moment.recorders if isinstance(page, Page))
    host = next((told.host for told in moment.words_of(rank) if told.host), "")
    return Recorded(
        rank=rank,
        file=SOURCE,
        host=host,
        # Where the clocks of hosts differ, how long it has waited isn't known.
        written=when if when >= max(dump.last for dump in dumps) else 0.0,
        version=dumps[0].version,
        groups=tuple(groups),
    )


def _troubles(samples: StackSamples, *moments: ServedMoment) -> Iterator[str]:
    """Say which pages didn't come, or not whole."""
    paths = (STACKS, *RECORDERS, COUNTERS)
    seen: dict[str, str] = {}
    for moment in moments:
        for path, page in zip(paths, (moment.stacks, *moment.recorders, moment.counters), strict=True):
            why = page if isinstance(page, str) else page.cut and f"not whole: {page.cut}"
            if why:
                seen[path] = why
    for why in dict.fromkeys(seen.values()):
        yield f"Of the debug server's pages {listed(path for path in seen if seen[path] == why)}: {why}."
    if samples.cut:
        yield f"The stacks between the looks were not read to the end: {samples.cut}."


# --- whose server it is -----------------------------------------------------------------------------------------------------


def _whose(address: ServerAddress, places: Sequence[tuple[socket.AddressFamily, Any]]) -> Iterator[str]:
    """Say so where what listens there is another user's, as far as this host can tell."""
    if not any(_is_of_this_host(family, place[0]) for family, place in places):
        return
    rows = (row for row in read_sockets(Proc(), "net", (LISTEN,)) if row.port == address.port)
    others = sorted({user_name(row.uid) for row in rows if row.uid != os.geteuid()})
    if others:
        yield f"What listens at {address} belongs to {listed(others)}, and not to {user_name(os.geteuid())}: all of this is {listed(others)}'s word."


def _is_of_this_host(family: socket.AddressFamily, host: str) -> bool:
    if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return True
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as trial:
            trial.bind((host.partition("%")[0], 0))
    except OSError:
        return False
    return True
