"""Which rank a failure is of, which ranks are silent, and whether the run came to a good end after all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException, LogLine, ProcessExit
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import CRASHES, KILL, endings, only, signal_of
from ddpdoctor.logs.analyze.exceptions import is_of_launcher, is_within_launcher, short_name
from ddpdoctor.logs.analyze.failures import Failure, FailureKind
from ddpdoctor.logs.analyze.handled_exceptions import got_over
from ddpdoctor.logs.analyze.illness_traits import is_grave, names_speaker
from ddpdoctor.logs.analyze.order import Timeline, lead_of

_NCCL: Final = compile_lazily(r"(?:\[[^\]]*\] )?(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] ")
UNCAUGHT: Final = "terminate called after throwing an instance of"
"""C++ ends a process with these words."""
GONE_ON: Final = 5.0
"""Seconds after a failure at which a run that still writes has got over it."""
OF_ITS_OWN: Final = "mp.spawn"
"""It numbers the processes of one host, and tells of the one that failed first."""
MIN_CHARACTERS: Final = 20
"""Characters."""
_WARNS: Final = " NCCL WARN "
TELLS_OF_EVERY_END: Final = "torchrun"
"""A launcher that never keeps a rank's failure to itself."""
MAX_SAME_LINES: Final = 60
"""Lines of a rank that show the same."""
MAX_LINES_OF_MESSAGE: Final = 5
"""Lines behind an exception; its message may have some of its own."""
MAX_LINES_TO_TRACEBACK: Final = 2
"""Lines."""
LINES_OF_NEXT_ATTEMPT: Final = 12
"""Lines behind an attempt that failed, by which it shows that another one goes on; a traceback of the launcher's isn't among them."""
_MERELY_TOLD: Final = compile_lazily(
    r"\[W|.{0,200}? NCCL INFO |\S.{0,300}: \w*Warning: |[^A-Za-z]{0,40}(?:[A-Za-z][\w.]{0,59}(?![\w.])[^A-Za-z]{1,20}){0,2}(?:WARNING|WARN|INFO|DEBUG)(?![A-Za-z_])"
)
"""Warnings and notices, of torch, NCCL, Python and loggers."""
_EXCEPTION: Final = compile_lazily(r"[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)")
_ENDS_ITS_PROCESS: Final = compile_lazily(
    r"Fatal Python error|terminate called|core dumped|[Ww]atchdog|Segmentation fault|received by PID"
)
"""Nobody goes on after it: steps behind it are another's."""
_AT_THE_END: Final = compile_lazily(
    r"(?i)\b(?:finished|done|saved?|saving|completed?|success\w*|exiting|goodbye|best|final)\b"
)


def with_rank(failure: Failure, log: Log, failures: Sequence[Failure], catalogue: Catalogue) -> LogLine:
    """Complete the line of a failure with the rank, host and time that the launcher tells, where the line itself
    doesn't."""
    line = failure.line
    exited = (
        (own if (own := own_exit(failure, log)) and (own.rank is not None or own.exit_code is not None) else None)
        or exit_of(failure, log)
        or _of_that_pid(failure, log)
        or _of_who_repeats_it(failure, log)
        or _of_who_says_the_same(failure, log, failures)
        or _announced(failure, log)
        or _only_exit(failure, log, failures)
        or _of_the_only_process(failure, log, failures)
        or _of_who_was_killed(failure, log, catalogue)
        or _of_who_fell_first(failure, log, failures, catalogue)
    )
    rank = line.rank if line.rank is not None else _said_itself(failure, catalogue)
    if rank is None and exited is not None:
        # mp.spawn numbers the processes of this host alone.
        rank = exited.local_rank if exited.rank is None and exited.said_by == OF_ITS_OWN else exited.rank
    local = line.local_rank
    if rank is None and local is not None and len(log.hosts) < 2 and (log.world_size or 0) <= _nproc(log):
        rank = local
    if rank is None and local is None and exited is not None and failure.exited is None:
        line = msgspec.structs.replace(line, local_rank=exited.local_rank)
        rank = exited.local_rank if len(log.hosts) < 2 and 0 < (log.world_size or 0) <= _nproc(log) else None
    told = exited or failure.exited
    host = line.host or (told.host if told else "") or _host_of(rank, log)
    if (line.time is None or line.lent) and failure.exited is None and (when := _ended_at(exited, log)) is not None:
        line = msgspec.structs.replace(line, time=when, lent=False)
    # torchrun calls a host so that it couldn't find the name of.
    return msgspec.structs.replace(line, rank=rank, host="" if host == "localhost" else host)


