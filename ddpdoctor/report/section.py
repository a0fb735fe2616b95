"""A part of a report that another subject renders: its words, its rows for the head, and its table."""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec
from rich.console import Console


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What one subject tells within another's report.

    Args:
        done: what was done, for the headline; "" if nothing.
        rows: label and text, for the head.
        show: prints the rest; is given the ranks that findings name, for who does not know of all.
    """

    done: str
    rows: tuple[tuple[str, str], ...]
    show: Callable[[Console, Set[int]], None]
