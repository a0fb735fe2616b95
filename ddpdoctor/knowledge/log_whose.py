"""Which rank a failure is of, which ranks are silent, and whether the run came to a good end after all. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.log import Exited, Log, LogLine, Raised
from ddpdoctor.knowledge.log_announced import got_over
from ddpdoctor.knowledge.log_endings import endings, only, signal_of
from ddpdoctor.knowledge.log_exceptions import short_name
from ddpdoctor.knowledge.log_failures import Failure, Kind
from ddpdoctor.knowledge.log_illnesses import is_grave

_NCCL: Final = re.compile(r"(?:\[[^\]]*\] )?(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] ")
UNCAUGHT: Final = "terminate called after throwing an instance of"
"""C++ ends a process with these words."""
GONE_ON: Final = 5.0
"""Seconds after a failure at which a run that still writes has got over it."""
TELLS_OF_EVERY_END: Final = "torchrun"
"""A launcher that never keeps a rank's failure to itself."""
MANY: Final = 60
"""Lines of a rank that show the same."""
SAYS_MORE: Final = 5
"""Lines behind an exception; its message may have some of its own."""
NEXT: Final = 2
"""Lines."""
SAY_THEIR_RANK: Final = ("unused-parameters", "ddp-param-mismatch")
"""Illnesses in whose words "rank" is the one that says them."""
AGAIN: Final = 12
"""Lines behind an attempt that failed, by which it shows that another one goes on; a traceback of the launcher's isn't among them."""
_MERELY_TOLD: Final = re.compile(r"\[W|.{0,200}? NCCL INFO ")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)")


def with_rank(failure: Failure, log: Log, failures: Sequence[Failure]) -> LogLine:
    """The line of a failure with the rank and host that the launcher tells, where the line itself doesn't."""
    line = failure.line
    exited = (
        failure.exited
        or exit_of(failure, log)
        or _of_that_pid(failure, log)
        or _of_who_says_the_same(failure, log, failures)
        or _announced(failure, log)
        or _only_exit(failure, log, failures)
    )
    rank = line.rank if line.rank is not None else _said_itself(failure)
    if rank is None and exited is not None:
        # mp.spawn numbers the processes of this host alone.
        rank = exited.local_rank if exited.rank is None and exited.said_by == "mp.spawn" else exited.rank
    if rank is None and line.local_rank is not None and len(log.hosts) < 2 and (log.world_size or 0) <= _nproc(log):
        rank = line.local_rank
    host = line.host or (exited.host if exited else "")
    # torchrun calls a host so that it couldn't find the name of.
    return msgspec.structs.replace(line, rank=rank, host="" if host == "localhost" else host)


def _said_itself(failure: Failure) -> int | None:
    """Which rank it is, as torch's own sentence has it."""
    words = [one.words.get("rank", "") for one in failure.signs if one.slug in SAY_THEIR_RANK]
    return next((int(word) for word in words if word.isdigit()), None)


def _nproc(log: Log) -> int:
    """At least so many ranks are on the log's only host."""
    local = [one.local_rank for one in log.exited if one.local_rank is not None]
    local += [one.line.local_rank for one in log.raised if one.line.local_rank is not None]
    return max([len(log.ranks), *(number + 1 for number in local)], default=0)


def exit_of(failure: Failure, log: Log) -> Exited | None:
    """How the rank of a failure ended."""
    line = failure.line
    for one in endings(log):
        if line.rank is not None and one.rank == line.rank:
            return one
        same_host = not line.host or not one.host or line.host == one.host
        if line.rank is None and line.local_rank is not None and one.local_rank == line.local_rank and same_host:
            return one
    return None


def _of_that_pid(failure: Failure, log: Log) -> Exited | None:
    """NCCL puts host and pid before its lines, and torchrun names both, and the rank."""
    found = _NCCL.match(failure.line.text)
    if found is None:
        return None
    same = [one for one in endings(log) if one.pid == int(found["pid"]) and one.host in ("", found["host"])]
    return only(same)


def _of_who_says_the_same(failure: Failure, log: Log, failures: Sequence[Failure]) -> Exited | None:
    """Of a line that bears no rank, as a GPU's own: the one rank whose exception, or last words, speak of the same illness."""
    if failure.kind is not Kind.SAID or failure.line.rank is not None:
        return None
    alike = [
        one for one in failures if one.kind is not Kind.ENDED and one.rank is not None and one.slugs & failure.slugs
    ]
    ranks = {one.rank for one in alike}
    if len(ranks) != 1:
        return None
    line = alike[0].line
    return exit_of(alike[0], log) or Exited(line=line, said_by="", rank=line.rank, host=line.host)


def _announced(failure: Failure, log: Log) -> Exited | None:
    """The launcher's line just before a traceback that it prints for one of its processes."""
    began = failure.began
    return next(
        (one for one in log.exited if one.line.file == began.file and 0 < began.number - one.line.number <= NEXT), None
    )


