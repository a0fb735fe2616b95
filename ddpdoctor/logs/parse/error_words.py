"""Words that speak of an error in any programme's log, and lines in which they don't: the names of metrics and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice, product
from typing import Final

from ddpdoctor.logs.exceptions import LAST_ERROR, LEVEL
from ddpdoctor.logs.launch_failures import BESIDE_GIVING_UP, GIVES_UP, STARTS_AGAIN

_GLOG_WORDS: Final = (*map("".join, product(("[E", "[F"), " 0123456789")), "torch/distributed/")
"""Severity and month, as torch's C++ writes them, and the module, as its Python does: what the rest of such a line is like, `_GLOG` knows."""
_FATAL_OF_ABSL: Final = "F0000 00:00:"
"""As XLA's C++ writes a message with which it ends its process, before its log is set up: the time is one in seconds."""
_FATAL_OF_TSL: Final = ("F external/", "F tensorflow/")
"""As TensorFlow's and XLA's C++ writes one: the severity, and the source's path."""
_FATAL_OF_GLOG: Final = "*** Check failure stack trace: ***"
"""Below the message with which glog and Abseil end their process."""
_IN_A_SCRIPT: Final = ": line "
"""Where a shell is in a script, of which something could not be done."""
_OF_ASCEND: Final = ("EI00", "EJ00", ": Inner Error!", " failed, runtime result = ")
"""Codes of Ascend's HCCL, of what starts it, and of whatever else that has no code of its own."""
_NAMES: Final = ("Error:", "Exception:")
_OF_MAKE: Final = ": *** "
_CUT_NAMES: Final = ("ror: ", "ption: ")
"""Ends of the names of exceptions, where a limit on what is kept has cut a line within them."""
_QUOTED: Final = ("Error('", 'Error("', "Exception('", 'Exception("')
"""An exception as Python shows it within another text, a logger's field mostly."""
_GOT_OVER: Final = r"(?i:\b(?:warn|skip|ignor|retr|caught|except|rais|return))"
"""Of an exception that is shown within a line: what was done about it, or that it is code."""
_LEVELS: Final = tuple(
    form.format(level)
    for level in ("error", "fatal", "critical", "panic")
    for form in ("level={}", '"level":"{}"', '"level": "{}"', '"severity":"{}"', '"severity": "{}"')
)
"""As loggers write it that give each line fields."""
ERROR_WORDS: Final = (
    *GIVES_UP,
    *BESIDE_GIVING_UP,
    STARTS_AGAIN,
    *_GLOG_WORDS,
    _FATAL_OF_ABSL,
    *_FATAL_OF_TSL,
    _FATAL_OF_GLOG,
    *_OF_ASCEND,
    "[error]",
    "*** An error occurred in MPI_",
    "etcd.Etcd",
    "docker: Error response from daemon: ",
    "Primary job  terminated normally, but ",
    LAST_ERROR,
    *_NAMES,
    *_CUT_NAMES,
    *_QUOTED,
    *_LEVELS,
    "ERROR",
    "error:",
    "FATAL",
    "fatal:",
    "Fatal Python error",
    "Segmentation fault",
    "core dumped",
    "terminate called",
    "Aborted",
    "Bus error",
    "Killed",
    "NCCL WARN",
    "|CCL_ERROR|",
    "Exception in device=TPU:",
    "CANCELLED",
    "Assertion",
    "[Errno ",
    ": command not found",
    _IN_A_SCRIPT,
    "ChildFailedError:",
    "Exception raised from ",
    "ncclCommWatchdog() + ",
    "blas_thread_init: pthread_create failed",
    "nvcc fatal ",
    _OF_MAKE,
    "ninja: build stopped: ",
)
_NO_FIGURE: Final = r"(?! ?[-+]?(?:\d*\.\d+|\d+(?:[eE][-+]?\d+)?(?=\s*(?:[,|%\])}]|$))|nan\b|inf\b|null\b|None\b|0\b|False\b|false\b|\"\"))"
"""What stands behind the name of a metric or a field is no error."""

_NO_LOST_STORE: Final = r" (?!(?:recv|send)Bytes |doWait )"
"""Where C++ raises what a watching thread catches and warns of as the store goes away: at the end of each healthy run, too."""

_OF_EXCEPTIONS: Final = (*_NAMES, *_QUOTED, "error:", "[Errno ")
"""What a programme also writes of an exception that it has caught."""
_MERELY_WARNS: Final = re.compile(rf"{LEVEL}(?:WARNING|WARN|INFO|DEBUG)(?![A-Za-z_])")
"""The level that a logger puts before its message; NCCL's WARN is an error, and stands further on."""

_INFORMS: Final = re.compile(
    r"[^A-Za-z]{0,40}(?:(?:[\w.-]{1,60} )?[\w./-]{1,60}\[\d{1,10}\]:? |(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2})(?:INFO|DEBUG)(?![A-Za-z_])"
)
"""Host, program and PID may stand before the level, as syslog has them."""


