"""Keeps the books of one job: when each of its ranks was last seen to move, when stacks must be read, and when it is a hang. Pure.

By its counters a main thread that has not run at all is still; of one that has run, only a deep look tells. A hang is a job of which
no rank moved for the time of confirmation, by its counters all the while and by several deep looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.hang import Frame
from ddpdoctor.hang.rank_states import RankActivity, RankState, states_of
from ddpdoctor.knowledge.torch_frames import PlaceKind
from ddpdoctor.watching.counters import Counters
from ddpdoctor.watching.deep_look import SECONDS, DeepLook
from ddpdoctor.watching.movement import MAIN_BYTES, Movement, movements

SUSPECT_PART: Final = 10
MAX_SUSPECT_SECONDS: Final = 30.0
"""A rank whose main thread has not run for so long, or for a tenth of the time of confirmation, is looked at."""
DEEP_LOOKS: Final = 8
"""So many within the time of confirmation."""
MIN_AGREEING: Final = 3
"""Deep looks that must find nothing that moves."""
MIN_AGREEING_WITHOUT_SLEEP: Final = 5
"""The same where every rank runs all the while: all spin, or poll."""
BURST_SECONDS: Final = 0.05
"""Of a processor, that a main thread uses which had not run before: the work of a step. One that wakes up to look whether there is anything
to do, and waits again, uses a hundredth of it."""
SILENT_PART: Final = 6
MIN_SILENT_SECONDS: Final = 5.0
"""If no main thread reads or writes for a sixth of the time of confirmation, all stacks are read once, however much they run."""
START_SECONDS: Final = 300.0
"""So long a job may take to start: on a busy host, or with torch on a slow file system."""


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. confirm: so long nothing may move before it is a hang. every: between two looks."""

    confirm: float
    every: float

    @property
    def suspect(self) -> float:
        """So long a main thread doesn't run before stacks are read."""
        return max(self.every, min(MAX_SUSPECT_SECONDS, self.confirm / SUSPECT_PART))

    @property
    def between_deep(self) -> float:
        """Between two deep looks at a job that is suspected."""
        return max(self.every, self.confirm / DEEP_LOOKS)

    @property
    def silent(self) -> float:
        """So long no main thread reads or writes before stacks are read all the same."""
        return max(MIN_SILENT_SECONDS, self.every, self.confirm / SILENT_PART)


class Stillness(msgspec.Struct, frozen=True, kw_only=True):
    """How long nothing has moved. since: on the monotonic clock. looks: that agree. slept: of at least one rank the main thread has not run
    since then."""

    since: float
    looks: int
    slept: bool


