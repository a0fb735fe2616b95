"""Tracebacks that are printed without the process ending by them: what announces them, and whether the run went on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.analyze.exceptions import is_bare
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, stream
from ddpdoctor.logs.analyze.illness_traits import is_grave
from ddpdoctor.logs.analyze.launch_failures import STARTS_AGAIN, gives_up

WENT_ON: Final = 3
"""Lines behind such a traceback by which the run shows that it goes on."""
OF_A_FOOTER: Final = 60
"""The same where the last ones are what wandb writes at any end, good or bad."""
OF_CLEARING_UP: Final = 20
"""The same where a logger told of the error, and the last line of no good end."""
GIVES_UP_AFTER: Final = 8
"""Lines behind an error by which a launcher gives up over it."""
_FOOTER: Final = compile_lazily(r"wandb: ")
_GOOD_END: Final = compile_lazily(
    r"(?i)\b(?:finish\w*|done|saved?|complet\w*|success\w*|passed|best|final|bye|epoch|step|iter\w*|loss|acc\w*|eval\w*)\b"
)
_BAD_END: Final = compile_lazily(
    r"(?i)\b(?:training|run|job) (?:has )?(?:failed|crashed|aborted)|\b(?:abort\w*|un(?:handled|caught)|shut\w* down|giving up|fatal)\b"
    r"|\bexception (?:occurred|raised)|\bexit(?:ed|ing)? (?:with |status |code )+[1-9]|\bfailed$|State: FAILED"
)
_ENDS_NOTHING: Final = compile_lazily(
    r"Exception ignored (?:in|on|while)\b|--- Logging error ---$|Error in atexit\._run_exitfuncs:"
)
"""Python prints them of a destructor, a logger or the end of a process that has done its work, and goes on."""
_OF_A_PART: Final = compile_lazily(
    r"Exception in thread \S|Process [\w-]+-\d+(?::\d+)*:$|(?:Task|Future) exception was never retrieved"
)
"""A thread, a task or a process of the script ends by it, and the script itself may go on."""
_LOGGED: Final = compile_lazily(
    r"[^A-Za-z]{0,40}(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2}(?:ERROR|WARNING|WARN)(?![A-Za-z_])"
)
"""What `logging.exception` writes before the traceback of an exception that the script has caught."""
_INFORMS: Final = compile_lazily(
    r"[^A-Za-z]{0,40}(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2}(?:INFO|DEBUG)(?![A-Za-z_])"
    r"(?=.*(?i:\b(?:fail\w*|fallback|fall\w* back|could ?n[o']t|cannot|can't|not (?:there|usable|found|available|installed|supported)"
    r"|unavailable|missing|skip\w*|ignor\w+|without|disabled|retr(?:y|ies|ying)|error|exception)\b))"
)
"""A line that only informs may stand before any traceback; one that speaks of what isn't there announces it."""
_OF_TORCH: Final = compile_lazily(r"\[[WEF]\d{3,4} |Traceback|  |(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)\b")
"""What a process writes as it ends."""
_IS_RAISED_AGAIN: Final = compile_lazily(r"\.engine\.train_loop\b.*: Exception during training:$")
"""detectron2's trainer logs it so, raises it again, and its hooks write how long the training took."""
_IN_A_SENTENCE: Final = compile_lazily(
    r"(?!.*(?:[Uu]ncaught|[Uu]nhandled|[Tt]erminat|[Aa]bort|\b(?:ERROR|CRITICAL|FATAL)\b))[A-Za-z].{0,160}[\w)][:,;]? (?:[a-z]\w*\.)*\w*(?:Error|Exception): "
)
"""What a script says of an exception that it has caught: a traceback's own line begins with it, and a logger's level isn't an error."""
_ENDS_A_RUN: Final = compile_lazily(
    r"Fatal Python error|Segmentation fault|core dumped|terminate called|Abort|Bus error|Killed(?! \d)|CANCELLED|NCCL WARN|FATAL|fatal:|Fatal:"
    r"|CRITICAL|Assertion|Exception raised from|^[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)"
)
"""Words of an error by which a process ends, or a line of its traceback."""