_NO_NUMBER: Final = re.compile(r"(?i)(?:loss|norm)\w{0,40}['\"]?[ :=|]{1,3}['\"]?nan\b")
_GRAVE: Final = ("NCCL INFO", "NCCL DIAG", "OVERFLOW! ")
_GLOG: Final = re.compile(
    r"(?:\[[EF](?:\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?| )|(?<![\w.-])[EF]\d{4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?)"
    r"[\w./<>-]+\.(?:[ch]pp|h|cuh?|py):\d+\]"
)
"""Of TensorFlow and gRPC, whose sources end in .cc, healthy runs have lines of that severity, too."""


_NAME_ALONE: Final = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):\s*$")
"""An exception whose message stands on the next lines, where an editor has taken the blank at this one's end."""
_IGNORED: Final = re.compile(r"Exception ignored (?:in|on|while)\b|.*UserWarning: Plan failed with an? ")
_EXCEPTION: Final = re.compile(r"Traceback \(most|[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)")
MAX_LINES_LEFT: Final = 8
"""Lines that are left of a traceback, where most of them were cut out."""
_CONTINUES: Final = re.compile(
    LEVEL + r"(?:ERROR|CRITICAL|FATAL)\b"
    r"(?:[^\]]{1,80}:\d{1,6}\] {2,}\S|(?:[\s|:-]{1,5}\w{1,20})?[\s|:-]{1,5}[╭│╰](?!.*(?:❱|\.py:\d)))"
)
"""A logger's level before a traceback's code, or before what rich draws: only its frames tell something."""


@cache
def _pattern(word: str) -> re.Pattern[str]:
    if word in _GLOG_WORDS:
        return _GLOG
    if word == _FATAL_OF_ABSL:
        return re.compile(rf"{word}\d+\.\d+ +\d+ [\w./-]+:\d+\] ")
    if word == LAST_ERROR:
        return re.compile(rf"{LAST_ERROR}\s*$")
    if word in _FATAL_OF_TSL:
        return re.compile(rf"(?:^|: ){word}\S+:\d+\] ")
    if word in _OF_ASCEND:
        return re.compile(r"(?<!\S)E[A-Z0-9]\d{4}: ")
    if word in _NAMES:
        return re.compile(rf"{word}(?= ){_NO_FIGURE}|{_NAME_ALONE.pattern}")
    if word == _OF_MAKE:
        # An error that its rule ignores, and the word that others still run, end nothing.
        return re.compile(r"^g?make(?:\[\d+\])?: \*\*\* (?!Waiting for )(?!.*\(ignored\))")
    if word == _IN_A_SCRIPT:
        return re.compile(
            r"^\S+: line \d+: (?:[^:]{1,300}: ){1,2}(?:No such file or directory|Permission denied|Is a directory|Exec format error"
            r"|cannot execute\b.{0,100}|(?:bad interpreter|required file not found)\b.{0,100})$"
        )
    if word in _CUT_NAMES:
        return re.compile(rf"^(?:r?ror|E?xception|c?eption|ption): (?=\S){_NO_FIGURE}")
    if word in _QUOTED:
        return re.compile(rf"^(?!.*{_GOT_OVER}).*?(?<![\w.])(?:[A-Za-z_]\w*\.)*[A-Z]\w*{re.escape(word)}")
    if word in _LEVELS:
        return re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    if word == "Killed":
        # Kubernetes' reason is read by exits.py; before a figure or a name it is counted, or told of somebody else.
        return re.compile(r"(?<!OOM)Killed(?! (?:\d|[\w ]{1,40}: ?\d))")
    before = r"(?<![a-z_-])(?<!\b[Nn]o )" if word[0].islower() else r"(?<![A-Z_])" if word.isupper() else ""
    after = r"(?![A-Za-z_=])" if word[-1].isalpha() and word.isupper() else ""
    figure = _NO_FIGURE if word.rstrip().endswith(":") else _NO_LOST_STORE if word == "Exception raised from " else ""
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
        if _IGNORED.match(text):
            return True
        if _EXCEPTION.match(text):
            return False
    return False


def is_name_alone(text: str) -> bool:
    """Whether it is the name of an exception whose message stands on the next lines."""
    return text.endswith(":") and bool(_NAME_ALONE.match(text))


def only_informs(text: str) -> bool:
    """Whether a logger says it as information: what is in it was expected. What NCCL and torch inform of may be a failure, and so may be the
    loss scale that DeepSpeed lowers, and a loss that is no number."""
    grave = any(word in text for word in _GRAVE) or "torch" in text[:120] or _NO_NUMBER.search(text)
    return not grave and bool(_INFORMS.match(text))
