"""Whether a rank moves, by made-up pairs of deep looks: of each sign what just tells it, and what just doesn't."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Frame, RankLook, Watched, WatchedRank
from ddpdoctor.hang.rank_states import RankActivity, states_of
from ddpdoctor.knowledge.torch_frames import place_of
from ddpdoctor.watching.counters import Counters, Helpers
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.movement import Movement, movements, words_for
from tests.support.hangs import (
    GETS_ITEM,
    IDLE_WORKER,
    LIB,
    TORCH,
    Stack,
    backward,
    collective,
    destroying,
    hang,
    in_worker,
    loader,
    own,
    rank,
    rendezvous,
    saving,
)

MOMENTS: Final = (0.0, 2.0, 12.0, 14.0)
"""Seconds at which a process is looked at: the beginning and the end of the deep look before, and of this one."""
PID: Final = 4001
KIB: Final = 1 << 10
MIB: Final = 1 << 20
NEVER: Final = (0, 0, 0, 0)
UNCOUNTED: Final = ((True, True, False, True), (True, True, True, False), (False,) * 4)
"""In which looks the kernel's counters were read: in this one not at its beginning, or not at its end, or never."""

Four = Sequence[float]
"""What has been counted by each of the moments; with three of them alike it is what happened before the last."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A process at four moments. now, earlier: its stacks in the two deep looks; earlier: () for none that could be read, None for that of now.

    samples, elsewhere, moved: of the stacks that were read in this look. others: threads, in the two looks.
    """

    now: Stack
    earlier: Stack | None = None
    cpu: Four = NEVER
    main_cpu: Four = NEVER
    wakes: Sequence[int | Unknown] = NEVER
    moved_bytes: Four = NEVER
    main_bytes: Four = NEVER
    resident: Four = NEVER
    faults: Four = NEVER
    runs: Four = NEVER
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


def in_last(amount: float) -> Four:
    """It happens within the look."""
    return (0, 0, 0, amount)


def in_between(amount: int) -> tuple[int, int, int, int]:
    """It happens between the two looks."""
    return (0, 0, amount, amount)


SLEEPS: Final = own("wait", 12)
ACQUIRES: Final[Stack] = (Frame("Event.wait", f"{LIB}/threading.py", 629), *own("wait", 12))
"""At a lock."""


# --- a rank in code of its own: each sign, and what just isn't one ------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=SLEEPS), ""),
        (Seen(now=SLEEPS, moved_bytes=in_last(64 * KIB + 1)), "it read or wrote 64 KiB"),
        (Seen(now=SLEEPS, moved_bytes=in_last(64 * KIB)), ""),
        (Seen(now=SLEEPS, main_bytes=in_last(4 * KIB + 1)), "it read or wrote 4 KiB"),
        (Seen(now=SLEEPS, main_bytes=in_last(4 * KIB)), ""),
        (Seen(now=SLEEPS, resident=in_last(MIB)), "its memory changed by 1 MiB"),
        (Seen(now=SLEEPS, resident=in_last(MIB - 1)), ""),
        (Seen(now=SLEEPS, resident=in_last(-MIB)), "its memory changed by 1 MiB"),
        (Seen(now=SLEEPS, resident=in_last(1 - MIB)), ""),
        (Seen(now=SLEEPS, faults=in_last(1)), "it read 1 page of files"),
        (Seen(now=SLEEPS, samples=200, elsewhere=2), "it comes to different calls"),
        (Seen(now=SLEEPS, samples=200, elsewhere=1), ""),
        (Seen(now=SLEEPS, cpu=in_last(0.42)), "its other threads use 0.2 cores"),
        (Seen(now=SLEEPS, cpu=in_last(0.40)), ""),
        (Seen(now=SLEEPS, cpu=(0, 1, 6, 7), main_cpu=(0, 0.58, 3.48, 4.06)), "its other threads use 0.2 cores"),
        (Seen(now=SLEEPS, cpu=(0, 1, 6, 7), main_cpu=(0, 0.62, 3.72, 4.34)), ""),
    ],
)
@pytest.mark.parametrize("alone", [True, False], ids=["one look", "two looks"])
def test_signs_within_a_look(one: Seen, says: str, *, alone: bool) -> None:
    found = movement(one, alone=alone)
    assert found.why == says
    assert not found.waits


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=SLEEPS, moved_bytes=in_between(64 * KIB + 1)), "it read or wrote 64 KiB"),
        (Seen(now=SLEEPS, moved_bytes=(0, 40 * KIB, 40 * KIB, 65 * KIB)), "it read or wrote 65 KiB"),
        (Seen(now=SLEEPS, moved_bytes=in_between(64 * KIB)), ""),
        (Seen(now=SLEEPS, main_bytes=in_between(4 * KIB + 1)), "it read or wrote 4 KiB"),
        (Seen(now=SLEEPS, main_bytes=in_between(4 * KIB)), ""),
        (Seen(now=SLEEPS, resident=in_between(MIB)), "its memory changed by 1 MiB"),
        (Seen(now=SLEEPS, resident=(0, 0, MIB, 0)), "its memory changed by 1 MiB"),
        (Seen(now=SLEEPS, resident=in_between(MIB - 1)), ""),
        (Seen(now=SLEEPS, resident=in_between(-MIB)), "its memory changed by 1 MiB"),
        (Seen(now=SLEEPS, faults=in_between(1)), "it read 1 page of files"),
    ],
)
def test_signs_from_one_look_to_the_next(one: Seen, says: str) -> None:
    assert why(one) == says
    # Who has only this look knows nothing of what was before it; nor of another process.
    alone = "" if one.resident[2] == one.resident[3] else says
    assert why(one, alone=True) == alone
    assert why_of_new_process(one) == alone