def announcement(before: Sequence[str]) -> str:
    """Find among the lines before a traceback, the nearest first, the one that announces it; "" where none does.
    asyncio writes a line between."""
    if not before:
        return ""
    if before[0].startswith("future: <") and len(before) > 1:
        before = before[1:]
    line = before[0].strip()
    if _IS_RAISED_AGAIN.search(line):
        return ""
    return line if any(pattern.match(line) for pattern in (_ENDS_NOTHING, _OF_A_PART, _LOGGED, _INFORMS)) else ""


def only_announced(
    failure: Failure,
    failures: Sequence[Failure],
    catalogue: Catalogue,
    last: LogLine | None,
    steps: LogLine | None = None,
) -> bool:
    """Whether it is a traceback that its process got over, or an exception within a sentence of the script. last: the last line of its
    rank. steps: the line behind which the run takes steps, if it does."""
    announced = failure.raised.announced if failure.raised else ""
    if not announced and not (failure.kind is FailureKind.SAID and _IN_A_SENTENCE.match(failure.line.text)):
        return False
    if _ENDS_NOTHING.match(announced) and not any(is_grave(catalogue, sign.slug) for sign in failure.signs):
        return True
    later = [
        candidate.began.number
        for candidate in failures
        if candidate.kind is not FailureKind.SAID
        and not (candidate.raised and candidate.raised.announced)
        and stream(candidate.line) == stream(failure.line)
        and candidate.began.order > failure.over.order
    ]
    if later:
        return min(later) - failure.over.number > WENT_ON
    if last is None or last.file != failure.over.file:
        return False
    went_on = steps is not None and steps.order > failure.over.order and not _FOOTER.match(steps.text)
    return last.number + 1 - failure.over.number > (WENT_ON if went_on else _enough(announced, last.text))


def _enough(announced: str, last: str) -> int:
    """Count the lines that show that a run went on of which no steps are seen: a script that gives up clears up, and
    says so."""
    if _FOOTER.match(last):
        return OF_A_FOOTER
    logged = _LOGGED.match(announced) or _INFORMS.match(announced)
    if not logged or (_GOOD_END.search(last) and not _BAD_END.search(f"{announced} {last}")):
        return WENT_ON
    return OF_CLEARING_UP


def got_over(failure: Failure, failures: Sequence[Failure], log: Log, catalogue: Catalogue) -> bool:
    """List the exceptions of a log that its run got over."""
    last = next((last_words.line for last_words in log.last if last_words.rank == failure.line.rank), None)
    return only_announced(failure, failures, catalogue, last, log.steps) or merely_labelled(failure, last, log)


def merely_labelled(failure: Failure, last: LogLine | None, log: Log) -> bool:
    """Whether it is an exception's line alone, behind a label like torch's own that the script puts before all it writes: that rank trains on.
    last: the last line of its rank."""
    over = failure.over
    if (
        failure.raised is None
        or not is_bare(failure.raised)
        or failure.rank is None
        or last is None
        or log.recurs is None
    ):
        return False
    if _OF_TORCH.match(last.text) or last.file != over.file or last.number - over.number <= WENT_ON:
        return False
    started_again = any(over.order < process_exit.line.order < last.order for process_exit in log.exited)
    return not started_again and over.order < log.recurs.order <= last.order


def survived(log: Log, failures: Sequence[Failure], catalogue: Catalogue) -> tuple[LogLine, ...]:
    """Lines that speak of an error, and the run went on: what was announced so, and mere words with ordinary lines behind them."""
    words = [failure.line for failure in failures if got_over(failure, failures, log, catalogue)]
    return tuple(
        sorted([*words, *(error for error in log.errors if merely_said(error, log))], key=lambda line: line.order)
    )


def merely_said(error: LogLine, log: Log) -> bool:
    """Whether a line that speaks of an error, as a logger's, is followed by several ordinary ones of its rank."""
    if _ENDS_A_RUN.search(error.text) or gives_up(error.text) or STARTS_AGAIN in error.text:
        return False
    if any(
        line.file == error.file and 0 < line.number - error.number <= GIVES_UP_AFTER
        for line in log.errors
        if gives_up(line.text)
    ):
        return False
    last = next((last_words.line for last_words in log.last if last_words.rank == error.rank), None)
    latest = max(line.number for line in log.errors if (line.file, line.rank) == (error.file, error.rank))
    return last is not None and last.file == error.file and last.number - latest > WENT_ON
