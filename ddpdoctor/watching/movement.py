"""Whether a rank moves, by its stacks and counters: what one that waits, polls or spins for ever doesn't do. Pure.

A processor that is used tells little: a rank that waits for NCCL burns one, and so does an endless loop. What counts is that the rank
comes to other calls, reads or writes, that other threads or processes work for it, or that its memory changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.text import human, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Frame, RankLook, Watched
from ddpdoctor.hang.rank_states import (
    BUSY_CORES,
    IDLE_CORES,
    MIN_PROGRESS_BYTES,
    RankActivity,
    RankState,
    bytes_moved,
    cores_used,
    states_of,
)
from ddpdoctor.knowledge.torch_frames import PlaceKind, StackPlace, file_line, name_of, place_of, where, worker_place
from ddpdoctor.watching.deep_look import DeepLook

WORK_CORES: Final = 0.01
"""Of a main thread that comes to different calls, and works: one that asks ten times a second whether there is a file uses 0.1 % of a core,
a hundred times a second 0.6 %; an evaluation at a low load 2 % and more."""
MAIN_BYTES: Final = 4 << 10
"""Read or written by a main thread that does something else than wait: more than a line that says again that it waits."""
HELPER_BYTES: Final = 1 << 20
"""Of the processes that a rank has started: what logs metrics all the while moves less."""
RESIDENT_BYTES: Final = 1 << 20
POLLS_PER_SECOND: Final = 0.25
"""A DataLoader's main thread asks every five seconds whether its workers live, a rendezvous every ten whether the store answers."""
POLLING: Final = (PlaceKind.LOADER, PlaceKind.GROUP)
WORK_OF_HELPERS: Final = (PlaceKind.CHILD, PlaceKind.COMPILING, PlaceKind.SAVING, PlaceKind.LOADING)
"""Where a rank waits for what it has started: then the least that this does counts."""


class Movement(NamedTuple):
    """What a rank did. why: it moves, in words; "" where nothing tells that it does. computes: the only sign is that its main thread uses
    a processor, in one place: an endless loop does that, and so does a long computation. waits: for the other ranks."""

    why: str
    computes: bool = False
    waits: bool = False


STILL: Final = Movement("")


class _Pair(NamedTuple):
    """Two deep looks at one process. earlier: None without one before. stood: where that left it; None where nobody could see it.
    pause: seconds between the two."""

    now: Watched
    earlier: Watched | None
    stood: StackPlace | None
    pause: float
    main_cores: float = 0.0
    """Of the main thread from the beginning of the earlier look on; 0.0 where that isn't known."""
    other_cores: float = 0.0
    """Of its other threads within the later look; 0.0 where that isn't known, or some of them are NCCL's, which spin."""
    main_bytes: int = 0
    grown: int = 0
    """Bytes by which its resident memory has changed."""
    major_faults: int = 0

    @property
    def bytes_in_all(self) -> int:
        start = self.earlier.looks[0] if self.earlier else self.now.looks[0]
        return max(0, self.now.last.transferred - start.transferred)


def movements(now: DeepLook, before: DeepLook | None, asleep: Collection[int]) -> Mapping[int, Movement]:
    """Say of each rank whether it moves, by number.

    Args:
        now: the deep look.
        before: the one before, which found nothing that moved; None without.
        asleep: ranks whose main thread has not run since the look before, or without one for a while.
    """
    states = states_of(now.hang)
    frozen = {state.number for state in states if state.number in asleep and _is_frozen(state, now)}
    found = {
        state.number: _movement(state, now, before, others_frozen=bool(frozen - {state.number})) for state in states
    }
    somebody_waits = any(movement.waits and not movement.why for movement in found.values())
    return {
        number: movement._replace(why="it computes") if movement.computes and not somebody_waits else movement
        for number, movement in found.items()
    }


def _is_frozen(state: RankState, now: DeepLook) -> bool:
    """Whether a rank's main thread has not run at all within the look."""
    first, last = now.before.get(state.pid), now.after.get(state.pid)
    return first is not None and last is not None and first.runs == last.runs


def _movement(state: RankState, now: DeepLook, before: DeepLook | None, *, others_frozen: bool) -> Movement:
    watched = state.rank.watched
    if state.activity in (RankActivity.GONE, RankActivity.STOPPED):
        return STILL
    if watched is None or len(watched.looks) < 2:
        return Movement("whether it moved can't be told")
    pair = _pair(watched, state.number, now, before)
    if state.activity is RankActivity.UNSEEN:
        return Movement(_unseen(pair))
    if state.activity is RankActivity.MOVES:
        return Movement("it goes on")
    if state.place.meets or state.activity in (RankActivity.PERHAPS, RankActivity.LEFT):
        return Movement(_in_meeting(state, pair), waits=True)
    slack = POLLS_PER_SECOND if others_frozen or state.where in POLLING else 0.0
    helpers = _helpers(watched.pid, now, before, least=state.where in WORK_OF_HELPERS)
    if state.where is PlaceKind.LOADER:
        return Movement(helpers or _in_loader(state, pair, before, slack=slack, others_frozen=others_frozen))
    own = _elsewhere(pair, state.place, slack=slack, others_frozen=others_frozen)
    return own._replace(why=own.why or helpers)