@pytest.mark.parametrize("counted", UNCOUNTED)
def test_without_the_kernels_counters_of_one_look_nothing_is_said_of_what_they_tell(counted: Sequence[bool]) -> None:
    one = Seen(now=SLEEPS, main_bytes=in_last(MIB), resident=in_last(MIB), faults=in_last(1), cpu=(0, 2, 12, 14))
    assert movement(one, counted=counted) == Movement("", computes=True)
    assert why(Seen(now=loader()), counted=counted) == ""


def test_without_the_kernels_counters_of_the_look_before_this_one_tells() -> None:
    one = Seen(now=SLEEPS, main_bytes=(0, MIB, 2 * MIB, 2 * MIB), faults=in_between(1))
    assert why(one, counted=(False, False, True, True)) == ""
    assert why(msgspec.structs.replace(one, faults=in_last(1)), counted=(False, False, True, True)) != ""


def test_without_a_look_at_it_before_this_one_tells() -> None:
    one = Seen(now=SLEEPS, main_bytes=in_last(MIB))
    before = DeepLook(began=MOMENTS[0], ended=MOMENTS[1], hang=hang(WatchedRank(rank=1)))
    assert movements(deep_look(1, one), before, ())[1].why == "it read or wrote 1 MiB"


def why_of_new_process(one: Seen) -> str:
    """The rank was another process in the look before."""
    return movements(deep_look(1, one), deep_look(0, one, pid=PID + 500), ())[1].why


POLLS: Final = own("until_told", 12)


@pytest.mark.parametrize(
    ("earlier", "now", "says"),
    [
        (POLLS, own("until_told", 12), ""),
        (POLLS, own("until_told", 13), ""),
        (POLLS, (Frame("exists", "/home/ada/files.py", 7), *POLLS), ""),
        ((Frame("exists", "/home/ada/files.py", 7), *POLLS), POLLS, ""),
        (POLLS, (Frame("until_told", "/home/ada/other.py", 12), *POLLS[1:]), "until_told (other.py:12)"),
        (POLLS, own("save", 12), "it was in until_told (train.py:12) before, and is in save (train.py:12)"),
        (POLLS, (POLLS[0], Frame("main", POLLS[1].path, 91), POLLS[2]), "it was in main (train.py:90) before"),
        (POLLS, ACQUIRES[:1] + POLLS, "it was in until_told (train.py:12) before, and is in the wait for another thread"),
        (POLLS, (Frame("sleeper", f"{TORCH}/_ops.py", 3),), "it was in until_told (train.py:12) before"),
        ((Frame("sleeper", f"{TORCH}/_ops.py", 3),), (Frame("other", f"{TORCH}/_ops.py", 9),), ""),
        ((), POLLS, ""),
    ],
    ids=[
        "the same", "another line of the loop", "in what the loop asks", "in the loop again", "another file", "another function",
        "another line around", "a lock", "no code of its own", "torch's alone", "not read before",
    ],
)  # fmt: skip
def test_where_it_was_before(earlier: Stack, now: Stack, says: str) -> None:
    found = why(Seen(earlier=earlier, now=now))
    assert says in found
    assert bool(found) is bool(says)
    assert why(Seen(earlier=earlier, now=now), alone=True) == ""


