"""Made-up pairs of deep looks at rank 1, beside rank 0, for tests of whether it moves.

     0 s   2 s                            12 s  14 s
     |-----|                              |-----|
     the look before       pause          this look

why(Seen(now=SLEEPS, moved_bytes=in_last(MIB))) == "it read or wrote 1 MiB"
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Frame, RankLook, Watched, WatchedRank
from ddpdoctor.watching.counters import Counters, Helpers
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.movement import Movement, movements
from tests.support.hangs import LIB, Stack, collective, hang, own

MOMENTS: Final = (0.0, 2.0, 12.0, 14.0)
"""Seconds at which a process is looked at: the beginning and the end of the deep look before, and of this one."""
PID: Final = 4001
KIB: Final = 1 << 10
MIB: Final = 1 << 20
NEVER: Final = (0, 0, 0, 0)
AtMoments = Sequence[float]
"""What has been counted by each of the moments; with three of them alike it is what happened before the last."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A process at four moments. now, earlier: its stacks in the two deep looks; earlier: () for none that could be read, None for that of now.

    samples, elsewhere, moved: of the stacks that were read in this look. others: threads, in the two looks.
    """

    now: Stack
    earlier: Stack | None = None
    cpu: AtMoments = NEVER
    main_cpu: AtMoments = NEVER
    wakes: Sequence[int | Unknown] = NEVER
    moved_bytes: AtMoments = NEVER
    main_bytes: AtMoments = NEVER
    resident: AtMoments = NEVER
    faults: AtMoments = NEVER
    runs: AtMoments = NEVER
    samples: int = 0
    elsewhere: int = 0
    moved: int = 0
    states: str = "SSSS"
    waits_in: str = "futex_do_wait"
    others: Sequence[tuple[tuple[str, Stack], ...]] = ((), ())

    def watched(self, part: int, pid: int) -> Watched:
        """This process in the first deep look (0) or in the second (1)."""
        stack = self.now if part or self.earlier is None else self.earlier
        looks = tuple(
            RankLook(
                seconds=0.25 + MOMENTS[moment] - MOMENTS[2 * part],
                frames=stack,
                others=self.others[part],
                state=self.states[moment],
                waits_in=self.waits_in,
                cpu_seconds=self.cpu[moment],
                switches=2000 + moment,
                main_wakes=wakes if isinstance(wakes := self.wakes[moment], Unknown) else 700 + wakes,
                transferred=int(50 * MIB + self.moved_bytes[moment]),
            )
            for moment in (2 * part, 2 * part + 1)
        )
        sampled = (self.samples, self.elsewhere, self.moved) if part else (0, 0, 0)
        return Watched(pid=pid, looks=looks, samples=sampled[0], elsewhere=sampled[1], moved=sampled[2])

    def counters(self, moment: int) -> Counters:
        return Counters(
            seconds=MOMENTS[moment],
            state=self.states[moment],
            runs=int(7 + self.runs[moment]),
            main_cpu=self.main_cpu[moment],
            main_bytes=int(MIB + self.main_bytes[moment]),
            cpu=self.cpu[moment],
            resident=int(256 * MIB + self.resident[moment]),
            major_faults=int(3 + self.faults[moment]),
        )


WAITS: Final = Seen(now=collective())
"""Rank 0, which waits for rank 1."""
NO_HELPERS: Final[tuple[Helpers, ...]] = (Helpers(),) * 4


def deep_look(
    part: int,
    one: Seen,
    other: Seen | None = WAITS,
    *,
    workers: Mapping[int, Seen] = {},
    helpers: Sequence[Helpers | None] = NO_HELPERS,
    counted: Sequence[bool] = (True,) * 4,
    pid: int = PID,
    backend: str = "gloo",
) -> DeepLook:
    """The first or the second deep look at rank 1, beside rank 0."""
    begin, end = 2 * part, 2 * part + 1
    ranks = {pid: one} if other is None else {4000: other, pid: one}
    of_one = WatchedRank(
        rank=1,
        watched=one.watched(part, pid),
        workers=tuple(worker.watched(part, number) for number, worker in workers.items()),
    )
    of_other = () if other is None else (WatchedRank(rank=0, watched=other.watched(part, 4000)),)
    return DeepLook(
        began=MOMENTS[begin],
        ended=MOMENTS[end],
        hang=hang(*of_other, of_one, backend=backend),
        before={at: seen.counters(begin) for at, seen in ranks.items() if counted[begin]},
        after={at: seen.counters(end) for at, seen in ranks.items() if counted[end]},
        helpers_before={pid: found} if (found := helpers[begin]) else {},
        helpers_after={pid: found} if (found := helpers[end]) else {},
    )


def movement(one: Seen, *, asleep: Collection[int] = (), alone: bool = False, **more: Any) -> Movement:
    """What is said of rank 1. alone: by one deep look, without one before."""
    before = None if alone else deep_look(0, one, **more)
    return movements(deep_look(1, one, **more), before, asleep)[1]


def why(one: Seen, **more: Any) -> str:
    return movement(one, **more).why


def why_of_new_process(one: Seen) -> str:
    """The rank was another process in the look before."""
    return movements(deep_look(1, one), deep_look(0, one, pid=PID + 500), ())[1].why


def in_last(amount: float) -> AtMoments:
    """It happens within the look."""
    return (0, 0, 0, amount)


def in_between(amount: int) -> tuple[int, int, int, int]:
    """It happens between the two looks."""
    return (0, 0, amount, amount)


SLEEPS: Final = own("wait", 12)
ACQUIRES: Final[Stack] = (Frame("Event.wait", f"{LIB}/threading.py", 629), *own("wait", 12))
"""At a lock."""
