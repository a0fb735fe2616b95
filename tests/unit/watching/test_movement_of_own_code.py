"""Whether a rank in code of its own moves: of each sign what just tells it, and what just doesn't.

A rank is frozen when its main thread hasn't run at all, neither since the look before (`asleep`) nor within this one (`runs`): beside
it a rank that now and then wakes up, and hardly works, is taken for one that polls, as everybody waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
import pytest

from ddpdoctor.facts.hang import Frame, WatchedRank
from ddpdoctor.knowledge.torch_frames import place_of
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.movement import Movement, movements
from tests.support.deep_looks import (
    ACQUIRES,
    KIB,
    MIB,
    MOMENTS,
    PID,
    SLEEPS,
    WAITS,
    AtMoments,
    Seen,
    deep_look,
    in_between,
    in_last,
    movement,
    why,
    why_of_new_process,
)
from tests.support.hangs import LIB, TORCH, Stack, collective, hang, loader, own

# --- signs within a look, and from one to the next ----------------------------------------------------------------------------

UNCOUNTED: Final = ((True, True, False, True), (True, True, True, False), (False,) * 4)
"""In which looks the kernel's counters were read: in this one not at its beginning, or not at its end, or never."""


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


# --- where it was before ------------------------------------------------------------------------------------------------------

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
    main_cpu: AtMoments, elsewhere: int, says: str
) -> None:
    one = Seen(now=SLEEPS, samples=200, elsewhere=elsewhere, moved=elsewhere, cpu=main_cpu, main_cpu=main_cpu)
    assert why(one, asleep=(0,)) == says


@pytest.mark.parametrize(("wakes", "says"), [(4, "its main thread woke up 4 times between two looks"), (3, "")])
def test_beside_a_frozen_rank_a_few_wakes_are_polling(wakes: int, says: str) -> None:
    assert why(Seen(now=SLEEPS, wakes=in_between(wakes)), asleep=(0,)) == says