@pytest.mark.parametrize(
    ("earlier", "now", "says"),
    [
        (own("work", 4), (*own("work", 4)[:1], Frame("main", own()[0].path, 91), own()[-1]),
         "it was in main (train.py:90) before, and is in main (train.py:91)"),
        (own("work", 4), (Frame("dot", f"{LIB}/site-packages/lib.py", 7), *own("work", 4)[:1], Frame("B.main", "/home/ada/b.py", 8)),
         "it was in its script (train.py:120) before, and is in main (b.py:8)"),
        (collective("barrier", 44), (*collective("barrier", 44)[:-1], Frame("<module>", "/home/ada/train.py", 121)),
         "it was in its script (train.py:120) before, and is in its script (train.py:121)"),
    ],
    ids=["the line around", "another way", "a meeting"],
)  # fmt: skip
def test_two_places_that_are_called_the_same_are_told_by_the_call_that_differs(
    earlier: Stack, now: Stack, says: str
) -> None:
    assert why(Seen(earlier=earlier, now=now)) == says


def test_one_that_comes_to_a_keyboard_where_it_was() -> None:
    before = deep_look(0, Seen(now=own()))
    found = movements(deep_look(1, Seen(now=own(), waits_in="n_tty_read")), before, ())[1].why
    assert found == "it was in code of its own before, and is waiting for somebody at a keyboard"


def test_one_that_waits_at_a_keyboard_stays_where_it_is() -> None:
    """That it is one, only the kernel's word tells; in both looks."""
    assert place_of(Seen(now=own(), waits_in="n_tty_read").watched(1, PID).last).where.name == "INPUT"
    assert why(Seen(now=own(), waits_in="n_tty_read")) == ""


@pytest.mark.parametrize(
    ("now", "others", "says"),
    [
        (ACQUIRES, ((("saver", own("write", 3)),), (("saver", own("write", 4)),)), "its other threads came to other calls"),
        (ACQUIRES, ((("saver", own("write", 3)),),) * 2, ""),
        (SLEEPS, ((("saver", own("write", 3)),), (("saver", own("write", 4)),)), ""),
    ],
    ids=["come on", "stand", "no lock"],
)  # fmt: skip
def test_at_a_lock_the_other_threads_count(now: Stack, others: Any, says: str) -> None:
    assert why(Seen(now=now, others=others)) == says


# --- between two looks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "wakes", "says"),
    [
        # It sleeps within both looks: one time awake in between is enough.
        (SLEEPS, in_between(1), "its main thread woke up 1 time between two looks"),
        (SLEEPS, NEVER, ""),
        # Once a second, within both: in the ten seconds between it may be twice that, and one more.
        (SLEEPS, (0, 2, 24, 26), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 2, 23, 25), ""),
        # The look with fewer counts.
        (SLEEPS, (0, 8, 30, 32), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 2, 24, 32), "its main thread woke up 22 times between two looks"),
        (SLEEPS, (0, 8, 29, 31), ""),
        # Who waits for a DataLoader, or for a rendezvous, asks now and then whether it is still there.
        (loader(), in_between(4), "its main thread woke up 4 times between two looks"),
        (loader(), in_between(3), ""),
        (rendezvous(), in_between(4), "its main thread woke up 4 times between two looks"),
        (rendezvous(), in_between(3), ""),
        (collective("broadcast"), in_between(1), "its main thread woke up 1 time between two looks"),
        # Where the kernel doesn't tell.
        (SLEEPS, (0, 0, Unknown("no"), Unknown("no")), ""),
        (SLEEPS, (Unknown("no"), Unknown("no"), 5, 5), ""),
    ],
)
def test_how_often_it_woke_up(now: Stack, wakes: Sequence[int | Unknown], says: str) -> None:
    assert why(Seen(now=now, wakes=wakes)) == says
    assert why(Seen(now=now, wakes=wakes), alone=True) == ""


