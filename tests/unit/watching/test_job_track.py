"""When a job is taken for one that hangs: by counters of every look, and by made-up deep looks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ddpdoctor.facts.hang import Frame, WatchedRank
from ddpdoctor.watching.counters import Counters
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.job_track import START_SECONDS, JobTrack, WatchLimits
from tests.support.hangs import collective, hang, loader, own, rank, rendezvous, saving, watched

LIMITS = WatchLimits(confirm=600.0, every=10.0)
EVALUATES = (*own("forward", 8, "/home/ada/model.py")[:1], *own("evaluate", 50))


def counters(now: float, runs: int, main_bytes: int = 0, cpu: float = 1.0) -> Counters:
    return Counters(
        seconds=now,
        state="S",
        runs=runs,
        main_cpu=cpu,
        main_bytes=main_bytes,
        cpu=cpu,
        resident=1 << 28,
        major_faults=0,
    )


class Played:
    """A job of two ranks of which rank 0 waits in all_reduce from second 0 on. other: what rank 1 does, by the second.
    runs: how often its main thread has run by then."""

    def __init__(self, other: Callable[[float], WatchedRank], runs: Callable[[float], int] = lambda _: 7) -> None:
        self.track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001})
        self.other = other
        self.runs = runs
        self.deep_looks = 0

    def until(self, end: float) -> float | None:
        """When it was taken for a hang; None if it was not until then."""
        now = 0.0
        while now < end:
            of_ranks = {0: counters(now, 7), 1: counters(now, self.runs(now))}
            self.track.note(now, of_ranks)
            if self.track.wants_deep_look(now):
                self.deep_looks += 1
                by_pid = {4000 + number: found for number, found in of_ranks.items()}
                looked = hang(rank(0, collective()), self.other(now))
                self.track.note_deep(DeepLook(began=now, ended=now + 2.0, hang=looked, before=by_pid, after=by_pid))
                if self.track.hang_is_due():
                    return now + 2.0
            now += LIMITS.every
        return None


@pytest.mark.parametrize(
    "other",
    [
        rank(1, own("wait_for_data", 12)),
        rank(1, collective("broadcast", 44)),
        rank(1, own(), state="T"),
        rank(1, gone="no such process"),
        rank(1, loader(), workers=[watched(5000, own("read", 3))]),
    ],
    ids=["sleeps", "another collective", "stopped", "gone", "worker stuck"],
)
def test_what_stands_still_is_a_hang_after_the_time_of_confirmation(other: WatchedRank) -> None:
    found = Played(lambda _: other).until(1200.0)
    assert found is not None
    assert 600.0 <= found <= 620.0


@pytest.mark.parametrize(
    "other",
    [
        lambda now: rank(1, own("evaluate", 50 + round(now) % 7), cores=0.9),
        lambda _: rank(1, saving(), moved=1 << 22),
        lambda _: rank(1, loader(), workers=[watched(5000, own("read", 3), moved=1 << 22)]),
    ],
    ids=["evaluates", "saves", "loads"],
)
def test_one_that_works_is_a_pause(other: Callable[[float], WatchedRank]) -> None:
    played = Played(other, runs=lambda now: round(now))
    assert played.until(3600.0) is None
    assert [state.number for state in played.track.held_up_by] == [1]
    # Two seconds of stacks at most every 75: what that costs, the benchmark measures.
    assert 0 < played.deep_looks <= 3600 / LIMITS.between_deep + 1


def test_a_pause_before_a_hang_is_not_part_of_it() -> None:
    found = Played(
        lambda now: rank(1, own("evaluate", 50 + round(now) % 7), cores=0.9) if now < 1000 else rank(1, own()),
        runs=lambda now: round(min(now, 1000.0)),
    ).until(3600.0)
    assert found is not None
    assert 1500.0 <= found <= 1700.0


def test_a_job_whose_ranks_run_is_left_alone() -> None:
    track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001})
    for now in range(0, 3600, 10):
        track.note(float(now), {number: counters(now, now, main_bytes=now * 100) for number in (0, 1)})
        assert not track.wants_deep_look(now)
        assert not track.wants_stacks(now)


def test_one_that_runs_and_says_nothing_is_looked_at_seldom() -> None:
    track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001})
    looks = 0
    for now in range(0, 3600, 10):
        track.note(float(now), {number: counters(now, now) for number in (0, 1)})
        assert not track.wants_deep_look(now)
        if track.wants_stacks(now):
            looks += 1
            track.note_stacks(float(now), {0: own("step", now), 1: own("step", now)})
    assert 0 < looks <= 3600 / LIMITS.silent


def test_a_step_that_sleeps_most_of_the_time_is_told_by_its_bursts() -> None:
    """Sixty seconds a step, in one place for nearly all of them, and nothing is read or written."""
    track = JobTrack(WatchLimits(confirm=120.0, every=5.0), 0.0, {0: 4000, 1: 4001})
    for now in range(0, 3600, 5):
        steps = now // 60
        of_ranks = {number: counters(float(now), 7 + 3 * steps, cpu=1.0 + 0.4 * steps) for number in (0, 1)}
        track.note(float(now), of_ranks)
        if track.wants_deep_look(now):
            by_pid = {4000 + number: found for number, found in of_ranks.items()}
            looked = hang(rank(0, own("wait", 12)), rank(1, own("wait", 12)))
            track.note_deep(DeepLook(began=float(now), ended=now + 2.0, hang=looked, before=by_pid, after=by_pid))
            assert not track.hang_is_due()


@pytest.mark.parametrize("every", [5, 20])
def test_one_that_looks_now_and_then_whether_it_may_go_on_is_still(every: int) -> None:
    played = Played(lambda _: rank(1, own("wait_for_file", 12)), runs=lambda now: 7 + round(now) // every)
    found = played.until(1200.0)
    assert found is not None
    assert 600.0 <= found <= 700.0


def spinning(number: int, now: float) -> WatchedRank:
    """A rank that waits in a collective, as NCCL does: with a core all the while."""
    one = rank(number, collective(), cores=1.0)
    assert one.watched is not None
    looks = tuple(msgspec.structs.replace(look, cpu_seconds=now + look.seconds) for look in one.watched.looks)
    return msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, looks=looks))


def spins(*, gone: int | None = None, unread: int | None = None) -> float | None:
    """When ranks that use a core all the while, and write nothing, are taken for a hang, as a session goes about it; None if never."""
    now = 0.0
    track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001, 2: 4002})
    while now < 3600:
        of_ranks = {number: counters(now, 7 + round(now)) for number in track.ranks if number != gone or now < 300}
        track.note(now, of_ranks)
        deep = track.wants_deep_look(now)
        if not deep and track.wants_stacks(now):
            stacks = {number: () if number == unread else collective() for number in track.living}
            deep = track.note_stacks(now, stacks)
        if deep:
            by_pid = {4000 + number: found for number, found in of_ranks.items()}
            ended = [rank(number, gone="no such process") for number in track.gone]
            looked = hang(*(spinning(number, now) for number in track.living), *ended, backend="nccl")
            track.note_deep(DeepLook(began=now, ended=now + 2.0, hang=looked, before=by_pid, after=by_pid))
            if track.hang_is_due():
                return now + 2.0
        now += LIMITS.every
    return None


def test_one_has_ended_and_the_others_spin() -> None:
    """As over NCCL: those that wait burn a core each, and nothing but their stacks tells that they wait."""
    found = spins(gone=2)
    assert found is not None
    assert 900.0 <= found <= 1300.0


def test_one_stack_that_cannot_be_read_does_not_keep_the_others_from_being_looked_at() -> None:
    assert spins(unread=2) is not None


@pytest.mark.parametrize(
    ("first", "then", "deep"),
    [
        ({0: collective(), 1: own()}, {0: collective(), 1: own()}, True),
        ({0: collective(), 1: own()}, {0: collective()}, True),
        ({0: collective(), 1: ()}, {0: collective(), 1: ()}, True),
        ({0: collective(), 1: own()}, {0: collective(), 1: ()}, True),
        ({0: collective(), 1: own("a")}, {0: collective(), 1: own("b")}, False),
        ({0: (), 1: ()}, {0: (), 1: ()}, False),
        ({}, {}, False),
    ],
    ids=["same", "one gone", "one never read", "one read no more", "one moved", "none read", "none live"],
)
def test_when_stacks_that_were_read_once_ask_for_a_deep_look(
    first: dict[int, tuple[Frame, ...]], then: dict[int, tuple[Frame, ...]], *, deep: bool
) -> None:
    track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001})
    assert not track.note_stacks(100.0, first)
    assert track.note_stacks(200.0, then) is deep


SHORT = WatchLimits(confirm=10.0, every=1.0)


def told_at(track: JobTrack, one: WatchedRank, other: WatchedRank, until: float) -> float | None:
    """When a job whose ranks all sleep there from the beginning is taken for a hang; None if it is not until then."""
    now = track.moved[0]
    while now < until:
        of_ranks = {number: counters(now, 7) for number in (0, 1)}
        track.note(now, of_ranks)
        if track.wants_deep_look(now):
            by_pid = {track.ranks[number]: found for number, found in of_ranks.items()}
            track.note_deep(DeepLook(began=now, ended=now + 2.0, hang=hang(one, other), before=by_pid, after=by_pid))
            if track.hang_is_due():
                return now + 2.0
        now += SHORT.every
    return None


@pytest.mark.parametrize(
    ("stack", "anew", "earliest"),
    [(rendezvous(), True, START_SECONDS), (rendezvous(), False, 10.0), (collective(), True, 10.0)],
    ids=["starts anew", "starts", "trains again"],
)
def test_a_job_that_was_started_anew_may_take_its_time_until_ranks_have_met(
    stack: tuple[Frame, ...], anew: bool, earliest: float
) -> None:
    track = JobTrack(SHORT, 100.0, {0: 4000, 1: 4001}, anew=anew)
    found = told_at(track, rank(0, stack), rank(1, own()), 600.0)
    assert found is not None
    assert earliest <= found - 100.0 <= earliest + 10.0


def test_a_rank_that_was_started_anew_may_take_its_time_as_well() -> None:
    track = JobTrack(SHORT, 100.0, {0: 4000, 1: 4001})
    track.note(101.0, {0: counters(101.0, 7)})
    track.take(102.0, {0: 4000, 1: 5001})
    found = told_at(track, rank(0, rendezvous()), rank(1, own()), 600.0)
    assert found is not None
    assert found >= 102.0 + START_SECONDS


def test_a_look_that_sees_nothing_of_the_work_ends_no_pause() -> None:
    track = JobTrack(LIMITS, 0.0, {0: 4000, 1: 4001})

    def look(now: float, other: WatchedRank) -> list[int]:
        of_ranks = {0: counters(now, 7), 1: counters(now, 7 + round(now))}
        track.note(now, of_ranks)
        by_pid = {4000 + number: found for number, found in of_ranks.items()}
        looked = hang(rank(0, collective()), other)
        track.note_deep(DeepLook(began=now, ended=now + 2.0, hang=looked, before=by_pid, after=by_pid))
        return [state.number for state in track.held_up_by]

    works, seems_to_sleep = rank(1, own("evaluate"), cores=0.9, moved=1 << 22), rank(1, own("evaluate"))
    assert [look(60.0, works), look(120.0, seems_to_sleep), look(180.0, works)] == [[1]] * 3
    track.note(190.0, {0: counters(190.0, 8), 1: counters(190.0, 200)})
    assert track.held_up_by == ()
