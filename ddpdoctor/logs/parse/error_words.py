"""Words that speak of an error in any programme's log, and lines in which they don't: the names of metrics and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.logs.exceptions import LAST_ERROR, LEVEL
from ddpdoctor.logs.launch_failures import BESIDE_GIVING_UP, GIVES_UP, STARTS_AGAIN

_NO_FIGURE: Final = r"(?! ?[-+]?(?:\d{0,40}\.\d+|\d{1,40}(?:[eE][-+]?\d{1,9})?(?=\s*(?:[,|%\])}]|$))|nan\b|inf\b|null\b|None\b|0\b|False\b|false\b|\"\"))"
"""What stands behind the name of a metric or a field is no error."""
_NAMED: Final = r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):\s*$"
_NAME_ALONE: Final = compile_lazily(_NAMED.replace(r":\s*$", r":(?: .{1,200}:)?\s*$"))
"""An exception whose message stands or goes on on the next lines, where an editor has taken the blank at this one's end."""
_GLOG: Final = (
    r"(?:\[[EF](?:\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?| )|(?<![\w.-])[EF]\d{4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?)"
    r"[\w./<>-]+\.(?:[ch]pp|h|cuh?|py):\d+\]"
)
"""Of TensorFlow and gRPC, whose sources end in .cc, healthy runs have lines of that severity, too."""
_GOT_OVER: Final = r"(?i:\b(?:warn|skip|ignor|retr|caught|except|rais|return))"
"""Of an exception that is shown within a line: what was done about it, or that it is code."""
_QUOTED: Final = ("Error('", 'Error("', "Exception('", 'Exception("')
"""An exception as Python shows it within another text, a logger's field mostly."""
_FIELDS: Final = ("level={}", '"level":"{}"', '"level": "{}"', '"severity":"{}"', '"severity": "{}"')
"""As loggers write the level that give each line fields."""
_FORMS: Final = {
    # Severity and month, as torch's C++ writes them, and the module, as its Python does.
    **dict.fromkeys([f"[{severity}{month}" for severity in "EF" for month in " 0123456789"], _GLOG),
    "torch/distributed/": _GLOG,
    # A message with which XLA's C++ ends its process, before its log is set up: the time is one in seconds.
    "F0000 00:00:": r"F0000 00:00:\d+\.\d+ +\d+ [\w./-]+:\d+\] ",
    # As TensorFlow's and XLA's C++ writes one: the severity, and the source's path.
    **{word: rf"(?:^|: ){word}\S+:\d+\] " for word in ("F external/", "F tensorflow/")},
    # Codes of Ascend's HCCL, of what starts it, and of whatever else that has no code of its own.
    **dict.fromkeys(("EI00", "EJ00", ": Inner Error!", " failed, runtime result = "), r"(?<!\S)E[A-Z0-9]\d{4}: "),
    # What Ascend's libraries advise below a code.
    "Solution: ": r"^\s+Solution: \S",
    LAST_ERROR: rf"{LAST_ERROR}\s*$",
    **{word: rf"{word}(?= ){_NO_FIGURE}|{_NAMED}" for word in ("Error:", "Exception:")},
    # Ends of the names of exceptions, where a limit on what is kept has cut a line within them.
    **dict.fromkeys(("ror: ", "ption: "), rf"^(?:r?ror|E?xception|c?eption|ption): (?=\S){_NO_FIGURE}"),
    **{word: rf"^(?!.*{_GOT_OVER}).*?(?<![\w.])(?:[A-Za-z_]\w*\.)*[A-Z]\w*{re.escape(word)}" for word in _QUOTED},
    **{
        (word := form.format(level)): rf"(?<![\w-]){re.escape(word)}(?![\w-])"
        for level in ("error", "fatal", "critical", "panic")
        for form in _FIELDS
    },
    # Where a shell is in a script, of which something could not be done.
    ": line ": (
        r"^\S+: line \d+: (?:[^:]{1,300}: ){1,2}(?:No such file or directory|Permission denied|Is a directory|Exec format error"
        r"|cannot execute\b.{0,100}|(?:bad interpreter|required file not found)\b.{0,100})$"
    ),
    # A program that dash, or one that starts it for others, such as nohup, doesn't find.
    ": not found": r"^\S+: \d+: (?:exec: )?[\w./+-]+: not found$",
    **{
        word: rf"(?:^|: |/){word} \S+: No such file or directory$"
        for word in ("env:", "failed to run command", "failed to execute")
    },
    # An error that its rule ignores, and the word that others still run, end nothing.
    ": *** ": r"^g?make(?:\[\d+\])?: \*\*\* (?!Waiting for )(?!.*\(ignored\))",
    # Kubernetes' reason is read by exits.py; before a figure or a name it is counted, or told of somebody else.
    "Killed": r"(?<!OOM)Killed(?! (?:\d|[\w ]{1,40}: ?\d))",
    # Where C++ raises what a watching thread catches and warns of as the store goes away: at the end of each healthy run, too.
    "Exception raised from ": r"Exception raised from (?!(?:recv|send)Bytes |doWait )",
}
"""How the rest of a line is like that has such a word, and speaks of an error."""
ERROR_WORDS: Final = (
    *GIVES_UP, *BESIDE_GIVING_UP, STARTS_AGAIN, *_FORMS,
    "*** Check failure stack trace: ***", "[error]", "*** An error occurred in MPI_", "etcd.Etcd", "docker: Error response from daemon: ",
    "Primary job  terminated normally, but ", "ERROR", "error:", "FATAL", "fatal:", "Fatal Python error", "Segmentation fault",
    "core dumped", "terminate called", "Aborted", "Bus error", "NCCL WARN", "|CCL_ERROR|", "Exception in device=TPU:", "CANCELLED",
    "Assertion", "[Errno ", ": command not found", "ChildFailedError:", "ncclCommWatchdog() + ",
    "blas_thread_init: pthread_create failed", "nvcc fatal ", "ptxas fatal ", "executable file not found in $PATH",
    "ninja: build stopped: ",
)  # fmt: skip
_OF_EXCEPTIONS: Final = ("Error:", "Exception:", *_QUOTED, "error:", "[Errno ")
"""What a programme also writes of an exception that it has caught."""
_MERELY_WARNS: Final = re.compile(rf"{LEVEL}(?:WARNING|WARN|INFO|DEBUG)(?![A-Za-z_])")
"""The level that a logger puts before its message; NCCL's WARN is an error, and stands further on."""