@pytest.mark.parametrize(
    ("now", "cpu", "says"),
    [
        # In the ten seconds between, and none within a look.
        (SLEEPS, in_between(3), "it used 0.3 cores between two looks, and 0.0 within one"),
        (SLEEPS, in_between(2), ""),
        (collective("broadcast"), in_between(3), "it used 0.3 cores between two looks, and 0.0 within one"),
        (collective("broadcast"), in_between(2), ""),
        # A tenth of a core is busy; between busy and more busy there is no difference.
        (SLEEPS, (0, 0, 3.2, 3.38), "it used 0.3 cores between two looks, and 0.1 within one"),
        (SLEEPS, (0, 0, 3.2, 3.42), ""),
        (SLEEPS, (0, 0, 2.5, 2.66), ""),
        # In the look before, and no more.
        (SLEEPS, (0, 2, 2, 2), ""),
    ],
)
def test_what_it_used_between(now: Stack, cpu: Four, says: str) -> None:
    assert why(Seen(now=now, cpu=cpu, main_cpu=cpu)) == says
    assert why(Seen(now=now, cpu=cpu, main_cpu=cpu), alone=True) == ""


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (0.0, "it used 0.0 cores between two looks, and 0.3 within one"),
        (0.9, "it used 0.1 cores between two looks, and 0.3 within one"),
        (1.0, ""),
    ],
)
def test_one_that_computes_within_the_look_alone(between: float, says: str) -> None:
    cpu = (0.0, 0.0, between, between + 0.6)
    assert why(Seen(now=SLEEPS, cpu=cpu, main_cpu=cpu)) == says


@pytest.mark.parametrize(("pause", "says"), [(0.0, ""), (0.5, "its main thread woke up 50 times between two looks")])
def test_two_looks_without_time_between_them_tell_nothing_of_it(pause: float, says: str) -> None:
    one = Seen(now=SLEEPS, wakes=in_between(50))
    soon = msgspec.structs.replace(deep_look(1, one), began=MOMENTS[1] + pause)
    assert movements(soon, deep_look(0, one), ())[1].why == says


# --- one that computes, polls, or comes to different calls beside a rank that is frozen ---------------------------------------


def test_one_that_computes_in_one_place_while_others_wait_does_not_move() -> None:
    spins = Seen(now=SLEEPS, cpu=(0, 2, 12, 14), main_cpu=(0, 2, 12, 14))
    assert movement(spins) == Movement("", computes=True)
    assert movement(spins, other=spins) == Movement("it computes", computes=True)
    assert movement(spins, other=None) == Movement("it computes", computes=True)
    # One that waits and moves waits for nobody.
    busy = Seen(now=collective(), cpu=in_last(0.42))
    assert movement(spins, other=busy) == Movement("it computes", computes=True)


@pytest.mark.parametrize(("cpu", "computes"), [(0.42, True), (0.4, False)])
def test_from_when_on_it_computes(cpu: float, *, computes: bool) -> None:
    one = Seen(now=SLEEPS, cpu=in_last(cpu), main_cpu=in_last(cpu))
    assert movement(one, alone=True) == Movement("", computes=computes)


def test_where_nobody_waits_and_all_sleep_nobody_computes() -> None:
    assert movement(Seen(now=SLEEPS), other=Seen(now=SLEEPS)) == Movement("")


RUNS: Final = (0, 1, 6, 7)


@pytest.mark.parametrize(
    ("asleep", "other", "says"),
    [
        ((0,), WAITS, ""),
        ((), WAITS, "it comes to different calls"),
        ((1,), WAITS, "it comes to different calls"),
        ((0,), Seen(now=collective(), runs=RUNS), "it comes to different calls"),
    ],
    ids=["beside a frozen rank", "nobody slept before", "only itself", "the other ran within the look"],
)
def test_one_that_comes_to_different_calls_and_uses_no_processor(
    asleep: Collection[int], other: Seen, says: str
) -> None:
    """Beside ranks whose main threads don't run at all it polls; else it may be a step that mostly sleeps."""
    one = Seen(now=SLEEPS, samples=200, elsewhere=90, moved=90)
    assert why(one, asleep=asleep, other=other) == says
    for counted in UNCOUNTED:
        assert why(one, asleep=asleep, other=other, counted=counted) == "it comes to different calls"