def _ended_at(exited: ProcessExit | None, log: Log) -> float | None:
    """Tell when the launcher saw it end. Its table doesn't say the zone of its clock, and so tells nothing beside
    clocks that are not UTC's."""
    return None if exited is None or log.ahead else exited.time


def own_exit(failure: Failure, log: Log) -> ProcessExit | None:
    """Find the end that the failure is; where the launcher tells those of several ranks on one line, it doesn't tell
    which was first."""
    exited = failure.exited
    if exited is None:
        return None
    several = {process_exit.rank for process_exit in log.exited if process_exit.line.order == exited.line.order} - {
        exited.rank
    }
    return msgspec.structs.replace(exited, rank=None) if several and not exited.first else exited


def _said_itself(failure: Failure, catalogue: Catalogue) -> int | None:
    """Read the rank from torch's own sentence."""
    words = [sign.words.get("rank", "") for sign in failure.signs if names_speaker(catalogue, sign.slug, sign.sign)]
    return next((int(word) for word in words if word.isdigit()), None)


def _host_of(rank: int | None, log: Log) -> str:
    """Find the host of a rank by its other lines, as NCCL's name their host, or the warnings of NCCL's whose words it
    repeats; or the one host that a log of one rank names."""
    if rank is None:
        return ""
    lines = [*_heard(log), *(noise.line for noise in log.noise)]
    own = [line for line in lines if line.rank == rank]
    named = {log_line.host for log_line in own if log_line.host}
    if not named:
        warned = [(line.text.rpartition(_WARNS)[2], line.host) for line in lines if _WARNS in line.text and line.host]
        named = {host for words, host in warned if _tells(words) and any(words in log_line.text for log_line in own)}
    if not named and len(log.ranks) == 1:
        named = set(log.hosts)
    return next(iter(named)) if len(named) == 1 else ""


def _tells(words: str) -> bool:
    """Whether they are long enough to be nobody else's by chance."""
    return len(words) >= MIN_CHARACTERS


def _heard(log: Log) -> list[LogLine]:
    """Lines that are kept for what they say."""
    return [*(sighting.line for sighting in log.sightings), *(last_words.line for last_words in log.last), *log.errors]


def _nproc(log: Log) -> int:
    """Count the ranks that are at least on the log's only host."""
    local = [process_exit.local_rank for process_exit in log.exited if process_exit.local_rank is not None]
    local += [raised.line.local_rank for raised in log.raised if raised.line.local_rank is not None]
    return max([len(log.ranks), *(number + 1 for number in local)], default=0)


def exit_of(failure: Failure, log: Log) -> ProcessExit | None:
    """Find how the rank of a failure ended."""
    line = failure.line
    for ending in endings(log):
        if line.rank is not None and ending.rank == line.rank:
            return ending
        same_host = not line.host or not ending.host or line.host == ending.host
        if line.rank is None and line.local_rank is not None and ending.local_rank == line.local_rank and same_host:
            return ending
    return None


def _of_that_pid(failure: Failure, log: Log) -> ProcessExit | None:
    """Attribute a line of NCCL's by its pid: NCCL puts host and pid before its lines, and torchrun names both, and
    the rank."""
    found = _NCCL.match(failure.line.text)
    if found is None:
        return None
    same = [ending for ending in endings(log) if ending.pid == int(found["pid"]) and ending.host in ("", found["host"])]
    return only(same)


def _of_who_repeats_it(failure: Failure, log: Log) -> ProcessExit | None:
    """Attribute a line that bears no rank to the one rank that repeats its words, or other warnings of the same
    process of NCCL's."""
    line = failure.line
    if line.rank is not None or line.local_rank is not None or failure.exited:
        return None
    heard = _heard(log)
    process = _process(line)
    own = [log_line.text for log_line in heard if process and _process(log_line) == process]
    words = {text.rpartition(_WARNS)[2] for text in (line.text, *own) if _WARNS in text}
    if failure.raised:
        words.add(failure.raised.message)
    told = [
        _said_by(log_line, heard) for log_line in heard if any(_tells(word) and word in log_line.text for word in words)
    ]
    ends = endings(log) if any(rank is not None for rank in told) else []
    hosts = {end.rank: end.host for end in ends}
    ranks = {rank for rank in told if rank is not None and line.host in ("", hosts.get(rank) or line.host)}
    if len(ranks) != 1:
        return None
    ended = only(end for end in ends if end.rank in ranks)
    return ended or ProcessExit(line=line, said_by="", rank=next(iter(ranks)), host=line.host)


