"""What the windows of a burn-in say, and what chance alone doesn't."""

from __future__ import annotations

import random
from statistics import median

import msgspec
import pytest

from ddpdoctor.facts.burn_in import MAX_WINDOWS, BurnIn, PaceWindow
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.smoke_training.analysis.burn_in import (
    burnt_seconds,
    deviations,
    fall_of,
    growth_of,
    is_too_short,
    median_of_others,
    slow_ranks,
    throughput,
    throughput_fall,
)
from ddpdoctor.smoke_training.local.rank_progress import RankProgress, merge_windows
from tests.support.smokes import rank_run, smoke_of_ranks

MIB = 1 << 20


def window(
    at: float, steps: float = 100.0, own: float = 0.005, waited: float = 0.0, memory: int = 700 * MIB
) -> PaceWindow:
    return PaceWindow(at=at, steps=steps, own=own, waited=waited, memory=memory)


def burnt(*paces: list[PaceWindow], backend: str = "nccl") -> Smoke:
    fates = {rank: rank_run(rank, pace=tuple(pace)) for rank, pace in enumerate(paces)}
    return smoke_of_ranks(len(paces), fates, backend=backend, burn_in=BurnIn(asked=600.0, batch=64))


def noisy(dice: random.Random, spread: float, count: int = 50) -> list[PaceWindow]:
    return [
        window(10.0 * place, 100 * dice.gauss(1, spread), 0.005 * dice.gauss(1, spread))
        for place in range(1, count + 1)
    ]


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.15])
def test_chance_alone_is_no_finding(spread: float) -> None:
    """Many runs of four ranks without any fault, by any of the three looks."""
    dice = random.Random(7)
    alarms = 0
    for _ in range(100):
        ran = burnt(*(noisy(dice, spread) for _ in range(4)))
        alarms += bool(throughput_fall(ran)) + len(slow_ranks(ran))
        sizes = [700.0 * MIB * dice.gauss(1, spread) for _ in range(40)]
        alarms += growth_of([10.0 * place for place in range(40)], sizes, 64 * MIB) is not None
    assert alarms == 0


def test_a_trend_is_told_from_chance() -> None:
    assert deviations(list(range(20))) > 5
    assert deviations([20 - value for value in range(20)]) < -5
    assert abs(deviations([1.0, 2.0] * 10)) < 1
    assert deviations([1.0] * 20) == 0
    assert deviations([]) == 0


def test_a_step_down_is_told_with_its_moment_and_a_slope_without() -> None:
    times = [float(place) for place in range(40)]
    step = fall_of(times, [100.0] * 20 + [80.0] * 20, 0.05)
    assert step is not None
    assert (step.since, round(step.share, 2)) == (19.0, 0.2)
    slope = fall_of(times, [100.0 - place for place in range(40)], 0.05)
    assert slope is not None
    assert slope.since == 0
    assert fall_of(times, [100.0 - place / 20 for place in range(40)], 0.05) is None
    assert fall_of(times[:5], [100.0, 90.0, 80.0, 70.0, 60.0], 0.05) is None


def test_waiting_for_cores_is_no_fall_but_a_longer_own_part_is() -> None:
    """Other programs take the cores: the throughput is halved, and nothing is wrong with this host."""
    waiting = [
        window(10.0 * place, 100 if place < 25 else 50, waited=0.05 if place < 20 else 0.6) for place in range(1, 51)
    ]
    assert throughput_fall(burnt(waiting, waiting, backend="gloo")) is None
    slower = [window(10.0 * place, 50, own=0.005 + 0.0002 * place, waited=0.6) for place in range(1, 51)]
    assert throughput_fall(burnt(slower, slower, backend="gloo")) is not None


def test_what_throughput_fell_from_is_not_the_warm_ups() -> None:
    """By the throughput itself, and where the ranks wait for cores by their own part of a step."""
    for waited in (0.0, 0.6):
        paces = [
            window(10.0 * place, 20 if place <= 7 else 100 if place < 30 else 50, 0.005 if place < 30 else 0.01, waited)
            for place in range(1, 51)
        ]
        fall = throughput_fall(burnt(paces, paces, backend="gloo"))
        assert fall is not None
        assert (fall.first, fall.last) == (100 * 64 * 2, 50 * 64 * 2)


def test_of_two_slow_ranks_both_are_told_and_one_that_got_over_it_is_not() -> None:
    usual = [window(10.0 * place) for place in range(1, 51)]
    slow = [window(10.0 * place, own=0.007) for place in range(1, 51)]
    later = [window(10.0 * place, own=0.005 if place < 30 else 0.007) for place in range(1, 51)]
    over = [window(10.0 * place, own=0.007 if place < 30 else 0.005) for place in range(1, 51)]
    found = {each.run.rank: each.since for each in slow_ranks(burnt(usual, slow, usual, later, usual, over))}
    assert set(found) == {1, 3}
    assert found[1] == 0
    assert 280 <= found[3] <= 310


def test_the_median_of_the_others_is_that_of_all_values_but_one() -> None:
    dice = random.Random(11)
    for _ in range(2000):
        # Of few values, so that some are equal.
        values = [dice.choice([dice.random(), 0.25, 0.5]) for _ in range(dice.randint(2, 9))]
        for place, value in enumerate(values):
            assert median_of_others(sorted(values), value) == median(values[:place] + values[place + 1 :])


def test_a_single_rank_is_compared_with_nobody() -> None:
    assert slow_ranks(burnt([window(10.0 * place, own=place) for place in range(1, 51)])) == []


def test_figures_that_make_no_sense_break_nothing() -> None:
    """Another host may say anything."""
    odd = [window(0.0, 0.0, 0.0, -1.0, 0) for _ in range(MAX_WINDOWS)]
    wild = [window(-1e300, 1e300, -5.0, 1.0, -(1 << 60)) for _ in range(MAX_WINDOWS)]
    for ran in (burnt(odd, odd), burnt(wild, odd), burnt(odd, wild, wild), burnt([]), burnt([window(1.0)], [])):
        throughput_fall(ran)
        slow_ranks(ran)
        is_too_short(ran)
        throughput(ran)
        burnt_seconds(ran)


def test_however_many_windows_a_rank_tells_sixty_are_kept_and_nothing_is_lost() -> None:
    rank = RankProgress(0, 0)
    for second in range(1, 100_001):
        rank.add_window(window(float(second), steps=50.0 if second <= 50_000 else 100.0))
        assert len(rank.windows) <= MAX_WINDOWS
    assert len(msgspec.json.encode(rank.windows)) < 8000
    whole = rank.windows
    began = [0.0, *(each.at for each in whole)]
    steps = sum((each.at - start) * each.steps for each, start in zip(whole, began, strict=False))
    assert steps == pytest.approx(whole[-1].at * 75, rel=0.05)
    assert whole[0].steps == 50
    lengths = [each.at - start for each, start in zip(whole, began, strict=False)]
    assert len(set(lengths[:-1])) == 1
    assert whole[-1].steps == 100


def test_two_windows_become_one_by_their_lengths() -> None:
    one = merge_windows(10.0, window(13.0, 10.0, 0.01, 0.5, 1), window(14.0, 50.0, 0.02, 0.1, 2))
    assert (one.at, one.steps, one.memory) == (14.0, 20.0, 2)
    assert one.waited == pytest.approx(0.4)
    assert merge_windows(0.0, window(1.0, waited=-1.0), window(2.0)).waited == -1