_INFORMS: Final = re.compile(
    r"[^A-Za-z]{0,40}(?:(?:[\w.-]{1,60} )?[\w./-]{1,60}\[\d{1,10}\]:? |(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2})(?:INFO|DEBUG)(?![A-Za-z_])"
)
"""Host, program and PID may stand before the level, as syslog has them."""


_NO_NUMBER: Final = re.compile(r"(?i)(?:loss|norm)\w{0,40}['\"]?[ :=|]{1,3}['\"]?nan\b")
_GRAVE: Final = ("NCCL INFO", "NCCL DIAG", "OVERFLOW! ")
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
    if form := _FORMS.get(word):
        return re.compile(form)
    before = r"(?<![a-z_-])(?<!\b[Nn]o )" if word[0].islower() else r"(?<![A-Z_])" if word.isupper() else ""
    after = r"(?![A-Za-z_=])" if word[-1].isalpha() and word.isupper() else ""
    figure = _NO_FIGURE if word.rstrip().endswith(":") else ""
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
    """Whether it is the name of an exception whose message stands, or goes on, on the next lines."""
    return text.rstrip().endswith(":") and bool(_NAME_ALONE.match(text))


def only_informs(text: str) -> bool:
    """Whether a logger says it as information: what is in it was expected. What NCCL and torch inform of may be a failure, and so may be the
    loss scale that DeepSpeed lowers, and a loss that is no number."""
    grave = any(word in text for word in _GRAVE) or "torch" in text[:120] or _NO_NUMBER.search(text)
    return not grave and bool(_INFORMS.match(text))