def _said_by(line: LogLine, heard: Sequence[LogLine]) -> int | None:
    """Tell which rank says a line, or the first of several lines of which it is one: a library labels no other."""
    if line.rank is not None or _WARNS in line.text:
        return line.rank
    labelled = [log_line for log_line in heard if log_line.file == line.file and log_line.rank is not None]
    before = [log_line for log_line in labelled if 0 < line.number - log_line.number <= MAX_LINES_OF_MESSAGE]
    return max(before, key=lambda line: line.number).rank if before else None


def _process(line: LogLine) -> tuple[str, str] | None:
    found = _NCCL.match(line.text)
    return (found["host"], found["pid"]) if found else None


def _of_who_says_the_same(failure: Failure, log: Log, failures: Sequence[Failure]) -> ProcessExit | None:
    """Attribute a line that bears no rank, as a GPU's own, to the one rank whose exception, last words, or else end,
    speak of the same illness."""
    line = failure.line
    if (
        line.rank is not None
        or line.local_rank is not None
        or (failure.exited and failure.exited.exit_code is not None)
    ):
        return None
    alike = [candidate for candidate in failures if candidate.rank is not None and candidate.slugs & failure.slugs]
    alike = [failure for failure in alike if failure.kind is not FailureKind.ENDED] or alike
    if failure.raised:
        alike = [failure for failure in alike if failure.kind is FailureKind.SAID and failure.line.host == line.host]
    ranks = {failure.rank for failure in alike}
    if len(ranks) != 1:
        return None
    first = alike[0]
    ended = own_exit(first, log) or exit_of(first, log)
    return ended or ProcessExit(line=first.line, said_by="", rank=first.rank, host=first.line.host)


def _announced(failure: Failure, log: Log) -> ProcessExit | None:
    """Find the launcher's line just before a traceback that it prints for one of its processes; not that it ends
    another one."""
    began = failure.began
    return next(
        (
            process_exit
            for process_exit in log.exited
            if process_exit.line.file == began.file
            and 0 < began.number - process_exit.line.number <= MAX_LINES_TO_TRACEBACK
            and not process_exit.told_to
        ),
        None,
    )


def _only_exit(failure: Failure, log: Log, failures: Sequence[Failure]) -> ProcessExit | None:
    """Attribute a line without any label to the rank of which the launcher says that it failed first, unless it may
    have been another's victim."""
    if failure.line.rank is not None or failure.line.local_rank is not None:
        return None
    lost = [
        failure
        for failure in failures
        if failure.kind is not FailureKind.ENDED and failure.is_effect and not _launchers(failure)
    ]
    if any(failure.line.rank is None and failure.line.local_rank is None for failure in lost):
        return None
    # NCCL's own lines, whose process is known, say nothing of whether others' are labelled.
    heard = {
        candidate.line.rank
        for candidate in failures
        if candidate.kind is FailureKind.RAISED
        or (candidate.kind is FailureKind.SAID and not candidate.slugs & failure.slugs)
    }
    # Whoever lost another one may be aborted for that.
    alone = not any(failure.effects for failure in failures)
    ends = [
        ending
        for ending in endings(log)
        if not (ending.told_to or signal_of(ending)) or (alone and signal_of(ending) in CRASHES)
    ]
    own = [
        end
        for end in ends
        if (end.rank not in heard if end.rank is not None else end.local_rank is not None and heard <= {None})
    ]
    return next((process_exit for process_exit in own if process_exit.first), only(own))


def _of_the_only_process(failure: Failure, log: Log, failures: Sequence[Failure]) -> ProcessExit | None:
    """Attribute an unlabelled line, as a DataLoader worker's, to the one process that the launcher had. It lists all
    that failed, and says so of those that it ends; and who has lost another one wasn't alone."""
    line, raised = failure.line, failure.raised
    ended = only(endings(log))
    if ended is None or not (ended.first and ended.said_by == TELLS_OF_EVERY_END) or ended.rank is None:
        return None
    alone = set(log.ranks) <= {ended.rank} and (log.world_size or 1) == 1 and len(log.hosts) < 2
    alone &= not any(
        failure.is_effect and failure.kind is not FailureKind.ENDED and not _launchers(failure) for failure in failures
    )
    own = raised is None or not (is_of_launcher(raised) or is_within_launcher(raised))
    unlabelled = line.rank is None and line.local_rank is None
    return ended if alone and own and unlabelled and line.order < ended.line.order else None


def _of_who_was_killed(failure: Failure, log: Log, catalogue: Catalogue) -> ProcessExit | None:
    """Attribute an out-of-memory message that names no rank, as Kubernetes', to the only rank that the launcher saw
    killed first."""
    line = failure.line
    of_memory = {check.slug for check in catalogue.standing_for(LogTopic.KILLED_FOR_MEMORY)}
    if line.rank is not None or line.local_rank is not None or not failure.slugs & of_memory:
        return None
    killed = [
        ending
        for ending in endings(log)
        if signal_of(ending) == KILL and ending.rank is not None and not ending.told_to
    ]
    return only(process_exit for process_exit in killed if process_exit.first) or only(killed)