def _only_exit(failure: Failure, log: Log, failures: Sequence[Failure]) -> Exited | None:
    """Of a line without any label: the rank of which the launcher says that it failed first, unless it may have been another's victim."""
    if failure.line.rank is not None or failure.line.local_rank is not None:
        return None
    lost = [one for one in failures if one.kind is not Kind.ENDED and one.is_effect and not _launchers(one)]
    if any(one.line.rank is None and one.line.local_rank is None for one in lost):
        return None
    heard = {one.line.rank for one in failures}
    own = [one for one in endings(log) if not one.told_to and not signal_of(one) and one.rank not in heard]
    return next((one for one in own if one.first), only(own))


def _launchers(failure: Failure) -> bool:
    return (
        failure.raised is not None and not failure.effects and short_name(failure.raised.exception).startswith("Child")
    )


def silent_ranks(log: Log, failures: Sequence[Failure]) -> tuple[int, ...]:
    """Of ranks that lost another or waited in vain, those that say nothing of it; only a few, else it isn't they who are odd."""
    told = {one.rank for one in failures if one.effects and one.rank is not None}
    everybody = set(log.ranks) | set(range(log.world_size or 0))
    silent = everybody - told
    return tuple(sorted(silent)) if told and len(silent) <= max(1, len(everybody) // 4) else ()


def ended_well(log: Log, failures: Sequence[Failure]) -> bool:
    """Whether the run went on for long after its last failure, and no launcher says that it failed in the end."""
    announced = [one for one in failures if got_over(one, failures, log)]
    failures = [one for one in failures if not any(one is other or _alike(one, other) for other in announced)]
    ends = [one for one in failures if one.kind is not Kind.SAID]
    if any(one.is_from_outside for one in failures) or any(one.first for one in log.exited):
        return False
    if any(one.raised and short_name(one.raised.exception) == "ChildFailedError" for one in ends):
        return False
    if not ends:
        if any(UNCAUGHT in one.text for one in log.errors):
            return False
        fell = any(one.effects for one in failures) or _fell(failures, log)
        fell |= any(_EXCEPTION.match(one.line.text) and not _went_on(one, log) for one in failures)
        return bool(failures or announced) and not fell
    last = max(one.over.order for one in ends)
    if _fell([one for one in failures if one.kind is Kind.SAID and one.line.order > last], log):
        return False
    over = [one for one in ends if _got_over(one, log, ends)]
    return all(one in over or any(_alike(one, other) for other in over) for one in ends)


def _fell(said: Sequence[Failure], log: Log) -> bool:
    """Whether words of an illness that ends a training are a rank's last ones, or sure."""
    grave = [one for one in said if any(is_grave(sign.slug, sign.sign) for sign in one.signs)]
    return any(any(is_grave(sign.slug) for sign in one.names) or not _went_on(one, log) for one in grave)


def _alike(one: Failure, other: Failure) -> bool:
    """Whether two ranks raised the same in the same place."""
    if one.raised is None or other.raised is None:
        return False
    return (one.raised.exception, one.raised.frames) == (other.raised.exception, other.raised.frames)


def _went_on(said: Failure, log: Log) -> bool:
    """Whether its rank wrote on for long behind mere words; behind a warning, whether it wrote anything else."""
    last = _last_words(said, log)
    if last is None or any(one.sign in last.text for one in said.signs):
        return False
    if _MERELY_TOLD.match(said.line.text):
        return True
    if last.time is not None and said.line.time is not None:
        return last.time - said.line.time > GONE_ON
    return last.file == said.line.file and last.number - said.line.number > MANY * max(len(log.ranks), 1)


def _got_over(failure: Failure, log: Log, ends: Sequence[Failure]) -> bool:
    beside = [one for one in ends if one.line.file == failure.line.file]
    over = max((one.over for one in beside), key=lambda line: line.order)
    by = {one.exited.said_by for one in ends if one.exited and not one.exited.told_to}
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
        return log.steps is not None and log.steps.order > over.order and last.order - over.order > AGAIN
    if failure.raised is None:
        return False
    if silent:
        return _may_be_caught(failure.raised) or _says_more(failure, over, log)
    if not _may_be_caught(failure.raised):
        return False
    if last.time is not None and failure.line.time is not None:
        return last.time - failure.line.time > GONE_ON
    return last.file == over.file and last.number - over.number > MANY * (
        len(log.ranks) if failure.rank is not None else 1
    )


def _goes_on_alone(raised: Raised, over: LogLine, log: Log) -> bool:
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
    return failure.is_ordinary and last is not None and last.file == over.file and last.number - over.number > SAYS_MORE


def _may_be_caught(raised: Raised) -> bool:
    """One that nobody caught goes back to the script's first line."""
    headless = "Traceback" not in raised.began.text
    return bool(raised.frames) and raised.frames[0].function != "<module>" and not headless


def _last_words(failure: Failure | None, log: Log) -> LogLine | None:
    """Of its rank; of all, where no rank is known."""
    if failure and failure.line.rank is not None:
        return next((one.line for one in log.last if one.rank == failure.line.rank), None)
    return max((one.line for one in log.last), key=lambda line: line.order, default=None)