@pytest.mark.parametrize(("cpu", "says"), [(0.12, "it comes to different calls"), (0.1, "")])
def test_one_that_comes_to_different_calls_and_uses_a_processor(cpu: float, says: str) -> None:
    one = Seen(now=SLEEPS, samples=200, elsewhere=90, moved=90, cpu=in_last(cpu), main_cpu=in_last(cpu))
    assert why(one, asleep=(0,)) == says


@pytest.mark.parametrize(
    ("main_cpu", "elsewhere", "says"),
    [
        # A core for 1 % of the fourteen seconds from the beginning of the look before.
        ((0, 0.02, 0.13, 0.15), 90, "it comes to different calls"),
        ((0, 0.02, 0.12, 0.14), 90, ""),
        ((0, 0.15, 0.15, 0.15), 90, "it comes to different calls"),
        ((0, 0.02, 0.13, 0.15), 0, ""),
    ],
    ids=["works a little", "polls fast", "worked in the look before", "in one place"],
)
def test_one_that_works_a_little_beside_a_frozen_rank_is_none_that_polls(
    main_cpu: Four, elsewhere: int, says: str
) -> None:
    one = Seen(now=SLEEPS, samples=200, elsewhere=elsewhere, moved=elsewhere, cpu=main_cpu, main_cpu=main_cpu)
    assert why(one, asleep=(0,)) == says


@pytest.mark.parametrize(("cpu", "says"), [(0.03, "its worker 5000 works: it comes to different calls"), (0.02, "")])
def test_a_worker_that_works_a_little_beside_a_frozen_rank_is_none_that_polls(cpu: float, says: str) -> None:
    stack = in_worker(GETS_ITEM)
    worker = Seen(now=stack, samples=200, elsewhere=90, moved=90, cpu=in_last(cpu))
    assert why(Seen(now=loader()), workers={5000: worker}, asleep=(0,)) == says


@pytest.mark.parametrize(("wakes", "says"), [(4, "its main thread woke up 4 times between two looks"), (3, "")])
def test_beside_a_frozen_rank_a_few_wakes_are_polling(wakes: int, says: str) -> None:
    assert why(Seen(now=SLEEPS, wakes=in_between(wakes)), asleep=(0,)) == says


# --- ranks that wait for the others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "cpu", "says"),
    [
        ("gloo", 0.42, "it computes in broadcast (train.py:44)"),
        ("gloo", 0.4, ""),
        ("nccl", 2.0, ""),
        ("nccl and gloo", 2.0, ""),
        ("", 2.0, "it computes in broadcast (train.py:44)"),
    ],
)
@pytest.mark.parametrize("alone", [True, False], ids=["one look", "two looks"])
def test_over_nccl_who_waits_spins(backend: str, cpu: float, says: str, *, alone: bool) -> None:
    one = Seen(now=collective("broadcast", 44), cpu=(0, cpu, 6 * cpu, 7 * cpu), main_cpu=(0, cpu, 6 * cpu, 7 * cpu))
    assert movement(one, backend=backend, alone=alone) == Movement(says, waits=True)


@pytest.mark.parametrize(
    ("now", "backend", "activity"),
    [
        (own("item", 50), "nccl", RankActivity.PERHAPS),
        ((Frame("synchronize", f"{TORCH}/cuda/__init__.py", 900), *own()), "gloo", RankActivity.PERHAPS),
        (backward(), "nccl", RankActivity.PERHAPS),
        (destroying(), "gloo", RankActivity.LEFT),
        (collective("broadcast"), "gloo", RankActivity.WAITS),
    ],
)
def test_who_perhaps_waits_or_has_left_waits(now: Stack, backend: str, activity: RankActivity) -> None:
    one = Seen(now=now)
    assert states_of(deep_look(1, one, backend=backend).hang)[1].activity is activity
    assert movement(one, backend=backend) == Movement("", waits=True)