def _of_who_fell_first(
    failure: Failure, log: Log, failures: Sequence[Failure], catalogue: Catalogue
) -> ProcessExit | None:
    """Of a line of nobody's, as the kernel's, or a warning without its label: the rank that fell first behind it. Where it may be of several,
    only the launcher tells which."""
    line = failure.line
    if (
        failure.kind is not FailureKind.SAID
        or line.rank is not None
        or line.local_rank is not None
        or _NCCL.match(line.text)
    ):
        return None
    course, hosts = Timeline(log, failures, catalogue), {ending.rank: ending.host for ending in endings(log)}
    fell = [
        failure
        for failure in failures
        if failure.rank is not None
        and (failure.raised or (failure.kind is FailureKind.SAID and _EXCEPTION.match(failure.line.text)))
        and not (failure.is_effect or failure.is_from_outside or course.far(line, failure.began))
        and failure.began.order > line.order
        and line.host in ("", failure.line.host or hosts.get(failure.rank) or line.host)
    ]
    first = lead_of(fell, course)
    several = len({candidate.rank for candidate in fell if candidate.slugs & failure.slugs}) > 1
    if first is None or (several and not course.ended_first(first)):
        return None
    return exit_of(first, log) or ProcessExit(line=first.line, said_by="", rank=first.rank, host=first.line.host)


def _launchers(failure: Failure) -> bool:
    return failure.raised is not None and not failure.effects and is_of_launcher(failure.raised)


