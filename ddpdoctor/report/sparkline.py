"""A line of small bars: how a number went, in the room of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
LETTERS: Final = "_.-=+*#@"
"""Where there is no Unicode."""


def sparkline(values: Sequence[float], width: int, *, unicode: bool) -> str:
    """One character a value, or several values in their middle where there are more than columns.

    The lowest bar is no higher than half of the greatest value, so that a few percent look like a few percent.

    Args:
        values: in their order, none less than 0.
        width: columns at most.
        unicode: whether there are bars.
    """
    marks = BARS if unicode else LETTERS
    columns = _thinned(values, max(1, width))
    top = max(columns, default=0.0)
    low = min(min(columns, default=0.0), top / 2)
    if top <= low:
        return marks[0] * len(columns)
    return "".join(
        marks[min(len(marks) - 1, int((value - low) / (top - low) * (len(marks) - 1) + 0.5))] for value in columns
    )


def _thinned(values: Sequence[float], most: int) -> list[float]:
    if len(values) <= most:
        return list(values)
    edges = [round(place * len(values) / most) for place in range(most + 1)]
    parts = [values[begin:end] for begin, end in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]
