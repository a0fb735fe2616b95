"""By what the benchmark of smoke fails."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_smoke import Compared, has_failed, rows_of


@pytest.mark.parametrize(
    ("ratios", "memory", "fails"),
    [
        ((0.3, 0.4, 0.9), 400.0, False),
        # Other work may have slowed either side of a round: a missed wall time alone isn't a failure yet.
        ((0.5, 0.7, 0.8), 400.0, False),
        ((0.5, 0.9, 0.9), 400.0, True),
        ((0.3, 0.4, 0.4), 520.0, False),
        ((0.3, 0.4, 0.4), 530.0, True),
    ],
)
def test_memory_must_keep_its_aim_and_wall_time_twice_its(
    ratios: tuple[float, ...], memory: float, fails: bool
) -> None:
    assert has_failed(Compared(8, [(10 * one, 10.0) for one in ratios], (memory, 1000.0))) is fails


def test_the_table_has_the_median_and_says_what_is_missed() -> None:
    head, row = rows_of([Compared(8, [(5.0, 10.0), (1.0, 10.0), (9.0, 10.0)], (400.0, 1000.0))])
    assert head[1] == "wall time, ours / torchrun's, median of 3"
    assert row[1] == "0.50 (missed)"
    assert row[3] == "0.40"
