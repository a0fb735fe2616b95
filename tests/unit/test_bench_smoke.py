"""By what the benchmark of smoke fails."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_smoke import Compared, Hang, has_failed, row_of_hang, rows_of


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


@pytest.mark.parametrize(
    ("later", "wrong", "shown", "fails"),
    [
        (-25.8, "", "-25.8 s (too early)", True),
        (-1.1, "", "-1.1 s (too early)", True),
        (-0.9, "", "-0.9 s", False),
        (-0.01, "", "0.0 s", False),
        (0.3, "", "0.3 s", False),
        (3.4, "", "3.4 s (missed)", False),
        (3.6, "", "3.6 s (missed)", True),
        (0.0, "NOT NAMED", "NOT NAMED", True),
    ],
)
def test_a_hang_is_to_be_named_after_its_deadline_and_soon(later: float, wrong: str, shown: str, fails: bool) -> None:
    hang = Hang("import", later, wrong)
    assert (row_of_hang(hang)[1], hang.failed) == (shown, fails)


def test_the_table_has_the_median_and_says_what_is_missed() -> None:
    head, row = rows_of([Compared(8, [(5.0, 10.0), (1.0, 10.0), (9.0, 10.0)], (400.0, 1000.0))])
    assert head[1] == "wall time, ours / torchrun's, median of 3"
    assert row[1] == "0.50 (missed)"
    assert row[3] == "0.40"
