"""What the windows of a burn-in say: whether throughput falls, which rank is slower than the others, whose memory grows. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final, TypeVar

import msgspec

from ddpdoctor.facts.burn_in import HostWatch, WatchedGpu
from ddpdoctor.facts.smoke import RankRun, Smoke

T = TypeVar("T")

MIN_WINDOWS: Final = 12
"""With fewer nothing is told from chance."""
WARM_UP_SHARE: Final = 0.15
"""The part of the windows that is left out at the beginning: memory is taken, and clocks settle."""

TREND_DEVIATIONS: Final = 3.3
"""Deviations of Mann and Kendall's count from what chance gives: once in two thousand trends that are none."""

LEAST_FALL: Final = {"nccl": 0.05, "gloo": 0.25}
"""The part of the throughput that must be gone. CPUs share caches and clocks with whatever else runs."""
LEAST_RATIO: Final = {"nccl": 1.1, "gloo": 1.5}
"""Of a rank's own time to that of the others in the middle."""
NOISE_FACTOR: Final = 2.0
"""By so many times what it differs from window to window it must be off, too."""
SLOW_SHARE: Final = 0.85
"""Windows since a moment in which a slow rank is slow."""
LEAST_SLOW_SHARE: Final = 0.25
"""Windows at the end that must be so."""
THROUGHOUT_SHARE: Final = 0.2

MUCH_WAITING: Final = 0.15
"""The part of the time in which a rank waited for a core, from which on throughput says what else runs on the host."""

LEAST_GROWTH_BYTES: Final = 64 << 20
LEAST_GROWTH_SHARE: Final = 0.05
LEAST_HOST_GROWTH_BYTES: Final = 1 << 30
MIN_HOST_SECONDS: Final = 120.0
"""In less other programs come and go."""


class Fall(msgspec.Struct, frozen=True):
    """Something went down: its middle in the first and in the last third, and the seconds since when; 0: all along."""

    first: float
    last: float
    since: float = 0.0

    @property
    def share(self) -> float:
        return 1 - self.last / self.first if self.first else 0.0


class SlowRank(msgspec.Struct, frozen=True):
    """A rank whose own part of a step takes longer than the others'. since: seconds; 0: throughout. own, others: seconds."""

    run: RankRun
    ratio: float
    since: float
    own: float
    others: float


class Growth(msgspec.Struct, frozen=True):
    """Bytes at first and at last, and a second."""

    first: float
    last: float
    pace: float


def median(values: Iterable[float]) -> float:
    """The middle of values. All who load the checks would wait for `statistics`, and few need it."""
    from statistics import median as middle

    return middle(values)


def throughput(smoke: Smoke) -> list[tuple[float, float]]:
    """Seconds since the burn-in began, and samples a second of all ranks together, by window."""
    windows = next((run.pace for run in smoke.ranks if run.pace), ())
    samples = max(smoke.burn_in.batch, 1) * max(smoke.world_size, 1)
    return [(window.at, window.steps * samples) for window in windows]


def burnt_seconds(smoke: Smoke) -> float:
    """Seconds for which the ranks are known to have trained."""
    return max((window.at for run in smoke.ranks for window in run.pace), default=0.0)


def settled(windows: Sequence[T]) -> Sequence[T]:
    """Those behind the warm-up."""
    return windows[max(1, round(len(windows) * WARM_UP_SHARE)) :]


def is_too_short(smoke: Smoke) -> bool:
    """Whether there are too few windows to tell anything from chance."""
    return min((len(settled(run.pace)) for run in smoke.ranks if run.pace), default=0) < MIN_WINDOWS


def waiting_share(smoke: Smoke) -> float:
    """The part of the time in which the ranks waited for a core, in the middle of all windows of the one that did most; 0 where
    the kernel doesn't say."""
    return max((median(max(w.waited, 0.0) for w in run.pace) for run in smoke.ranks if run.pace), default=0.0)


def deviations(values: Sequence[float]) -> float:
    """How far Mann and Kendall's count of pairs that rise, less those that fall, is from what chance gives, in standard deviations."""
    count = len(values)
    if count < 4:
        return 0.0
    balance = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    return float(balance / (count * (count - 1) * (2 * count + 5) / 18) ** 0.5)


def fall_of(times: Sequence[float], values: Sequence[float], least: float) -> Fall | None:
    """Whether values go down by at least that part, and not by chance."""
    if len(values) < MIN_WINDOWS:
        return None
    third = len(values) // 3
    fall = Fall(median(values[:third]), median(values[-third:]), _since(times, values))
    if fall.share < least or deviations(values) > -TREND_DEVIATIONS:
        return None
    return fall


def _since(times: Sequence[float], values: Sequence[float]) -> float:
    """The moment of a step down between two level parts; 0.0 where there is none, and it goes down all along."""
    count = len(values)
    splits = range(4, count - 4)
    best = min(splits, key=lambda at: _spread(values[:at]) + _spread(values[at:]), default=0)
    if not best:
        return 0.0
    level = all(abs(deviations(part)) < TREND_DEVIATIONS for part in (values[:best], values[best:]))
    return times[best - 1] if level else 0.0


