"""What a collector that nobody knows has put before every line of a program's output."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.logs.parse.labels import Style, unlabelled
from ddpdoctor.logs.parse.tracebacks import HEADER

_MOST: Final = 80
"""Characters of a prefix."""
_FRAME: Final = '  File "'
_SUMS_UP: Final = re.compile(r"(?P<own>\S(?:.*\S)?) {2,}\| *$")
_OF_GREP: Final = re.compile(r"(?P<name>[\w./+@=-]+\.(?:log|txt|out|err|[oe]\d+))[-:](?:\d+[-:])?$")
_ENDS: Final = re.compile(r"[\s\])}>:|#]+")
_NONE: Final = re.compile(r"\W*$|E +$|.*\b(?:WARN|WARNING|DEBUG)\b| *\d+\t")
"""Indentation, quotation and comments; pytest's own; a logger's level that says it was caught; a listing by cat -n."""


def prefix_before(header: str, below: str, style: Style, above: str = "") -> re.Pattern[str] | None:
    """What stands before the first line of a traceback, and in the same way before its first frame, which is the line below: as a
    pattern, since there may be numbers and clocks in it. None where there is no such thing; nor where a summary shows, behind the prefix
    that the line above has, too, a part of the traceback of which that line tells."""
    at = header.find(HEADER)
    if not 0 < at <= _MOST or unlabelled(below, style).text.lstrip().startswith(_FRAME.strip()):
        return None  # It has labels, or is indented.
    ends = [found.end() for found in _ENDS.finditer(header, 0, at)]
    for end in (*ends, at):
        prefix = header[:end]
        if unlabelled(header[end:], style).text.startswith(HEADER) and not _NONE.match(prefix):
            if (sums_up := _SUMS_UP.match(prefix)) and above.startswith(sums_up["own"]) and "|" not in above:
                return None
            pattern = re.compile(_pattern(prefix))
            found = pattern.match(below)
            is_frame = found and unlabelled(below[found.end() :], style).text.startswith(_FRAME)
            return pattern if is_frame else None
    return None


def _pattern(prefix: str) -> str:
    """What matches it with whatever numbers; grep's before a hit, and before the lines around one."""
    if found := _OF_GREP.match(prefix):
        return rf"{re.escape(found['name'])}(?:[-:]\d+[-:]|[-:])"
    return re.sub(r"\d+", r"\\d+", re.escape(prefix))