@pytest.mark.parametrize(
    ("backend", "cpu", "main_cpu", "says"),
    [("gloo", 0.42, 0.0, "its other threads use 0.2 cores"), ("nccl", 0.42, 0.0, ""), ("gloo", 0.42, 0.42, "")],
)
def test_over_nccl_other_threads_spin_as_well(backend: str, cpu: float, main_cpu: float, says: str) -> None:
    """A process that waits for another one waits for no GPU, so that it isn't taken for one that waits in NCCL."""
    one = Seen(
        now=SLEEPS,
        waits_in="do_wait",
        cpu=(0, cpu, 6 * cpu, 7 * cpu),
        main_cpu=(0, main_cpu, 6 * main_cpu, 7 * main_cpu),
    )
    found = movement(one, backend=backend)
    assert found == Movement(says, computes=not says)


@pytest.mark.parametrize(
    ("earlier", "says"),
    [
        (collective("broadcast", 44), ""),
        (collective("broadcast", 45), "it was in broadcast (train.py:45) before, and is in broadcast (train.py:44)"),
        (collective("all_gather", 44), "it was in all_gather (train.py:44) before, and is in broadcast (train.py:44)"),
        (own("main", 44), "it was in main (train.py:44) before, and is in broadcast (train.py:44)"),
        ((), ""),
    ],
    ids=["the same call", "another line", "another collective", "no collective", "not read before"],
)
def test_one_that_waits_was_in_another_call_before(earlier: Stack, says: str) -> None:
    one = Seen(earlier=earlier, now=collective("broadcast", 44))
    assert movement(one) == Movement(says, waits=True)
    assert movement(one, alone=True) == Movement("", waits=True)


@pytest.mark.parametrize(("amount", "says"), [(64 * KIB + 1, "it moved 64 KiB"), (64 * KIB, "")])
def test_one_that_has_left_still_writes(amount: int, says: str) -> None:
    assert movement(Seen(now=destroying(), moved_bytes=in_last(amount))) == Movement(says, waits=True)


@pytest.mark.parametrize(("amount", "moves"), [(64 * KIB + 1, True), (64 * KIB, False)])
def test_one_that_moves_bytes_in_a_collective_goes_on(amount: int, *, moves: bool) -> None:
    found = movement(Seen(now=collective("broadcast"), moved_bytes=in_last(amount)))
    assert found == (Movement("it goes on") if moves else Movement("", waits=True))


# --- ranks of which little can be seen, or nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=()), False),
        (Seen(now=(), wakes=in_last(1)), True),
        (Seen(now=(), moved_bytes=in_last(1)), True),
        (Seen(now=(), moved_bytes=in_last(-1)), False),
        (Seen(now=(), cpu=in_last(0.03)), True),
        (Seen(now=(), cpu=in_last(0.02)), False),
        (Seen(now=(), wakes=in_between(1)), True),
        (Seen(now=(), moved_bytes=in_between(1)), True),
        (Seen(now=(), cpu=in_between(1)), True),
        (Seen(now=(), earlier=own(), wakes=in_between(1)), True),
        (Seen(now=(), earlier=own()), False),
    ],
)
def test_without_a_stack_only_what_does_nothing_at_all_is_still(one: Seen, *, says: bool) -> None:
    assert why(one) == ("it does something, and its stack can't be read" if says else "")
    within = any(counts[2] != counts[3] for counts in (one.wakes, one.moved_bytes, one.cpu))
    assert bool(why(one, alone=True)) is bool(says and within)


@pytest.mark.parametrize(
    ("of_one", "says"),
    [
        (rank(1, gone="no such process"), ""),
        (rank(1, own(), state="T", cores=1.0), ""),
        (WatchedRank(rank=1), "whether it moved can't be told"),
        (WatchedRank(rank=1, watched=Watched(pid=PID, looks=(RankLook(frames=own()),))), "whether it moved can't be told"),
    ],
    ids=["gone", "stopped", "never seen", "seen once"],
)  # fmt: skip
def test_what_can_do_nothing_and_what_was_not_seen(of_one: WatchedRank, says: str) -> None:
    looked = hang(rank(0, collective()), of_one)
    assert movements(DeepLook(began=0.0, ended=2.0, hang=looked), None, ())[1] == Movement(says)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=SLEEPS, states="DDDD"), ""),
        (Seen(now=SLEEPS, states="DDDD", moved_bytes=in_last(100 * KIB)), "it read or wrote 100 KiB"),
        (Seen(now=SLEEPS, states="DDDD", faults=in_last(1)), "it read 1 page of files"),
        (Seen(now=SLEEPS, states="DDDD", wakes=in_between(1)), "its main thread woke up 1 time between two looks"),
        (Seen(now=collective("broadcast"), states="DDDD"), ""),
    ],
)
def test_one_that_the_kernel_holds_may_read_from_a_slow_disk(one: Seen, says: str) -> None:
    """What is mapped is read page by page, and none of that is in the bytes that a process has read."""
    held = states_of(deep_look(1, one).hang)[1].activity is RankActivity.HELD
    assert held is not any(one.moved_bytes)
    assert why(one) == says


