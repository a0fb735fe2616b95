"""Whether a rank moves that waits for the others, that the kernel holds, or of which little is seen."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.hang import Frame, RankLook, Watched, WatchedRank
from ddpdoctor.hang.rank_states import RankActivity, states_of
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.movement import Movement, movements
from tests.support.deep_looks import KIB, PID, SLEEPS, Seen, deep_look, in_between, in_last, movement, why
from tests.support.hangs import TORCH, Stack, backward, collective, destroying, hang, own, rank

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
