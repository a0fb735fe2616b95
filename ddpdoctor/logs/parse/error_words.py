"""Words that speak of an error in any programme's log, and lines in which they don't: the names of metrics and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.tables import read_table
from ddpdoctor.logs.exceptions import ENDS_NOTHING, LEVEL, NAMED
from ddpdoctor.logs.launch_failures import BESIDE_GIVING_UP, GIVES_UP, STARTS_AGAIN

NO_FIGURE: Final = r"(?! ?[-+]?(?:\d{0,40}\.\d+|\d{1,40}(?:[eE][-+]?\d{1,9})?(?=\s*(?:[,|%\])}]|$))|nan\b|inf\b|null\b|None\b|0\b|False\b|false\b|\"\"))"
"""What stands behind the name of a metric or a field is no error."""
_NAME_ALONE: Final = compile_lazily(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):(?: .{1,200}:)?\s*$")
"""An exception whose message stands or goes on on the next lines, where an editor has taken the blank at this one's end."""
_PATTERNS: Final = {
    sign.text: sign.pattern
    for sign in read_table(__name__, "error_words.json", dict[str, tuple[LogSign, ...]])["words"]
}
ERROR_WORDS: Final = (*GIVES_UP, *BESIDE_GIVING_UP, STARTS_AGAIN, *_PATTERNS)
_OF_EXCEPTIONS: Final = (
    "Error:",
    "Exception:",
    "Error('",
    'Error("',
    "Exception('",
    'Exception("',
    "error:",
    "[Errno ",
)
"""What a programme also writes of an exception that it has caught."""
_MERELY_WARNS: Final = re.compile(rf"{LEVEL}(?:WARNING|WARN|INFO|DEBUG)(?![A-Za-z_])")
"""The level that a logger puts before its message; NCCL's WARN is an error, and stands further on."""

_INFORMS: Final = re.compile(
    r"[^A-Za-z]{0,40}(?:(?:[\w.-]{1,60} )?[\w./-]{1,60}\[\d{1,10}\]:? |(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2})(?:INFO|DEBUG)(?![A-Za-z_])"
)
"""Host, program and PID may stand before the level, as syslog has them."""


_NO_NUMBER: Final = re.compile(r"(?i)(?:loss|norm)\w{0,40}['\"]?[ :=|]{1,3}['\"]?nan\b")
_GRAVE: Final = ("NCCL INFO", "NCCL DIAG", "OVERFLOW! ")
_PLAN_FAILED: Final = "UserWarning: Plan failed with a"
MAX_LINES_LEFT: Final = 8
"""Lines that are left of a traceback, where most of them were cut out."""
_CONTINUES: Final = re.compile(
    LEVEL + r"(?:ERROR|CRITICAL|FATAL)\b"
    r"(?:[^\]]{1,80}:\d{1,6}\] {2,}\S|(?:[\s|:-]{1,5}\w{1,20})?[\s|:-]{1,5}[╭│╰](?!.*(?:❱|\.py:\d)))"
)
"""A logger's level before a traceback's code, or before what rich draws: only its frames tell something."""


@cache
def _pattern(word: str) -> re.Pattern[str]:
    if pattern := _PATTERNS.get(word):
        return re.compile(pattern)
    before = r"(?<![a-z_-])(?<!\b[Nn]o )" if word[0].islower() else r"(?<![A-Z_])" if word.isupper() else ""
    after = r"(?![A-Za-z_=])" if word[-1].isalpha() and word.isupper() else ""
    figure = NO_FIGURE if word.rstrip().endswith(":") else ""
    return re.compile(before + re.escape(word.rstrip()) + after + figure)


def speaks_of_error(text: str, word: str) -> bool:
    """Whether that word, which is in the text, tells of an error there."""
    if word in _OF_EXCEPTIONS and _MERELY_WARNS.match(text) and "NCCL WARN" not in text:
        return False
    if "ERROR" in word and _CONTINUES.match(text):
        return False
    return bool(_pattern(word).search(text))


def is_ignored(before: Iterable[str]) -> bool:
    """Whether an exception is one that Python, or torch, says it has ignored, of whose traceback a paste has left something out. before: the lines
    before it, the nearest first."""
    for text in islice(before, MAX_LINES_LEFT):
        if ENDS_NOTHING.match(text) or _PLAN_FAILED in text:
            return True
        if text.startswith("Traceback (most") or NAMED.match(text):
            return False
    return False


def is_name_alone(text: str) -> bool:
    """Whether it is the name of an exception whose message stands, or goes on, on the next lines."""
    return text.rstrip().endswith(":") and bool(_NAME_ALONE.match(text))


def only_informs(text: str) -> bool:
    """Whether a logger says it as information: what is in it was expected. What NCCL and torch inform of may be a failure, and so may be the
    loss scale that DeepSpeed lowers, and a loss that is no number."""
    grave = any(word in text for word in _GRAVE) or "torch" in text[:120] or _NO_NUMBER.search(text)
    return not grave and bool(_INFORMS.match(text))
