"""What a run got over: tracebacks that were announced, errors with ordinary lines behind them, and whether it came to a good end after
all. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.log import Log, LoggedException, LogLine
from ddpdoctor.logs.analyze.endings import TELLS_OF_EVERY_END
from ddpdoctor.logs.analyze.failures import Failure, FailureKind
from ddpdoctor.logs.analyze.illness_traits import is_grave
from ddpdoctor.logs.analyze.timeline import Timeline
from ddpdoctor.logs.exceptions import (
    ENDS_NOTHING,
    INFORMS,
    LEVEL,
    LOGGED,
    NAMED,
    is_alike,
    is_bare,
    is_optional,
    short_name,
)
from ddpdoctor.logs.launch_failures import STARTS_AGAIN, gives_up
from ddpdoctor.logs.parse.error_words import ERROR_WORDS, speaks_of_error
from ddpdoctor.logs.parse.exits import ANYBODY, RAY_TRAIN, SHELL
from ddpdoctor.logs.parse.labels import names_process

_OF_PYTHON_M: Final = "_run_module_as_main"
"""The function of Python's own in which `python -m` begins."""
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
    r"(?i)\b(?:finish\w*|done|saved?|complet\w*|success\w*|passed|best|final|bye|epochs?|steps?|iter\w*|loss|acc\w*|eval\w*)\b"
)
_BAD_END: Final = compile_lazily(
    r"(?i)\b(?:training|run|job) (?:has )?(?:failed|crashed|aborted)|\b(?:abort\w*|un(?:handled|caught)|shut\w* down|giving up|fatal)\b"
    r"|\b(?:despite|due to|because of) (?:the |an? )?(?:errors?|exceptions?|failures?)\b|\bexception (?:occurred|raised)|\bexit(?:ed|ing)? (?:with |status |code )+[1-9]|\bfailed$|State: FAILED"
)
_OF_TORCH: Final = compile_lazily(r"\[[WEF]\d{3,4} |Traceback|  |(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)\b")
"""What a process writes as it ends."""
_IN_A_SENTENCE: Final = compile_lazily(
    r"(?!.*(?:[Uu]ncaught|[Uu]nhandled|[Tt]erminat|[Aa]bort|\b(?:ERROR|CRITICAL|FATAL)\b))[A-Za-z].{0,160}[\w)\]][:,;]? (?:[a-z]\w*\.)*\w*(?:Error|Exception): "
)
"""What a script says of an exception that it has caught: a traceback's own line begins with it, and a logger's level isn't an error."""
_ENDS_A_RUN: Final = compile_lazily(
    r"Fatal Python error|Segmentation fault|core dumped|terminate called|Abort|Bus error|Killed(?! \d)|CANCELLED|NCCL WARN|FATAL|fatal:|Fatal:|F0000 00:00:"
    r"|CRITICAL|Assertion|Exception raised from|^[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)"
)
"""Words of an error by which a process ends, or a line of its traceback."""
LINES_OF_ONE_END: Final = 20
"""Within which a process may write its last exception for a second time, as its logger and Python do."""
GONE_ON: Final = 5.0
"""Seconds after a failure at which a run that still writes has got over it."""
MAX_LINES_OF_MESSAGE: Final = 5
"""Lines behind an exception; its message may have some of its own."""
LINES_OF_NEXT_ATTEMPT: Final = 12
"""Lines behind an attempt that failed, by which it shows that another one goes on; a traceback of the launcher's isn't among them."""
_MERELY_TOLD: Final = compile_lazily(
    r"\[W|.{0,200}? NCCL INFO |\S.{0,300}: \w*Warning: |" + LEVEL + r"(?:WARNING|WARN|INFO|DEBUG)(?![A-Za-z_])"
)
"""Warnings and notices, of torch, NCCL, Python and loggers."""
_ENDS_ITS_PROCESS: Final = compile_lazily(
    r"Fatal Python error|terminate called|core dumped|[Ww]atchdog|Segmentation fault|received by PID"
)
"""Nobody goes on after it: steps behind it are another's."""
_AT_THE_END: Final = compile_lazily(
    r"(?i)\b(?:finished|done|saved?|saving|completed?|success\w*|exiting|goodbye|best|final)\b"
)