# --- a rank that waits for its DataLoader -------------------------------------------------------------------------------------

READS: Final = in_worker(GETS_ITEM)
WORKER: Final = 5000


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=loader()), ""),
        (Seen(now=loader(), main_bytes=in_last(1)), "batches come"),
        (Seen(now=loader(), main_bytes=in_between(1)), "batches come"),
        (Seen(now=loader(), cpu=in_last(0.42)), "batches come"),
        (Seen(now=loader(), cpu=in_last(0.40)), ""),
        (Seen(now=loader(), moved_bytes=in_last(1)), "it read 1 B"),
        (Seen(now=loader(), moved_bytes=in_between(1)), "it read 1 B"),
        (Seen(now=loader(), resident=in_last(MIB)), ""),
    ],
)
def test_whether_batches_come(one: Seen, says: str) -> None:
    assert why(one, workers={WORKER: Seen(now=READS)}) == says
    assert why(one) == says


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (Seen(now=READS), ""),
        (Seen(now=READS, moved_bytes=in_last(64 * KIB + 1)), "its worker 5000 works: it read or wrote 64 KiB"),
        (Seen(now=READS, moved_bytes=in_between(64 * KIB + 1)), "its worker 5000 works: it read or wrote 64 KiB"),
        (Seen(now=READS, moved_bytes=in_last(64 * KIB)), ""),
        (Seen(now=READS, samples=200, elsewhere=9), "its worker 5000 works: it comes to different calls"),
        (Seen(now=READS, earlier=in_worker(Frame("decode", "/home/ada/data.py", 30))), "its worker 5000 works: it was in decode"),
        (Seen(now=READS, wakes=in_between(4)), "its worker 5000 works: its main thread woke up 4 times"),
        (Seen(now=READS, wakes=in_between(3)), ""),
        (Seen(now=READS, cpu=(0, 2, 12, 14)), ""),
        (Seen(now=in_worker(), waits_in="pipe_read"), ""),
        (Seen(now=(), wakes=in_last(1)), "its worker 5000 works: it does something, and its stack can't be read"),
        (Seen(now=()), ""),
        (Seen(now=IDLE_WORKER, wakes=in_between(50)), ""),
    ],
    ids=[
        "stands", "reads", "read between", "reads little", "different calls", "elsewhere before", "awake", "polls", "endless loop",
        "in the loop itself", "unseen", "unseen and still", "idle",
    ],
)  # fmt: skip
def test_its_workers_count(worker: Seen, says: str) -> None:
    found = why(Seen(now=loader()), workers={WORKER: worker})
    assert found.startswith(says)
    assert bool(found) is bool(says)


def test_one_worker_that_works_is_enough() -> None:
    workers = {WORKER: Seen(now=READS), WORKER + 1: Seen(now=READS, moved_bytes=in_last(MIB))}
    assert why(Seen(now=loader()), workers=workers) == "its worker 5001 works: it read or wrote 1 MiB"


def test_a_worker_that_was_not_there_before_is_judged_by_this_look_alone() -> None:
    worker = Seen(now=READS, wakes=in_between(50))
    before = deep_look(0, Seen(now=loader()), workers={WORKER + 1: worker})
    assert movements(deep_look(1, Seen(now=loader()), workers={WORKER: worker}), before, ())[1].why == ""


def test_a_worker_that_was_seen_once() -> None:
    one = msgspec.structs.replace(rank(1, loader()), workers=(Watched(pid=WORKER, looks=(RankLook(frames=READS),)),))
    looked = hang(rank(0, collective()), one)
    told = movements(DeepLook(began=0.0, ended=2.0, hang=looked), None, ())
    assert told[1].why == "whether its worker 5000 moved can't be told"


# --- what a rank has started --------------------------------------------------------------------------------------------------