def _pair(watched: Watched, number: int, now: DeepLook, before: DeepLook | None) -> _Pair:
    rank = before.rank(number) if before else None
    earlier = rank.watched if rank and rank.watched and rank.watched.pid == watched.pid else None
    stood = _stood(earlier, place_of)
    first, last = now.before.get(watched.pid), now.after.get(watched.pid)
    if first is None or last is None:
        return _Pair(watched, earlier, stood, _pause(now, before))
    start = before.before.get(watched.pid, first) if before else first
    cores_now = _per_second(last.main_cpu - first.main_cpu, last.seconds - first.seconds)
    return _Pair(
        watched,
        earlier,
        stood,
        _pause(now, before),
        main_cores=_per_second(last.main_cpu - start.main_cpu, last.seconds - start.seconds),
        other_cores=0.0 if "nccl" in now.hang.backend else cores_used(watched) - cores_now,
        main_bytes=last.main_bytes - start.main_bytes,
        grown=max(abs(last.resident - first.resident), abs(last.resident - start.resident)),
        major_faults=last.major_faults - start.major_faults,
    )


def _stood(earlier: Watched | None, find_place: Callable[[RankLook], StackPlace]) -> StackPlace | None:
    place = find_place(earlier.last) if earlier else None
    return place if place and place.where is not PlaceKind.UNSEEN else None


def _pause(now: DeepLook, before: DeepLook | None) -> float:
    return now.began - before.ended if before else 0.0


def _unseen(pair: _Pair) -> str:
    """Without stacks nothing but a process that does nothing at all is still."""
    first = (pair.earlier or pair.now).looks[0]
    used = pair.now.last.cpu_seconds - first.cpu_seconds
    ran = _wakes(first, pair.now.last) or pair.bytes_in_all or used > 0.02
    return "it does something, and its stack can't be read" if ran else ""


# --- a rank that seems to wait for the others -------------------------------------------------------------------------------


def _in_meeting(state: RankState, pair: _Pair) -> str:
    if state.activity is RankActivity.ELSEWHERE:
        return f"it computes in {where(state.place)}"
    if bytes_moved(pair.now) > MIN_PROGRESS_BYTES:
        return f"it moved {human(bytes_moved(pair.now))}"
    if pair.stood and pair.stood.call != state.place.call:
        return _came_from(pair, pair.stood, state.place)
    return _in_between(pair, POLLS_PER_SECOND if state.where in POLLING else 0.0)


def _in_between(pair: _Pair, slack: float) -> str:
    """Say what it did between two looks that both saw it in the same place, and that it does in neither of them: who polls or spins does
    the same all the while. slack: wake-ups a second that are none."""
    if pair.earlier is None or pair.pause <= 0.0:
        return ""
    before, first = pair.earlier.last, pair.now.looks[0]
    rate = min(_wakes_per_second(pair.earlier), _wakes_per_second(pair.now))
    wakes = _wakes(before, first)
    if wakes > (2 * rate + slack) * pair.pause + (1 if rate or slack else 0):
        return f"its main thread woke up {plural(wakes, 'time')} between two looks"
    used = (first.cpu_seconds - before.cpu_seconds) / pair.pause
    low, high = sorted((used, cores_used(pair.now)))
    # Between busy and more busy there is no difference: on a full host nobody gets the same all the while.
    if low < 2 * IDLE_CORES and high - low > BUSY_CORES:
        return f"it used {used:.1f} cores between two looks, and {cores_used(pair.now):.1f} within one"
    return ""


def _wakes_per_second(watched: Watched) -> float:
    first, last = watched.looks[0], watched.last
    return _per_second(_wakes(first, last), last.seconds - first.seconds)


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0.0 else 0.0


def _wakes(first: RankLook, last: RankLook) -> int:
    before, after = first.main_wakes, last.main_wakes
    return 0 if isinstance(before, Unknown) or isinstance(after, Unknown) else after - before


# --- a rank that does something else ----------------------------------------------------------------------------------------