def _only_announced(failure: Failure, course: Timeline) -> bool:
    """Whether it is a traceback that its process got over, or an exception within a sentence of the script."""
    if failure.raises(_is_of_python_m):
        return False
    announced = failure.raised.announced if failure.raised else ""
    if not announced and not (failure.kind is FailureKind.SAID and _IN_A_SENTENCE.match(failure.line.text)):
        return False
    if ENDS_NOTHING.match(announced) and not any(is_grave(course.catalogue, sign.slug) for sign in failure.signs):
        return True
    later = [
        candidate.began.number
        for candidate in course.failures
        if candidate.kind is not FailureKind.SAID
        and not (candidate.raised and candidate.raised.announced)
        and candidate.line.stream == failure.line.stream
        and candidate.began.order > failure.over.order
    ]
    if later:
        return min(later) - failure.over.number > WENT_ON
    last, steps = _last_words(failure, course), course.log.steps
    if last is None or last.file != failure.over.file:
        return False
    went_on = steps is not None and steps.order > failure.over.order and not _FOOTER.match(steps.text)
    return last.number + 1 - failure.over.number > (WENT_ON if went_on else _enough(announced, last.text))


def _enough(announced: str, last: str) -> int:
    """Count the lines that show that a run went on of which no steps are seen: one that gives up clears up, too."""
    if _FOOTER.match(last):
        return OF_A_FOOTER
    logged = LOGGED.match(announced) or INFORMS.match(announced)
    if not logged or _is_good_end(last, announced):
        return WENT_ON
    return OF_CLEARING_UP


def got_over(failure: Failure, course: Timeline) -> bool:
    """Whether its run got over it, as what announced it or a mere label lets expect."""
    return _only_announced(failure, course) or _merely_labelled(failure, course) or _is_raised_again(failure, course)


def _is_raised_again(failure: Failure, course: Timeline) -> bool:
    """Whether a process, as Ray labels its workers, raises the same over and over: it dies of one once, and others do what it does."""
    if failure.raised is None or not names_process(failure.line.host):
        return False
    raised_at: dict[str, list[int]] = defaultdict(list)
    for raised in course.log.raised:
        if is_alike(raised, failure.raised):
            raised_at[raised.line.host].append(raised.line.number)
    return any(numbers[-1] - numbers[0] > LINES_OF_ONE_END for numbers in raised_at.values())


def _merely_labelled(failure: Failure, course: Timeline) -> bool:
    """Whether it is an exception's line alone, behind a label like torch's own that the script puts before all it writes: that rank trains on."""
    log, last = course.log, _last_words(failure, course)
    over = failure.over
    if not failure.raises(is_bare) or failure.rank is None or last is None or log.recurs is None:
        return False
    if _OF_TORCH.match(last.text) or last.file != over.file or last.number - over.number <= WENT_ON:
        return False
    started_again = any(over.order < process_exit.line.order < last.order for process_exit in log.exited)
    return not started_again and over.order < log.recurs.order <= last.order


def survived(course: Timeline) -> tuple[LogLine, ...]:
    """Lines that speak of an error, and the run went on: what was announced so, and mere words with ordinary lines behind them."""
    words = [failure.line for failure in course.failures if got_over(failure, course)]
    errors = [error for error in course.log.errors if merely_said(error, course)]
    return tuple(sorted([*words, *errors], key=lambda line: line.order))