def _spread(values: Sequence[float]) -> float:
    """How far values are from their middle, together."""
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def throughput_fall(smoke: Smoke) -> Fall | None:
    """Whether the ranks train ever fewer samples. Where they wait for cores much, their own part of a step alone counts, without that."""
    least = LEAST_FALL.get(smoke.backend, LEAST_FALL["gloo"])
    if waiting_share(smoke) < MUCH_WAITING:
        told = settled(throughput(smoke))
        return fall_of([at for at, _ in told], [samples for _, samples in told], least)
    own = own_times(smoke)
    if not own:
        return None
    # The slowest rank sets the pace.
    slowest = [max(times) for times in zip(*own.values(), strict=True)]
    if not all(slowest):
        return None
    fall = fall_of(_moments(smoke), [1 / seconds for seconds in slowest], least)
    if fall is None:
        return None
    before = median(samples for _, samples in settled(throughput(smoke))[: len(slowest) // 3]) or 1.0
    return msgspec.structs.replace(fall, first=before, last=before * (1 - fall.share))


def own_times(smoke: Smoke) -> Mapping[int, Sequence[float]]:
    """By rank: seconds of its own part of a step, window by window, as many as all ranks have."""
    windows = {run.rank: settled(run.pace) for run in smoke.ranks if run.pace}
    common = min(map(len, windows.values()), default=0)
    return {rank: [window.own for window in each[:common]] for rank, each in windows.items()}


def _moments(smoke: Smoke) -> list[float]:
    return [window.at for window in settled(next((run.pace for run in smoke.ranks if run.pace), ()))]


def slow_ranks(smoke: Smoke) -> list[SlowRank]:
    """The ranks whose own part of a step takes longer than the others', throughout or from some moment to the end."""
    own = own_times(smoke)
    at_once = [sorted(times) for times in zip(*own.values(), strict=True)]
    if len(own) < 2 or len(at_once) < MIN_WINDOWS:
        return []
    least = LEAST_RATIO.get(smoke.backend, LEAST_RATIO["gloo"])
    moments = _moments(smoke)
    runs = {run.rank: run for run in smoke.ranks}
    found = []
    for rank, times in own.items():
        usual = [median_of_others(everyones, mine) for everyones, mine in zip(at_once, times, strict=True)]
        ratios = [mine / max(theirs, 1e-9) for mine, theirs in zip(times, usual, strict=True)]
        begin = _begin_of_slowness(_smoothed(ratios), max(least, 1 + NOISE_FACTOR * _noise(ratios)))
        if begin is None:
            continue
        since = 0.0 if begin <= len(ratios) * THROUGHOUT_SHARE else moments[begin]
        found.append(
            SlowRank(runs[rank], median(ratios[begin:]), since, own=median(times[begin:]), others=median(usual[begin:]))
        )
    return found


def median_of_others(ordered: Sequence[float], own: float) -> float:
    """The median of values without one of them.

    Args:
        ordered: all of them, two at least, sorted.
        own: the one.
    """
    place = bisect_left(ordered, own)
    others = len(ordered) - 1
    low, high = (ordered[middle + (middle >= place)] for middle in ((others - 1) // 2, others // 2))
    return (low + high) / 2 if others % 2 == 0 else low


def _smoothed(values: Sequence[float]) -> list[float]:
    """The middle of each value and its neighbours."""
    return [median(values[max(0, place - 1) : place + 2]) for place in range(len(values))]


def _noise(values: Sequence[float]) -> float:
    """How far a value is from the next, in the middle of all: a step between two levels doesn't count."""
    return median(abs(later - earlier) for earlier, later in pairwise(values))


def _begin_of_slowness(ratios: Sequence[float], least: float) -> int | None:
    """The first window from which on nearly all to the end are slow; None where there is none, or too few of them."""
    slow = [ratio >= least for ratio in ratios]
    enough = max(5, len(ratios) * LEAST_SLOW_SHARE)
    for place, is_slow in enumerate(slow):
        rest = slow[place:]
        if len(rest) < enough:
            return None
        if is_slow and sum(rest) >= SLOW_SHARE * len(rest) and all(rest[-2:]):
            return place
    return None


def temperatures(gpu: WatchedGpu) -> list[tuple[float, int]]:
    """Seconds since the burn-in began, and degrees Celsius, by look."""
    return [(look.at, look.temperature) for look in gpu.looks if look.temperature is not None]


def hottest(host: HostWatch) -> WatchedGpu | None:
    """The GPU of a host that became hottest, which stands for the others; None where none tells."""
    gpus = host.gpus if isinstance(host.gpus, tuple) else ()
    peaks = [(max(degrees for _, degrees in told), gpu) for gpu in gpus if (told := temperatures(gpu))]
    return max(peaks, key=lambda peak: peak[0])[1] if peaks else None


def memory_growth(run: RankRun) -> Growth | None:
    """Whether a rank's memory grows without an end. The first third is left out: what a training needs is taken then."""
    windows = [window for window in run.pace[len(run.pace) // 3 :] if window.memory]
    return growth_of([window.at for window in windows], [window.memory for window in windows], LEAST_GROWTH_BYTES)


def growth_of(
    times: Sequence[float], sizes: Sequence[float], least: float, share: float = LEAST_GROWTH_SHARE
) -> Growth | None:
    """Whether sizes in bytes grow by that much at least, steadily, and still do at the end.

    Args:
        times: in seconds, of each size.
        sizes: in their order.
        least: bytes.
        share: part of the first size.
    """
    if len(sizes) < MIN_WINDOWS * 2 // 3:
        return None
    third = len(sizes) // 3
    parts = [median(sizes[:third]), median(sizes[third:-third]), median(sizes[-third:])]
    grown = sizes[-1] - sizes[0]
    steady = parts[0] < parts[1] < parts[2] and parts[2] - parts[1] > (parts[1] - parts[0]) / 3
    if grown < max(least, share * sizes[0]) or not steady or deviations(sizes) < TREND_DEVIATIONS:
        return None
    return Growth(sizes[0], sizes[-1], grown / max(times[-1] - times[0], 1e-9))