def _elsewhere(pair: _Pair, place: StackPlace, *, slack: float, others_frozen: bool) -> Movement:
    """Judge a process in code of its own, at a lock, or waiting for anything but the other ranks. One that polls comes to different
    calls, too; it is told from work by the processor that this uses, and from a step that mostly sleeps by the others, who wait all the while."""
    if why := _amounts(pair):
        return Movement(why)
    cores = cores_used(pair.now)
    wanders = not pair.now.still
    if wanders and (pair.main_cores > WORK_CORES or cores > IDLE_CORES or not others_frozen):
        return Movement("it comes to different calls")
    if pair.other_cores > BUSY_CORES:
        return Movement(f"its other threads use {pair.other_cores:.1f} cores")
    if pair.stood and not (_is_same_way(pair.stood.path, place.path) and pair.stood.where is place.where):
        return Movement(_came_from(pair, pair.stood, place))
    if pair.earlier and pair.earlier.last.others != pair.now.last.others and place.where is PlaceKind.LOCK:
        return Movement("its other threads came to other calls")
    if why := _in_between(pair, slack):
        return Movement(why)
    return Movement("", computes=cores > BUSY_CORES)


def _amounts(pair: _Pair) -> str:
    if pair.bytes_in_all > MIN_PROGRESS_BYTES or pair.main_bytes > MAIN_BYTES:
        return f"it read or wrote {human(max(pair.bytes_in_all, pair.main_bytes))}"
    if pair.grown >= RESIDENT_BYTES:
        return f"its memory changed by {human(pair.grown)}"
    if pair.major_faults > 0:
        return f"it read {plural(pair.major_faults, 'page')} of files"
    return ""


def _came_from(pair: _Pair, stood: StackPlace, place: StackPlace) -> str:
    """Say where it was and is; where both are called the same, by the outermost call in which its stacks differ, or by what it did there."""
    before, now = where(stood), where(place)
    if before != now or pair.earlier is None:
        return f"it was in {before} before, and is in {now}"
    calls = zip(reversed(pair.earlier.last.frames), reversed(pair.now.last.frames), strict=False)
    differ = next(((_call(one), _call(other)) for one, other in calls if one != other), None)
    if differ is None:
        return f"it was {stood.where.value} before, and is {place.where.value}"
    return f"it was in {differ[0]} before, and is in {differ[1]}"


def _call(frame: Frame) -> str:
    name = name_of(frame)
    return f"{name if name != '<module>' else 'its script'} ({file_line(frame)})"


def _is_same_way(path: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Whether two stacks are of one loop: the outer calls are the same, and the innermost function that both have. One that polls stands in
    the loop itself, or in what this asks."""
    depth = min(len(path), len(other))
    outer, others = list(path)[::-1][:depth], list(other)[::-1][:depth]
    if depth == 0:
        return len(path) == len(other)
    ends = (outer[-1], others[-1])
    return outer[:-1] == others[:-1] and len({(frame.path, frame.function) for frame in ends}) == 1


def _in_loader(state: RankState, pair: _Pair, before: DeepLook | None, *, slack: float, others_frozen: bool) -> str:
    """Judge a rank that waits for a batch: by its workers, and by whether anything has come from them."""
    if state.progress or pair.main_bytes > 0:
        return "batches come"
    if pair.bytes_in_all > 0:
        return f"it read {human(pair.bytes_in_all)}"
    earlier = before.rank(state.number) if before else None
    known = {worker.pid: worker for worker in earlier.workers} if earlier else {}
    for worker in state.busy_workers:
        if len(worker.looks) < 2:
            return f"whether its worker {worker.pid} moved can't be told"
        former = known.get(worker.pid)
        stood = _stood(former, worker_place)
        of_worker = _Pair(worker, former, stood, pair.pause, main_cores=cores_used(worker))
        found = (
            _elsewhere(of_worker, worker_place(worker.last), slack=slack, others_frozen=others_frozen).why
            if worker.last.frames
            else _unseen(of_worker)
        )
        if found:
            return f"its worker {worker.pid} works: {found}"
    return _in_between(pair, slack)


def _helpers(pid: int, now: DeepLook, before: DeepLook | None, *, least: bool) -> str:
    """Say what the processes that a rank has started did for it; "" where they did no more than loggers do. least: it waits for them."""
    start = before.helpers_before if before else now.helpers_before
    first, last = start.get(pid), now.helpers_after.get(pid)
    if first is None or last is None:
        return ""
    seconds = now.ended - (before.began if before else now.began)
    if last.pids - first.pids:
        return "it has started other processes"
    cores, moved = (last.cpu - first.cpu) / seconds, last.transferred - first.transferred
    if cores > (IDLE_CORES if least else BUSY_CORES) or moved > (0 if least else HELPER_BYTES):
        return f"processes that it has started use {cores:.1f} cores, and moved {human(max(0, moved))}"
    return ""


def words_for(movement: Movement, place: StackPlace) -> str:
    """Say where a rank that moves is, and how that is known."""
    return f"in {where(place)}: {movement.why}"
