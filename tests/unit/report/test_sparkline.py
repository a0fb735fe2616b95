"""Lines of small bars."""

from __future__ import annotations

from ddpdoctor.report.sparkline import sparkline


def test_a_few_percent_look_like_a_few_percent() -> None:
    assert sparkline([100, 98, 99, 100], 10, unicode=True) == "████"
    assert sparkline([100, 75, 50], 10, unicode=True) == "█▅▁"
    assert sparkline([0, 100], 10, unicode=False) == "_@"


def test_no_more_columns_than_there_is_room_for() -> None:
    line = sparkline([float(value) for value in range(61)], 12, unicode=True)
    assert len(line) == 12
    assert list(line) == sorted(line)


def test_nothing_and_noughts() -> None:
    assert sparkline([], 10, unicode=True) == ""
    assert sparkline([0.0, 0.0], 10, unicode=True) == "▁▁"