class JobTrack:
    """The books of one job.

    Args:
        limits: of time.
        began: on the monotonic clock.
        ranks: its ranks' numbers to their pids.
        anew: its launcher has just started it anew.
    """

    def __init__(self, limits: WatchLimits, began: float, ranks: Mapping[int, int], *, anew: bool = False) -> None:
        self._limits = limits
        self._starts_until = began + START_SECONDS if anew else began
        """Until then ranks that have not met in the training yet are taken for ones that start."""
        self.ranks = dict(ranks)
        self._counters: dict[int, Counters] = {}
        self.last_ran = dict.fromkeys(ranks, began)
        """When the main thread was last seen to have run, by rank."""
        self.moved = dict.fromkeys(ranks, began)
        """When each rank was last seen to move."""
        self._spoke = began
        self._noted = began
        self._stacks = began
        """When stacks were last read."""
        self._frames: dict[int, Sequence[Frame]] = {}
        """As they were then, by rank."""
        self.first: DeepLook | None = None
        self.last: DeepLook | None = None
        """Of the deep looks in a row that found nothing that moves."""
        self._agreeing = 0
        self.held_up_by: tuple[RankState, ...] = ()
        """The ranks that were seen to work while others wait; for as long as these don't run, whether or not a look sees the work."""
        self.why: Mapping[int, Movement] = {}
        self.gone: set[int] = set()
        self.hanging = False

    def take(self, now: float, ranks: Mapping[int, int]) -> None:
        """Take on ranks that were not there before, or have been started anew, which is a movement of the job.

        Args:
            now: on the monotonic clock.
            ranks: the job's ranks now, to their pids.
        """
        new = {
            rank: pid
            for rank, pid in ranks.items()
            if rank not in self.ranks or (rank in self.gone and self.ranks[rank] != pid)
        }
        if not new:
            return
        if self.gone & new.keys():
            self._starts_until = now + START_SECONDS
        self.ranks.update(new)
        self.gone.difference_update(new)
        for rank in new:
            self._counters.pop(rank, None)
            self._frames.pop(rank, None)
            self.last_ran[rank] = self.moved[rank] = now
        self._start_anew()

    # --- cheap looks --------------------------------------------------------------------------------------------------------

    def note(self, now: float, counters: Mapping[int, Counters]) -> None:
        """Note what the kernel counts, by rank; of one that has ended there is nothing."""
        for rank in self.ranks:
            last, latest = self._counters.get(rank), counters.get(rank)
            if latest is None:
                if rank not in self.gone:
                    self.gone.add(rank)
                    self.last_ran[rank] = self.moved[rank] = now
                continue
            self._counters[rank] = latest
            if last is None:
                continue
            slept = self.last_ran[rank] < self._noted
            if latest.runs != last.runs:
                self.last_ran[rank] = now
            if slept and latest.main_cpu - last.main_cpu > BURST_SECONDS:
                self.moved[rank] = now
                self._start_anew()
            written = latest.main_bytes - last.main_bytes
            if written > 0:
                self._spoke = now
            if written > MAIN_BYTES:
                self.moved[rank] = now
                self._start_anew()
        self._noted = now
        if self.waited(now) < self._limits.suspect:
            self.held_up_by = ()

    @property
    def counters(self) -> Mapping[int, Counters]:
        """The latest, by rank."""
        return self._counters

    def _start_anew(self) -> None:
        self.first = self.last = None
        self._agreeing = 0

    # --- deep looks ---------------------------------------------------------------------------------------------------------

    def wants_deep_look(self, now: float) -> bool:
        """Whether the stacks should be read, since a rank's main thread has not run for a while."""
        if self.hanging:
            pause = self._limits.between_deep if self._woke_up() else self._limits.confirm / 2
            return now - self._stacks >= pause
        is_last = self.first is not None and now + SECONDS >= self._due_at(self.first)
        pause = self._limits.every if is_last else self._limits.between_deep
        suspected = self.waited(now) >= self._limits.suspect or self.first is not None
        return suspected and now - self._stacks >= pause

    def _woke_up(self) -> bool:
        """Whether a rank has run since stacks were read last."""
        return any(ran > self._stacks for rank, ran in self.last_ran.items() if rank not in self.gone)

    def wants_stacks(self, now: float) -> bool:
        """Whether they should be read once though every rank runs: none has read or written for long, and all may spin or poll."""
        silent = now - self._spoke >= self._limits.silent and now - self._stacks >= self._limits.silent
        return silent and self.first is None and not self.hanging

    @property
    def living(self) -> Mapping[int, int]:
        """The ranks that have not ended, and their pids."""
        return {rank: pid for rank, pid in self.ranks.items() if rank not in self.gone}

    def note_stacks(self, now: float, stacks: Mapping[int, Sequence[Frame]]) -> bool:
        """Note stacks that were read once, by rank, and say whether a deep look should follow, since every stack is what it was the
        time before. One that is missing or could not be read tells nothing either way.

        Args:
            now: on the monotonic clock.
            stacks: the innermost call first; () where a stack could not be read.
        """
        compared = [(self._frames[rank], frames) for rank, frames in stacks.items() if frames and rank in self._frames]
        self._frames.update((rank, frames) for rank, frames in stacks.items() if frames)
        self._stacks = now
        if any(before != frames for before, frames in compared):
            self.note_moved(now)
            return False
        return bool(compared)

    def note_moved(self, now: float) -> None:
        """Note that the job as a whole moves."""
        self._stacks = now
        self.moved = dict.fromkeys(self.ranks, now)
        self._start_anew()

    def asleep(self, now: float) -> frozenset[int]:
        """Pids of ranks whose main thread has not run for a while."""
        return frozenset(self.ranks[rank] for rank, ran in self.last_ran.items() if now - ran >= self._limits.suspect)

    def note_deep(self, deep: DeepLook) -> None:
        """Note what a deep look found."""
        self._stacks = deep.began
        before = self.last.began if self.last else deep.began - self._limits.suspect
        asleep = {rank for rank, ran in self.last_ran.items() if ran <= before}
        self.why = movements(deep, self.last, asleep)
        moving = {rank for rank, movement in self.why.items() if movement.why}
        states = states_of(deep.hang)
        for rank in moving:
            self.moved[rank] = deep.ended
        waiting = any(movement.waits and not movement.why for movement in self.why.values())
        if moving and waiting:
            self.held_up_by = tuple(state for state in states if state.number in moving)
        if any(state.place.meets and state.where is not PlaceKind.GROUP for state in states):
            self._starts_until = deep.began
        if moving or all(state.activity is RankActivity.GONE for state in states):
            self._start_anew()
            return
        self.first = self.first or deep
        self.last = deep
        self._agreeing += 1

    def _since(self, first: DeepLook) -> float:
        """When the job moved last. A rank that has run since may have moved until stacks were read first; one that has not has not."""
        return max(max(self.moved[rank], min(ran, first.began)) for rank, ran in self.last_ran.items())

    def _due_at(self, first: DeepLook) -> float:
        """From when on it is a hang if nothing moves."""
        return max(self._since(first) + self._limits.confirm, self._starts_until)

    def stillness(self) -> Stillness | None:
        """Tell how long nothing has moved, as far as it was looked at; None where something does."""
        if self.first is None:
            return None
        slept = any(ran <= self.first.began for rank, ran in self.last_ran.items() if rank not in self.gone)
        return Stillness(since=self._since(self.first), looks=self._agreeing, slept=slept)

    def hang_is_due(self) -> bool:
        """Whether nothing has moved for the time of confirmation, by a deep look that was just taken."""
        still = self.stillness()
        if still is None or self.hanging or self.first is None or self.last is None:
            return False
        needed = MIN_AGREEING if still.slept else MIN_AGREEING_WITHOUT_SLEEP
        return still.looks >= needed and self.last.ended >= self._due_at(self.first)

    def waited(self, now: float) -> float:
        """Seconds for which the main thread that has not run for longest has not."""
        return max((now - ran for rank, ran in self.last_ran.items() if rank not in self.gone), default=0.0)
