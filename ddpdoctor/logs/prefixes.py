"""What a collector that nobody knows has put before every line of a program's output."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.logs.labels import Style, unlabelled
from ddpdoctor.logs.tracebacks import HEADER

_MOST: Final = 80
"""Characters of a prefix."""
_FRAME: Final = '  File "'
_ENDS: Final = re.compile(r"[\s\])}>:|#]+")
_NONE: Final = re.compile(r"\W*$|E +$|.*\b(?:WARN|WARNING|DEBUG)\b| *\d+\t")
"""Indentation, quotation and comments; pytest's own; a logger's level that says it was caught; a listing by cat -n."""


def prefix_before(header: str, below: str, style: Style) -> re.Pattern[str] | None:
    """What stands before the first line of a traceback, and in the same way before its first frame, which is the line below: as a
    pattern, since there may be numbers and clocks in it. None where there is no such thing."""
    at = header.find(HEADER)
    if not 0 < at <= _MOST or unlabelled(below, style).text.lstrip().startswith(_FRAME.strip()):
        return None  # It has labels, or is indented.
    ends = [found.end() for found in _ENDS.finditer(header, 0, at)]
    for end in (*ends, at):
        prefix = header[:end]
        if unlabelled(header[end:], style).text.startswith(HEADER) and not _NONE.match(prefix):
            pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
            found = pattern.match(below)
            is_frame = found and unlabelled(below[found.end() :], style).text.startswith(_FRAME)
            return pattern if is_frame else None
    return None
