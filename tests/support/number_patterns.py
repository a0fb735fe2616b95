"""A regular expression that compares two numbers of a line. Pure."""

from __future__ import annotations

from typing import Final

DIGITS: Final = 6
"""Of the longest number that is compared."""


def more_behind(between: str, group: int = 1) -> str:
    """A pattern for a number, what stands between, and a second number that is greater. Behind it must stand what is no digit. group: the
    number of the one group that it has, in the whole pattern."""
    longer = [rf"\d{{{size}}}{between}\d{{{size + 1},}}" for size in range(1, DIGITS)]
    # Of two of the same length, the first digit in which they differ decides.
    alike = [
        rf"{digit}\d{{{rest}}}{between}\{group}[{digit + 1}-9]\d{{{rest}}}(?!\d)"
        for rest in range(DIGITS)
        for digit in range(9)
    ]
    return f"(?:{'|'.join(longer)}|(\\d*)(?:{'|'.join(alike)}))"
