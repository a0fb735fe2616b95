"""Which ranks wait, which move, and which can do nothing."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.facts.hang import WatchedRank
from ddpdoctor.hang.rank_states import RankActivity, states_of
from tests.support.hangs import backward, collective, destroying, hang, loader, own, rank, saving


def activity(one: WatchedRank, backend: str = "gloo") -> RankActivity:
    return states_of(hang(one, backend=backend))[0].activity


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rank(0, collective()), RankActivity.WAITS),
        (rank(0, collective(), moved=1 << 20), RankActivity.MOVES),
        (rank(0, collective("all_reduce", 40), collective("all_reduce", 44)), RankActivity.MOVES),
        (rank(0, own(), collective()), RankActivity.MOVES),
        (rank(0, collective(), own()), RankActivity.MOVES),
        (rank(0, backward(), cores=1.0), RankActivity.ELSEWHERE),
        (rank(0, own("evaluate", 50), own("evaluate", 51)), RankActivity.ELSEWHERE),
        (rank(0, own(), waits_in="hrtimer_nanosleep"), RankActivity.ELSEWHERE),
        (rank(0, loader()), RankActivity.ELSEWHERE),
        (rank(0, destroying()), RankActivity.LEFT),
        (rank(0, own(), state="T"), RankActivity.STOPPED),
        (rank(0, state="t"), RankActivity.STOPPED),
        (rank(0, own(), state="D"), RankActivity.HELD),
        (rank(0, saving(), state="D", moved=90 << 20), RankActivity.ELSEWHERE),
        (rank(0, gone="no such process"), RankActivity.GONE),
        (rank(0, state="Z"), RankActivity.GONE),
        (rank(0), RankActivity.UNSEEN),
        (WatchedRank(rank=0), RankActivity.UNSEEN),
    ],
)
def test_over_gloo(one: WatchedRank, expected: RankActivity) -> None:
    assert activity(one) is expected


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rank(0, own(), state="R", waits_in="", cores=1.0), RankActivity.PERHAPS),
        (rank(0, backward(), state="R", waits_in="", cores=1.0), RankActivity.PERHAPS),
        (rank(0, collective("barrier"), state="R", waits_in="", cores=1.0), RankActivity.WAITS),
        (rank(0, own(), waits_in="hrtimer_nanosleep"), RankActivity.ELSEWHERE),
        (rank(0, own("f", 1), own("f", 2), cores=1.0), RankActivity.ELSEWHERE),
    ],
)
def test_over_nccl_a_line_that_seems_busy_may_wait(one: WatchedRank, expected: RankActivity) -> None:
    assert activity(one, "nccl") is expected


def test_one_look_tells_nothing() -> None:
    one = rank(0, collective())
    assert one.watched
    once = msgspec.structs.replace(one.watched, looks=one.watched.looks[:1])
    assert activity(msgspec.structs.replace(one, watched=once)) is RankActivity.UNSEEN


def test_a_stack_that_was_another_one_in_between_moves() -> None:
    one = rank(0, collective())
    assert one.watched
    sampled = msgspec.structs.replace(one.watched, samples=300, elsewhere=40)
    assert activity(msgspec.structs.replace(one, watched=sampled)) is RankActivity.MOVES
    still = msgspec.structs.replace(one.watched, samples=300, elsewhere=1)
    assert activity(msgspec.structs.replace(one, watched=still)) is RankActivity.WAITS


def test_who_calls_others_is_named_by_what_it_was_in_all_the_while() -> None:
    one = rank(0, own("read", 5), cores=0.8)
    assert one.watched
    within = own("evaluate", 50)
    sampled = msgspec.structs.replace(one.watched, samples=300, elsewhere=200, within=within)
    (found,) = states_of(hang(msgspec.structs.replace(one, watched=sampled)))
    assert found.place.frame == within[0]
    assert found.progress


def test_a_loop_that_only_waits_makes_no_progress() -> None:
    """`while not there: time.sleep(0.1)` calls others now and then."""
    one = rank(0, own("wait_for_file", 30), waits_in="hrtimer_nanosleep", cores=0.01)
    assert one.watched
    sampled = msgspec.structs.replace(one.watched, samples=300, elsewhere=9)
    (found,) = states_of(hang(msgspec.structs.replace(one, watched=sampled)))
    assert not found.progress
