"""How numbers of ranks are said."""

from __future__ import annotations

import pytest

from ddpdoctor.base.text import ranks_named, spans


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([0, 1, 2, 3, 4, 5, 6, 9], "ranks 0-6 and 9"),
        ([0, 2, 3], "ranks 0, 2 and 3"),
        (list(range(0, 40, 2)), "ranks 0, 2, 4, 6 and 16 more"),
    ],
)
def test_ranks_named(ranks: list[int], said: str) -> None:
    assert ranks_named(ranks) == said


def test_spans_of_nothing() -> None:
    assert spans([]) == []