def silent_ranks(log: Log, failures: Sequence[Failure]) -> tuple[int, ...]:
    """List, of ranks that lost another or waited in vain, those that say nothing of it; only a few, else it isn't
    they who are odd."""
    told = {failure.rank for failure in failures if failure.effects and failure.rank is not None}
    everybody = set(log.ranks) | set(range(log.world_size or 0))
    silent = everybody - told
    return tuple(sorted(silent)) if told and len(silent) <= max(1, len(everybody) // 4) else ()


def ended_well(log: Log, failures: Sequence[Failure], catalogue: Catalogue) -> bool:
    """Whether the run went on for long after its last failure, and no launcher says that it failed in the end."""
    if failures and not log.exited and all(_trained_on(failure, log) for failure in failures):
        return True
    announced = [failure for failure in failures if got_over(failure, failures, log, catalogue)]
    failures = [
        failure for failure in failures if not any(failure is other or _alike(failure, other) for other in announced)
    ]
    ends = [failure for failure in failures if failure.kind is not FailureKind.SAID]
    if any(failure.is_from_outside for failure in failures) or any(process_exit.first for process_exit in log.exited):
        return False
    if any(end.raised and short_name(end.raised.exception) == "ChildFailedError" for end in ends):
        return False
    if not ends:
        if any(UNCAUGHT in error.text for error in log.errors):
            return False
        fell = any(failure.effects for failure in failures) or _fell(failures, log, catalogue)
        fell |= any(_EXCEPTION.match(failure.line.text) and not _went_on(failure, log) for failure in failures)
        return bool(failures or announced) and not fell
    last = max(end.over.order for end in ends)
    if _fell(
        [failure for failure in failures if failure.kind is FailureKind.SAID and failure.line.order > last],
        log,
        catalogue,
    ):
        return False
    over = [end for end in ends if _got_over(end, log, ends)]
    return all(end in over or any(_alike(end, other) for other in over) for end in ends)


def _trained_on(failure: Failure, log: Log) -> bool:
    """Whether the training, which can't do without any of its ranks, took many steps behind it. What Python writes to a file it may
    hold back until it ends, so that steps stand behind the exception that came after them."""
    trains = log.trains
    if trains is None or failure.over.file != trains.file or failure.over.order >= trains.order:
        return False
    if failure.rank is not None and trains.rank not in (None, failure.rank):
        return False
    if failure.raised is None:
        return not _ENDS_ITS_PROCESS.search(failure.line.text)
    return _may_be_caught(failure.raised) or (_is_optional(failure.raised) and _comes_to_an_end(log))


def _is_optional(raised: LoggedException) -> bool:
    """Whether it is of an import, and nothing was called: scripts try them, and do without."""
    return short_name(raised.exception) in ("ImportError", "ModuleNotFoundError") and all(
        frame.function == "<module>" or frame.path.startswith("<") for frame in raised.frames
    )


def _comes_to_an_end(log: Log) -> bool:
    """Whether the last line is another one than a step: what is written when all is done."""
    last = _last_words(None, log)
    return last is not None and log.trains is not None and _AT_THE_END.search(last.text) is not None


def _fell(said: Sequence[Failure], log: Log, catalogue: Catalogue) -> bool:
    """Whether words of an illness that ends a training are a rank's last ones, or sure."""
    grave = [failure for failure in said if any(is_grave(catalogue, sign.slug, sign.sign) for sign in failure.signs)]
    return any(
        any(is_grave(catalogue, sign.slug) for sign in failure.names) or not _went_on(failure, log) for failure in grave
    )


def _alike(one: Failure, other: Failure) -> bool:
    """Whether two ranks raised the same in the same place."""
    if one.raised is None or other.raised is None:
        return False
    return (one.raised.exception, one.raised.frames) == (other.raised.exception, other.raised.frames)


def _went_on(said: Failure, log: Log) -> bool:
    """Whether its rank wrote on for long behind mere words; behind a warning, whether it wrote anything else."""
    last = _last_words(said, log)
    if last is None or any(sign.sign in last.text for sign in said.signs):
        return False
    if _MERELY_TOLD.match(said.line.text):
        return True
    if last.time is not None and said.line.time is not None and not said.line.lent:
        return last.time - said.line.time > GONE_ON
    return last.file == said.line.file and last.number - said.line.number > MAX_SAME_LINES * max(len(log.ranks), 1)


def _got_over(failure: Failure, log: Log, ends: Sequence[Failure]) -> bool:
    beside = [end for end in ends if end.line.file == failure.line.file]
    over = max((table.over for table in beside), key=lambda line: line.order)
    by = {end.exited.said_by for end in ends if end.exited and not end.exited.told_to}
    if by - {TELLS_OF_EVERY_END}:
        return False
    if not by and failure.raised and _goes_on_alone(failure.raised, over, log):
        return True
    restarted = bool(by)
    silent = log.launcher == TELLS_OF_EVERY_END and not log.exited
    last = _last_words(None if restarted or silent else failure, log)
    if last is None or last.order <= over.order:
        return False
    if failure.exited and failure.names:
        return False
    if restarted:
        # Of a rank that ended and was started again, the steps behind are of the next attempt.
        return (
            log.steps is not None and log.steps.order > over.order and last.order - over.order > LINES_OF_NEXT_ATTEMPT
        )
    if failure.raised is None:
        return False
    if silent:
        return _may_be_caught(failure.raised) or _says_more(failure, over, log)
    if not _may_be_caught(failure.raised):
        return False
    if last.time is not None and failure.line.time is not None and not failure.line.lent:
        return last.time - failure.line.time > GONE_ON
    return last.file == over.file and last.number - over.number > MAX_SAME_LINES * (
        len(log.ranks) if failure.rank is not None else 1
    )


def _goes_on_alone(raised: LoggedException, over: LogLine, log: Log) -> bool:
    """Whether a run that nothing shows to be of several ranks takes steps behind it: nobody else can. Where nobody may have caught it,
    it comes to an end behind them, too."""
    alone = not log.launcher and len(log.ranks) < 2 and (log.world_size or 1) < 2 and len(log.files) == 1
    if not alone or log.recurs is None or log.recurs.order <= over.order:
        return False
    last = _last_words(None, log)
    return _may_be_caught(raised) or (last is not None and last.order - log.recurs.order > 1)


def _says_more(failure: Failure, over: LogLine, log: Log) -> bool:
    """Whether the rank itself goes on after a mistake, and not only the others for as long as the launcher needs to end them."""
    if failure.raised is None or "Traceback" not in failure.raised.began.text or failure.signs or failure.is_effect:
        return False
    last = _last_words(failure, log)
    return (
        failure.is_ordinary
        and last is not None
        and last.file == over.file
        and last.number - over.number > MAX_LINES_OF_MESSAGE
    )


def _may_be_caught(raised: LoggedException) -> bool:
    """Whether somebody may have caught it: one that nobody caught goes back to the script's first line."""
    headless = "Traceback" not in raised.began.text
    return bool(raised.frames) and raised.frames[0].function != "<module>" and not headless


def _last_words(failure: Failure | None, log: Log) -> LogLine | None:
    """List the last words of its rank; of all, where no rank is known."""
    if failure and failure.line.rank is not None:
        return next((last_words.line for last_words in log.last if last_words.rank == failure.line.rank), None)
    return max((last_words.line for last_words in log.last), key=lambda line: line.order, default=None)