def helpers(cpu: Four = NEVER, moved: Four = NEVER, pids: Sequence[Collection[int]] = ((6000,),) * 4) -> Any:
    """What has been counted of them by each of the moments."""
    return [
        Helpers(pids=frozenset(pids[moment]), cpu=cpu[moment], transferred=int(MIB + moved[moment]))
        for moment in range(4)
    ]


WAITS_FOR_CHILD: Final[Stack] = (Frame("Popen.wait", f"{LIB}/subprocess.py", 1264), *own("upload", 70))


@pytest.mark.parametrize(
    ("now", "started", "says"),
    [
        (SLEEPS, helpers(), ""),
        # From the beginning of the look before: fourteen seconds.
        (SLEEPS, helpers(cpu=in_last(2.9)), "processes that it has started use 0.2 cores, and moved 0 B"),
        (SLEEPS, helpers(cpu=in_last(2.8)), ""),
        (SLEEPS, helpers(cpu=in_between(3)), "processes that it has started use 0.2 cores, and moved 0 B"),
        (SLEEPS, helpers(cpu=(5, 5, 5, 5)), ""),
        (SLEEPS, helpers(moved=in_last(MIB + 1)), "processes that it has started use 0.0 cores, and moved 1 MiB"),
        (SLEEPS, helpers(moved=in_last(MIB)), ""),
        (SLEEPS, helpers(pids=((6000,), (6000,), (6000,), (6000, 6001))), "it has started other processes"),
        (SLEEPS, helpers(pids=((6000, 6001), (6000,), (6000,), (6000,))), ""),
        (SLEEPS, helpers(cpu=in_last(-2.0), moved=in_last(-MIB)), ""),
        (SLEEPS, helpers(cpu=in_last(2.9), moved=in_last(-MIB)), "processes that it has started use 0.2 cores, and moved 0 B"),
        # Where it waits for them, the least counts.
        (WAITS_FOR_CHILD, helpers(cpu=in_last(0.75)), "processes that it has started use 0.1 cores, and moved 0 B"),
        (WAITS_FOR_CHILD, helpers(cpu=in_last(0.7)), ""),
        (WAITS_FOR_CHILD, helpers(moved=in_last(1)), "processes that it has started use 0.0 cores, and moved 1 B"),
        (WAITS_FOR_CHILD, helpers(), ""),
        (saving(), helpers(moved=in_last(1)), "processes that it has started use 0.0 cores, and moved 1 B"),
        (loader(), helpers(moved=in_last(MIB + 1)), "processes that it has started use 0.0 cores, and moved 1 MiB"),
        (loader(), helpers(moved=in_last(MIB)), ""),
        # Beside a rank that waits in a collective a logger may do what it likes.
        (collective("broadcast"), helpers(moved=in_last(100 * MIB)), ""),
        (SLEEPS, [None, None, None, Helpers(pids=frozenset({6000}))], ""),
        (SLEEPS, [Helpers(pids=frozenset({6000})), None, None, None], ""),
    ],
)  # fmt: skip
def test_what_it_has_started(now: Stack, started: Sequence[Helpers | None], says: str) -> None:
    assert why(Seen(now=now), helpers=started) == says


@pytest.mark.parametrize(
    ("cpu", "says"), [(0.42, "processes that it has started use 0.2 cores, and moved 0 B"), (0.4, "")]
)
def test_what_it_has_started_within_the_only_look(cpu: float, says: str) -> None:
    before = (0.0, 50.0, 0.0, cpu)
    assert why(Seen(now=SLEEPS), helpers=helpers(cpu=before), alone=True) == says


def test_other_kinds_of_places_in_which_it_waits_for_what_it_has_started() -> None:
    compiles = (Frame("wait", f"{TORCH}/_inductor/async_compile.py", 300), *own("train", 70))
    loads = (Frame("_load", f"{TORCH}/serialization.py", 2000), *own("resume", 70))
    for stack in (compiles, loads):
        assert why(Seen(now=stack), helpers=helpers(moved=in_last(1))).endswith("moved 1 B")


def test_what_is_said_of_one_that_moves() -> None:
    place = place_of(RankLook(frames=own("evaluate", 50)))
    assert words_for(Movement("it computes"), place) == "in evaluate (train.py:50): it computes"
