"""Texts that tell of failures, and are no log of a run: known by the shape of all their lines, or by a file's name."""

from __future__ import annotations

import re
from typing import Final

SOURCES: Final = frozenset((".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs"))
"""Suffixes of files that quote what programs say, and say nothing themselves."""
_SHAPES: Final = {
    "the history of a repository": (
        rb"commit [0-9a-f]{7,40}\b",
        rb"commit [0-9a-f]{7,40}\b|(?:Author|AuthorDate|Commit|CommitDate|Merge|Date): | {4}",
    ),
    "a list of changes": (
        rb"(?=#)(?:[^\n]{0,200}\n){1,40}?#{1,3} \[?(?:v?\d+\.\d|[Uu]nreleased)",
        rb"#{1,6} |[-=]{3,200}[ \r]{0,9}$|[ \t]{0,40}[-*+] |  ",
    ),
    "a list of tests": (
        rb"\S{1,200}?\.py::\w",
        rb"\S{1,200}?\.py::\w|\d{1,9}(?:/\d{1,9})? tests collected|={1,99} [^\n]{0,99} ={1,99}[ \r]{0,9}$",
    ),
}
"""How they begin, and how each of their lines does."""
_OTHER_LINES: Final = {
    what: (re.compile(begins), re.compile(rb"^(?!(?:%b))[^\n]*\S" % lines, re.MULTILINE))
    for what, (begins, lines) in _SHAPES.items()
}


def kind_of_text(text: bytes) -> str:
    """Say what a whole text is that has the shape of one of these from its first to its last line; "" for all others."""
    return next(
        (what for what, (begins, other) in _OTHER_LINES.items() if begins.match(text) and not other.search(text)), ""
    )
