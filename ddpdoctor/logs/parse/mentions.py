"""Tells a line that says something from one that only mentions it: code, comments, documentation, the names of tests."""

from __future__ import annotations

import re
from typing import Final

_FRAME: Final = re.compile(r'[ |+-]*File "[^"]+", line \d+')
_CODE_OF_A_FRAME: Final = re.compile(r"(?:\s*\|)?\s{2,}\S")
_SHAPES: Final = re.compile(
    r"""
      \s*(?:\#(?!\#\#\#\#\#\#|error\b|\#\ OAR\ \[)|//|/\*|<!--|\*\s|"{3}|'{3})      # comments, headings
    | \s*>(?!>)\s?(?=\S)                                                 # a quotation in Markdown
    | >\ {3,}\S|E\ {3,}(?:AssertionError|assert)\b                         # pytest's excerpt of the source, and what it asserts
    | \s*\|\s.*\|\s*$                                                    # a table's row
    | (?:\S[^\s@]*@\S+[$\#%]|[$%])\s+\S                                    # a shell's prompt
    | (?:>>>|\.\.\.|In\ \[\d+\]:)\s                                      # Python's
    | \++\ \w                                                            # set -x
    | [+-]?\s*(?:[-*]|\d+\.)\s+["'`“]                                       # an item of a list that begins with a quotation
    | [+-]\s*(?:raise|return|def|class|if|elif|assert|print|except|with|import|from|log\w*\.|\#|//|["'])  # a diff
    | @@\ -\d
    | \ *\d{1,6}\t                                                       # a listing by cat -n
    | \s*-{1,2}[A-Za-z][\w-]*(?:[ =,]|$)                                 # the help of a command
    | \s*(?:[-*]\ \[[ x]\]|\d+\.\ |[-*]\ |FAILED\ |ERROR\ )?\[?[^\s:]*\.py::              # a test's name
    | (?:[*|]\ )*commit\ [0-9a-f]{7,40}\ (?!\[)(?:\(.*\)\ )?[A-Z]          # a commit's title
    | \s*(?:async\ )?(?:def|class)\ \w+
    | \s*except\ [\w.,\ ()*]+(?:\ as\ \w+)?:\s*$
    | \s*(?:raise\ \w|assert\ \S|print\(|return\ ["'(]|throw\ |log(?:ger|ging)?\.\w+\(|warnings?\.warn)
    """,
    re.VERBOSE,
)
_COMMIT: Final = re.compile(
    r"""(?:[*|]\ )*(?P<hash>[0-9a-f]{7,10}|[0-9a-f]{40})\ (?!\[)(?:\(.*\)\ )?
    (?: [A-Z]
    | (?:feat|fix|docs|style|refactor|perf|tests?|build|ci|chore|revert)(?:\([^)]*\))?!?:
    | [a-z](?=\w*[A-Z])\w+:                                  # a name in a library
    | [a-z][\w-]*[\s(!/]
    )
    """,
    re.VERBOSE,
)
"""The title of a commit as git log lists it; the id of a container is longer."""
_ADVICE: Final = re.compile(
    r"\bif (?:you|it|this|training|a rank) (?:see|get|gets|hit|run into|fails? with|dies? with)\b"
    r"|\b(?:you|users) (?:may|might|will|can|could) (?:see|get|encounter|hit|run into)\b|\bin case of\b"
    r"|\bto (?:avoid|prevent|work around)\b|\bchecks? for\b[^:]*$",
    re.IGNORECASE,
)
"""Before an error that a program knows of, and hasn't met."""
_STRING: Final = re.compile(r"""\s+[rfb]{0,2}(?:"([^"]*)"|'([^']*)')(?!\s*:)""")
"""A string of a program, on a line of its own; not the field of a structured log."""
_COMMENT: Final = re.compile(
    r"\S {2,}# |(?:(?<![a-z0-9_-])[0-9_-]*[a-z][a-z0-9_-]*: |(?<![A-Z0-9_])[0-9_]*[A-Z][A-Z0-9_]+=)\S.{0,300} # "
)
"""Before a comment behind some code or a setting."""
MAX_BEFORE: Final = 400
"""Characters before some words in which they are announced: a sentence or two."""


def mentioned(text: str, literal: str, previous: str = "") -> bool:
    """Whether the line only mentions it. previous: the line before it of the same stream."""
    if _is_code_of(previous, text) or _SHAPES.match(text) or _is_title(previous, text):
        return True
    string = _STRING.match(text)
    if string and any(literal in group for group in string.groups() if group):
        return True
    before, _, after = text.partition(literal)
    if before.count("`") % 2 and "`" in after:
        return True
    return bool(_COMMENT.search(before) or _ADVICE.search(before, max(len(before) - MAX_BEFORE, 0)))


def _is_title(previous: str, text: str) -> bool:
    """Whether it is a commit's in git's log, in which no two lines begin with the same hash."""
    found = _COMMIT.match(text)
    return found is not None and not previous.startswith(found["hash"])


def _is_code_of(frame: str, text: str) -> bool:
    """Whether it is the source line of a traceback's frame. The exception of a traceback that another program shows, as pip does, is
    indented, too, but less than the frame."""
    if not _FRAME.match(frame) or not _CODE_OF_A_FRAME.match(text) or _FRAME.match(text):
        return False
    return len(text) - len(text.lstrip(" |")) > frame.index("File")
