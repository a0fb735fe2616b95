"""What lines beside a failure that no sign knows say more of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from ddpdoctor.facts.log import Log, LoggedException, LogLine
from ddpdoctor.logs.exceptions import NAMED, is_cut, is_of_a_tool
from ddpdoctor.logs.launch_failures import is_of_launching

MAX_LINES_BEHIND: Final = 12
"""Lines of the file."""
MAX_LINES: Final = 2
_OF_NCCL: Final = re.compile(
    r"NCCL error|unhandled (?:cuda|system) error|nccl[A-Za-z]{1,40}Error|Ascend collective communication|call hccl api failed|HCCL (?:function )?error"
)
"""What says in general that NCCL, or Ascend's HCCL, failed: which error it was stands on other lines."""
_GENERAL: Final = re.compile(r"\s*nccl\w+: |.*(?:NCCL error|call hccl api failed)")
"""Only which kind of error it is."""
_WARNS: Final = "NCCL WARN"
_INFORMS: Final = "NCCL INFO"
_BUILD: Final = "Error building extension '"
_OF_COMPILER: Final = re.compile(
    r"(?:^|[\s:])(?:fatal )?error(?: [A-Z]+\d+)?\s*: (?!linker command failed|subprocess-exited|command |ld returned)|\b(?:nvcc|ptxas) +(?:fatal|error) *:"
)
"""An error with its reason, as compilers, linkers and nvcc write it."""
MAX_LINES_OF_BUILD: Final = 400
"""Lines before or behind the exception of a build in which the compiler's own words stand."""
_MAY_BE_NCCLS: Final = re.compile(r"nccl|[Ww]atchdog|ProcessGroup|SIGABRT|Signal 6\b", re.IGNORECASE)


def more_of(lead: LogLine | None, raised: LoggedException | None, log: Log) -> tuple[LogLine, ...]:
    """Find the lines that say which node was lost, what NCCL's error was, or what came of a program's failure."""
    if lead is None:
        return ()
    if raised and (is_of_a_tool(raised) or raised.message.startswith(_BUILD)) and (said := _of_compiler(raised, log)):
        return said
    if raised and raised.chained and is_of_a_tool(raised):
        return tuple(
            later.line
            for later in log.raised
            if later.line.stream == raised.line.stream
            and 0 < later.began.number - raised.line.number <= MAX_LINES_BEHIND
            and not is_cut(later)
        )[:1]
    if raised and raised.reason:
        return (raised.reason,)
    text = raised.message if raised else lead.text
    errors = [error for error in log.errors if error.number != lead.number or error.file != lead.file]
    behind = [
        error for error in errors if error.file == lead.file and 0 < error.number - lead.number <= MAX_LINES_BEHIND
    ]
    if is_of_launching(text):
        return tuple(log_line for log_line in behind if is_of_launching(log_line.text))[:MAX_LINES]
    if not _OF_NCCL.search(text):
        return _right_before(raised, errors)
    own = [log_line for log_line in behind if log_line.rank in (None, lead.rank) and log_line.host in ("", lead.host)]
    # Another error's, with its own word, may follow.
    of_this = takewhile(lambda line: not ("rror in" in line.text and _OF_NCCL.search(line.text)), own)
    told = [log_line for log_line in of_this if not _GENERAL.match(log_line.text)]
    warnings = [error for error in errors if _WARNS in error.text and error.rank in (None, lead.rank)]
    nearest = sorted(warnings, key=lambda warning: (warning.file != lead.file, abs(warning.number - lead.number)))
    return tuple(told[:MAX_LINES] or nearest[:1])


def _right_before(raised: LoggedException | None, errors: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """Find an exception without a traceback right above one with it: what C says there, Python only passes on."""
    if raised is None or is_cut(raised):
        return ()
    above = [error for error in errors if error.stream == raised.began.stream and NAMED.match(error.text)]
    return tuple(error for error in above if 0 < raised.began.number - error.number <= MAX_LINES)[-1:]


def _of_compiler(raised: LoggedException, log: Log) -> tuple[LogLine, ...]:
    """Find the first error of a build: the others follow from it, as does what ninja, make and the caller say."""
    first, last = raised.began.number - MAX_LINES_OF_BUILD, raised.line.number + MAX_LINES_OF_BUILD
    return tuple(
        error
        for error in log.errors
        if (error.file, error.rank) in {(raised.line.file, raised.line.rank), (raised.line.file, None)}
        and first <= error.number <= last
        and _OF_COMPILER.search(error.text)
    )[:1]


def nccl_may_say_more(lead: LogLine | None, raised: LoggedException | None, log: Log, end: str) -> bool:
    """Whether the failure may be one of NCCL's, and NCCL was not asked yet to tell all. end: how the launcher says it ended."""
    text = f"{lead.text if lead else ''} {f'{raised.exception} {raised.message}' if raised else ''} {end}"
    told = [
        *log.errors,
        *(words.line for words in log.last),
        *(noise.line for noise in log.noise),
        *(sighting.line for sighting in log.sightings),
    ]
    asked = any(_INFORMS in line.text for line in told)
    return bool(_MAY_BE_NCCLS.search(text)) and not asked