def merely_said(error: LogLine, course: Timeline) -> bool:
    """Whether a line that speaks of an error, as a logger's, is followed by several ordinary ones of its rank."""
    if _ENDS_A_RUN.search(error.text) or gives_up(error.text) or STARTS_AGAIN in error.text:
        return False
    if any(
        line.file == error.file and 0 < line.number - error.number <= GIVES_UP_AFTER
        for line in course.log.errors
        if gives_up(line.text)
    ):
        return False
    last = course.last.get(error.rank)
    if last is not None and any(word in last.text and speaks_of_error(last.text, word) for word in ERROR_WORDS):
        return False
    latest = max(line.number for line in course.log.errors if (line.file, line.rank) == (error.file, error.rank))
    return last is not None and last.file == error.file and last.number - latest > WENT_ON


def ended_well(course: Timeline) -> bool:
    """Whether the run went on for long after its last failure, and no launcher says that it failed in the end."""
    log, failures = course.log, course.failures
    if failures and not log.exited and all(_trained_on(failure, course) for failure in failures):
        return True
    announced = [failure for failure in failures if got_over(failure, course)]
    failures = [failure for failure in failures if not any(_alike(failure, other) for other in announced)]
    ends = [failure for failure in failures if failure.kind is not FailureKind.SAID]
    if any(failure.is_from_outside for failure in failures) or any(process_exit.first for process_exit in log.exited):
        return False
    if any(end.raised and short_name(end.raised.exception) == "ChildFailedError" for end in ends):
        return False
    if not ends:
        fell = any(failure.effects for failure in failures) or _fell(failures, course)
        fell |= any(NAMED.match(failure.line.text) and not _went_on(failure, course) for failure in failures)
        return bool(failures or announced) and not fell
    last = max(end.over.order for end in ends)
    if _fell(
        [failure for failure in failures if failure.kind is FailureKind.SAID and failure.line.order > last], course
    ):
        return False
    by = {end.exited.said_by for end in ends if end.exited and not end.exited.told_to}
    last_of = {end.line.file: end.over for end in sorted(ends, key=lambda end: end.over.order)}
    over = [end for end in ends if _is_behind(end, last_of[end.line.file], by, course)]
    return all(any(_alike(end, other) for other in over) for end in ends)


def _trained_on(failure: Failure, course: Timeline) -> bool:
    """Whether the training, which can't do without any of its ranks, took many steps behind it. What Python writes to a file it may
    hold back until it ends, so that steps stand behind the exception that came after them."""
    trains = course.log.trains
    if trains is None or failure.over.file != trains.file or failure.over.order >= trains.order:
        return False
    if failure.rank is not None and trains.rank not in (None, failure.rank):
        return False
    if failure.raised is None:
        return not _ENDS_ITS_PROCESS.search(failure.line.text)
    # The last line is another one than a step: what is written when all is done.
    ends = course.latest is not None and bool(_AT_THE_END.search(course.latest.text))
    return failure.may_be_caught or (is_optional(failure.raised) and ends)


def _fell(said: Sequence[Failure], course: Timeline) -> bool:
    """Whether words of an illness that ends a training are a rank's last ones, or sure."""
    grave = [
        failure for failure in said if any(is_grave(course.catalogue, sign.slug, sign.sign) for sign in failure.signs)
    ]
    return any(
        any(is_grave(course.catalogue, sign.slug) for sign in failure.names) or not _went_on(failure, course)
        for failure in grave
    )


def _alike(one: Failure, other: Failure) -> bool:
    """Whether they are one, or two ranks raised the same in the same place."""
    if one.raised is None or other.raised is None:
        return one is other
    return (one.raised.exception, one.raised.frames) == (other.raised.exception, other.raised.frames)


def _went_on(said: Failure, course: Timeline) -> bool:
    """Whether its rank wrote on for long behind mere words; behind a warning, whether it wrote anything else."""
    last = _last_words(said, course)
    if last is None or any(sign.sign in last.text for sign in said.signs):
        return False
    if _MERELY_TOLD.match(said.line.text):
        return True
    return course.far(said.line, last, GONE_ON)


