"""By what the benchmark of smoke fails."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_smoke import Compared, Hang, has_failed, measured, row_of_hang, rows_of


@pytest.mark.parametrize(
    ("ranks", "ratios", "memory", "fails"),
    [
        (8, (0.3, 0.4, 0.9), 400.0, False),
        # Other work may have slowed either side of a round: a missed wall time alone isn't a failure yet.
        (8, (0.5, 0.6, 0.8), 400.0, False),
        (8, (0.5, 0.61, 0.9), 400.0, True),
        (8, (0.3, 0.4, 0.4), 520.0, False),
        (8, (0.3, 0.4, 0.4), 530.0, True),
        (2, (0.5, 1.0, 1.2), 900.0, False),
        (2, (0.5, 1.01, 1.2), 900.0, True),
        (3, (2.0,), 900.0, False),
    ],
)
def test_memory_must_keep_its_aim_and_wall_time_its_limit(
    ranks: int, ratios: tuple[float, ...], memory: float, fails: bool
) -> None:
    assert has_failed(Compared(ranks, [(10 * ratio, 10.0) for ratio in ratios], (memory, 1000.0))) is fails


@pytest.mark.parametrize(
    ("rounds", "ratios", "taken", "fails"),
    [
        (1, [0.9, 2.0], 1, False),
        (1, [1.2, 0.6, 2.0], 2, False),
        (1, [2.0, 0.5, 0.6, 9.0], 3, False),
        (1, [1.2, 0.9, 1.1, 0.1], 3, True),
        (3, [0.9, 1.2, 1.1, 0.5, 1.1, 0.1], 4, False),
        (3, [0.9, 1.2, 1.1, 1.1, 0.9, 0.1], 5, True),
    ],
)
def test_a_slow_verdict_is_looked_at_twice_more(rounds: int, ratios: list[float], taken: int, fails: bool) -> None:
    left = iter(ratios)
    compared = measured(2, (500.0, 1000.0), rounds, lambda: (next(left), 1.0))
    assert ([ours for ours, _ in compared.seconds], has_failed(compared)) == (ratios[:taken], fails)


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
    more = [Compared(2, [(1.0, 1.0)] * 3, (1.0, 1.0)), Compared(8, [(1.0, 1.0)] * 2, (1.0, 1.0))]
    assert rows_of(more)[0][1] == "wall time, ours / torchrun's, median of 2 or 3"
