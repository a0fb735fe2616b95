"""Terminals: whether a stream is one whose cursor moves, how wide it is, and whether it is ours to write to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Final, TextIO

DEFAULT_WIDTH: Final = 80
"""Columns, where neither COLUMNS nor a terminal tells."""


_ours: Final[list[bool]] = []


def take_terminal() -> None:
    """Send progress and remarks to standard error from now on: this process is the command line, and no program that calls us."""
    _ours.append(True)


def terminal_is_ours() -> bool:
    """Whether this process is the command line."""
    return bool(_ours)


def moves_its_cursor(file: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether lines on it can be drawn anew, and in colour: it is a terminal, and doesn't call itself dumb."""
    return file.isatty() and environ.get("TERM", "dumb") not in ("dumb", "unknown")


def width(terminals: Iterable[int] = (0, 1, 2), environ: Mapping[str, str] = os.environ) -> int:
    """Columns: what COLUMNS says, else the first of these descriptors that is a terminal, else the default."""
    if said := _said(environ.get("COLUMNS", "")):
        return said
    for number in terminals:
        with suppress(OSError):
            # Some terminals say nothing of their size: 0.
            if columns := os.get_terminal_size(number).columns:
                return columns
    return DEFAULT_WIDTH


def forget_sizes_that_are_none(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take COLUMNS and LINES out where they name no size: a report 0 columns wide would be empty."""
    for name in ("COLUMNS", "LINES"):
        if name in environ and not _said(environ[name]):
            del environ[name]


def _said(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