def _is_behind(failure: Failure, over: LogLine, by: Set[str], course: Timeline) -> bool:
    """Whether the run went on for long behind an exception, or its launcher started the ranks again.

    Args:
        failure: that is asked for.
        over: the last line of any end in the same file.
        by: who tells of ends.
        course: of the log.
    """
    log = course.log
    if by:
        steps, last = log.steps, course.latest
        far = steps and last and steps.order > over.order and last.order - over.order > LINES_OF_NEXT_ATTEMPT
        # What a process has held back of its output is lost if a signal ends it.
        of_another_run = {SHELL} if _is_alone(log) else set()
        return by <= {TELLS_OF_EVERY_END, RAY_TRAIN, ANYBODY, *of_another_run} and bool(far)
    last = _last_words(failure, course)
    if failure.raised is None or last is None or _is_of_an_end(last, course):
        return False
    # Others go on until they need a thread that an illness has ended.
    grave = any(is_grave(course.catalogue, sign.slug, sign.sign) for sign in failure.signs)
    timed = last.time is not None and failure.line.time is not None
    if grave and timed and not course.far(failure.line, last):
        return False
    if _goes_on_alone(failure, over, course):
        return True
    if last.order <= over.order:
        return False
    if log.launcher == TELLS_OF_EVERY_END and not log.exited:
        # The rank itself goes on after a mistake, and not only the others for as long as the launcher needs to end them.
        goes_on = last.file == over.file and last.number - over.number > MAX_LINES_OF_MESSAGE
        return failure.may_be_caught or (failure.is_ordinary and not failure.is_effect and goes_on)
    if not failure.may_be_caught or _only_clears_up(failure, over, last):
        return False
    return course.far(over, last, GONE_ON)


def _is_of_an_end(last: LogLine, course: Timeline) -> bool:
    """Whether the last words are an exception's that Python ignores, as it does while it ends a process."""
    return any(
        failure.raised
        and ENDS_NOTHING.match(failure.raised.announced)
        and failure.began.order <= last.order <= failure.over.order
        for failure in course.failures
    )


def _only_clears_up(failure: Failure, over: LogLine, last: LogLine) -> bool:
    """Whether a few lines at most follow, and the last one tells of no good end: what a run that gives up still does may take long."""
    announced = failure.raised.announced if failure.raised else ""
    near = last.file == over.file and last.number - over.number <= WENT_ON
    return near and not _is_good_end(last.text, announced)


def _is_good_end(last: str, announced: str = "") -> bool:
    """Whether a last line is of a good end, and neither it nor what announced an exception says that the run gave up."""
    return bool(_GOOD_END.search(last)) and not _BAD_END.search(f"{announced} {last}")


def _goes_on_alone(failure: Failure, over: LogLine, course: Timeline) -> bool:
    """Whether a run of one rank takes steps behind it, and comes to an end behind them if nobody may have caught it: what looks like steps
    may be the rest of its message."""
    log, last = course.log, course.latest
    if not _is_alone(log) or log.recurs is None or log.recurs.order <= over.order:
        return False
    return failure.may_be_caught or (last is not None and last.order - log.recurs.order > 1 and _is_good_end(last.text))


def _is_alone(log: Log) -> bool:
    """Whether it is of one process, as far as it tells."""
    return not log.launcher and len(log.ranks) < 2 and (log.world_size or 1) < 2 and len(log.files) == 1


def _is_of_python_m(raised: LoggedException) -> bool:
    """Whether it went back to Python's own first call of `python -m`, where nobody catches it."""
    return bool(raised.frames) and raised.frames[0].function == _OF_PYTHON_M


def _last_words(failure: Failure, course: Timeline) -> LogLine | None:
    """Return the last words of its rank; of all, where no rank is known. Those of other processes, as Ray labels its workers, say nothing
    of it."""
    own = [
        words.line
        for words in course.log.last
        if failure.line.rank in (None, words.rank)
        and (words.line.host == failure.line.host or not names_process(words.line.host))
    ]
    return max(own, key=lambda line: line.order, default=None)
