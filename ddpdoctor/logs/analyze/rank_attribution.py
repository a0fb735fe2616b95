"""Which rank a failure is of, and which ranks are silent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.facts.log import Log, LogLine, ProcessExit
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import CRASHES, KILL, TELLS_OF_EVERY_END, only, signal_of
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, is_of_process
from ddpdoctor.logs.analyze.illness_traits import names_speaker
from ddpdoctor.logs.analyze.order import lead_of
from ddpdoctor.logs.analyze.rules import LogRule
from ddpdoctor.logs.analyze.timeline import Timeline
from ddpdoctor.logs.exceptions import NAMED, is_alike, is_of_launcher, is_within_launcher
from ddpdoctor.logs.parse.labels import names_process, process_of

OF_ITS_OWN: Final = "mp.spawn"
"""It numbers the processes of one host, and tells of the one that failed first."""
MIN_CHARACTERS: Final = 20
"""Of words that are nobody else's by chance."""
_WARNS: Final = " NCCL WARN "
MAX_LINES_OF_MESSAGE: Final = 5
"""Lines behind an exception; its message may have some of its own."""
MAX_LINES_TO_TRACEBACK: Final = 2
"""Lines between a launcher's word on an end and the traceback that it prints of it."""


class RankEvidence(msgspec.Struct, frozen=True):
    """What one rule tells of the process that a failure is of. end: its end, or the rank alone. score: of the rule, up to 10."""

    words: str
    score: int
    end: ProcessExit

    @property
    def rank(self) -> int | None:
        """The global rank, or that of a process of mp.spawn, which numbers those of its host alone."""
        end = self.end
        return end.local_rank if end.rank is None and end.said_by == OF_ITS_OWN else end.rank


class Attribution(NamedTuple):
    """Whose a failure is. line: of the failure, with the rank, host and time. evidence: what tells of the rank, the surest first."""

    line: LogLine
    evidence: tuple[RankEvidence, ...]


def scores_of(evidence: Sequence[RankEvidence]) -> Mapping[int | None, int]:
    """Add up the evidence for each rank, and for None: that it can't be told."""
    scores: Counter[int | None] = Counter()
    for piece in evidence:
        scores[piece.rank] += piece.score
    return scores


def attribute(failure: Failure, course: Timeline) -> Attribution:
    """Complete the line of a failure with the rank, host and time that only others tell."""
    line, log = failure.line, course.log
    told_by = ((rule, rule(failure, course)) for rule in ATTRIBUTIONS)
    evidence = tuple(RankEvidence(rule.words, rule.score, end) for rule, end in told_by if end is not None)
    scores = scores_of(evidence)
    best = max(evidence, key=lambda piece: scores[piece.rank], default=None)
    exited = best.end if best else None
    rank = best.rank if best else None
    local, alone = line.local_rank, len(log.hosts) < 2 and (log.world_size or 0) <= _nproc(log)
    if rank is None and local is not None and alone:
        rank = local
    if rank is None and local is None and exited is not None and failure.exited is None:
        line = msgspec.structs.replace(line, local_rank=exited.local_rank)
        rank = exited.local_rank if alone and log.world_size else None
    told = exited or failure.exited
    host = line.host or (told.host if told else "") or _host_of(rank, log)
    # A launcher's table doesn't say the zone of its clock, and so tells nothing beside clocks that are not UTC's.
    when = None if exited is None or log.ahead else exited.time
    if (line.time is None or line.lent) and failure.exited is None and when is not None:
        line = msgspec.structs.replace(line, time=when, lent=False)
    # torchrun calls a host so that it couldn't find the name of.
    line = msgspec.structs.replace(line, rank=rank, host="" if host == "localhost" else host)
    return Attribution(line, evidence)


def own_exit(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Find the end that the failure is, without its rank where one line tells those of several."""
    exited = failure.exited
    if exited is None or exited.first:
        return exited
    beside = {end.rank for end in course.log.exited if end.line.order == exited.line.order}
    return msgspec.structs.replace(exited, rank=None) if beside - {exited.rank} else exited


def _own_exit_that_tells(failure: Failure, course: Timeline) -> ProcessExit | None:
    own = own_exit(failure, course)
    return own if own and (own.rank is not None or own.exit_code is not None) else None


def _label(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Read the rank from the label of its line."""
    return _end_or_rank(failure.line.rank, failure.line, course)


def _said_itself(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Read the rank from torch's own sentence, or from a later line of the same message."""
    signs = [
        sign
        for other in course.failures
        if other is failure or (other.kind is FailureKind.SAID and _goes_on_in(failure, other))
        for sign in other.signs
    ]
    words = [sign.words.get("rank", "") for sign in signs if names_speaker(course.catalogue, sign.slug, sign.sign)]
    return _end_or_rank(next((int(word) for word in words if word.isdigit()), None), failure.line, course)


def _goes_on_in(failure: Failure, other: Failure) -> bool:
    """Whether words by themselves stand right behind those of another failure, and tell of the same illness."""
    apart = other.line.number - failure.line.number
    same = failure.line.stream == other.line.stream and bool(failure.slugs & other.slugs)
    return same and 0 < apart <= MAX_LINES_OF_MESSAGE


def _end_or_rank(rank: int | None, line: LogLine, course: Timeline) -> ProcessExit | None:
    """Find the end of a rank, or else what is known of it."""
    if rank is None:
        return None
    return next((end for end in course.ends if end.rank == rank), None) or _with_rank(rank, line)


def _with_rank(rank: int | None, line: LogLine) -> ProcessExit:
    """Write down a rank whose end nobody tells."""
    return ProcessExit(line=line, said_by="", rank=rank, host=line.host)


def _host_of(rank: int | None, log: Log) -> str:
    """Find the host of a rank by its other lines or NCCL's warnings that it repeats; or the log's only one."""
    if rank is None:
        return ""
    lines = [*_heard(log), *(noise.line for noise in log.noise)]
    own = [line for line in lines if line.rank == rank]
    named = {log_line.host for log_line in own if log_line.host and not names_process(log_line.host)}
    if not named:
        warned = [(line.text.rpartition(_WARNS)[2], line.host) for line in lines if _WARNS in line.text and line.host]
        named = {host for words, host in warned if any(_repeats(log_line, words) for log_line in own)}
    if not named and len(log.ranks) == 1:
        named = {host for host in log.hosts if not names_process(host)}
    return next(iter(named)) if len(named) == 1 else ""


def _repeats(line: LogLine, words: str) -> bool:
    """Whether a line has these words, and they are long enough to be nobody else's by chance."""
    return len(words) >= MIN_CHARACTERS and words in line.text


def _heard(log: Log) -> list[LogLine]:
    """Lines that are kept for what they say."""
    return [*(sighting.line for sighting in log.sightings), *(last_words.line for last_words in log.last), *log.errors]


def _nproc(log: Log) -> int:
    """Count the ranks that are at least on the log's only host."""
    local = [end.local_rank for end in log.exited] + [raised.line.local_rank for raised in log.raised]
    return max(len(log.ranks), *(number + 1 for number in local if number is not None), 0)


def exit_of(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Find how the rank of a failure ended."""
    line = failure.line
    if line.rank is not None:
        return next((ending for ending in course.ends if ending.rank == line.rank), None)
    local = [end for end in course.ends if line.local_rank is not None and end.local_rank == line.local_rank]
    return next((end for end in local if "" in (line.host, end.host) or line.host == end.host), None)


def _of_that_pid(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute a line of NCCL's by the pid before it: torchrun names that, and the rank."""
    return only(end for end in course.ends if is_of_process(failure.line, end))


def _of_who_repeats_it(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute a line to the one rank that repeats its words, or other warnings of the same process of NCCL's."""
    line = failure.line
    if failure.exited:
        return None
    heard = _heard(course.log)
    process = process_of(line.text)
    own = [log_line.text for log_line in heard if process and process_of(log_line.text) == process]
    words = {text.rpartition(_WARNS)[2] for text in (line.text, *own) if _WARNS in text}
    if failure.raised:
        words.add(failure.raised.message)
    told = [_said_by(log_line, heard) for log_line in heard if any(_repeats(log_line, word) for word in words)]
    ends = course.ends if any(rank is not None for rank in told) else []
    hosts = {end.rank: end.host for end in ends}
    ranks = {rank for rank in told if rank is not None and line.host in ("", hosts.get(rank) or line.host)}
    if len(ranks) != 1:
        return None
    return only(end for end in ends if end.rank in ranks) or _with_rank(next(iter(ranks)), line)


def _of_who_says_the_same(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute a line of nobody's, as a GPU's own, to the one rank whose exception, last words, or else end, speak of the same illness."""
    line = failure.line
    if failure.exited and failure.exited.exit_code is not None:
        return None
    alike = [other for other in course.failures if other.rank is not None and other.slugs & failure.slugs]
    alike = [other for other in alike if other.kind is not FailureKind.ENDED] or alike
    if failure.raised:
        alike = [other for other in alike if other.kind is FailureKind.SAID and other.line.host == line.host]
    if len({other.rank for other in alike}) != 1:
        return None
    first = alike[0]
    return own_exit(first, course) or exit_of(first, course) or _with_rank(first.rank, first.line)


def _announced(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Find the launcher's line just before a traceback that it prints for one of its processes; not that it ends another one, or its next line."""
    if failure.exited:
        return None
    began = failure.began
    before = (end for end in course.log.exited if end.line.file == began.file and not end.told_to)
    return next((end for end in before if 0 < began.number - end.line.number <= MAX_LINES_TO_TRACEBACK), None)


def _said_by(line: LogLine, heard: Sequence[LogLine]) -> int | None:
    """Tell which rank says a line, or the first of several lines of which it is one: a library labels no other."""
    if line.rank is not None or _WARNS in line.text:
        return line.rank
    labelled = [log_line for log_line in heard if log_line.file == line.file and log_line.rank is not None]
    before = [log_line for log_line in labelled if 0 < line.number - log_line.number <= MAX_LINES_OF_MESSAGE]
    return max(before, key=lambda line: line.number).rank if before else None


def _only_exit(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute a line to the rank that failed first, says its launcher, unless it may have been another's victim."""
    losses = (loss.line for loss in _losses(course) if _may_share_host(loss.line.host, failure))
    if any(loss.rank is None and loss.local_rank is None for loss in losses):
        return None
    # NCCL's own lines, whose process is known, say nothing of whether others' are labelled.
    heard = {
        candidate.line.rank
        for candidate in course.failures
        if candidate.kind is FailureKind.RAISED
        or (candidate.kind is FailureKind.SAID and not candidate.slugs & failure.slugs)
    }
    # Whoever lost another one may be aborted for that.
    alone = not any(candidate.effects for candidate in course.failures)
    signals = (0, *CRASHES) if alone else (0,)
    own = [
        end
        for end in course.ends
        if signal_of(end) in signals
        and not end.told_to
        and (_may_share_host(end.host, failure) or _may_share_host(end.line.host, failure))
        and (end.rank not in heard if end.rank is not None else end.local_rank is not None and heard <= {None})
    ]
    return next((process_exit for process_exit in own if process_exit.first), only(own))


def _may_share_host(host: str, failure: Failure) -> bool:
    """Whether it is the failure's host, as far as labels tell."""
    return "" in (host, failure.line.host) or host == failure.line.host


def _of_the_only_process(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute an unlabelled line, as a DataLoader worker's, to the launcher's only process."""
    log, line = course.log, failure.line
    ended = only(course.ends)
    if ended is None or not (ended.first and ended.said_by == TELLS_OF_EVERY_END) or ended.rank is None:
        return None
    alone = set(log.ranks) <= {ended.rank} and (log.world_size or 1) == 1 and len(log.hosts) < 2
    alone &= not (failure.raises(is_of_launcher) or failure.raises(is_within_launcher) or _losses(course))
    return ended if alone and line.order < ended.line.order else None


def _losses(course: Timeline) -> list[Failure]:
    """List what ranks say that lost another one."""
    return [
        failure
        for failure in course.failures
        if failure.kind is not FailureKind.ENDED
        and failure.is_effect
        and (failure.effects or not failure.raises(is_of_launcher))
    ]


def _of_who_was_killed(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute an out-of-memory message, as Kubernetes', to the only rank that the launcher saw killed first."""
    of_memory = {check.slug for check in course.catalogue.standing_for(LogTopic.KILLED_FOR_MEMORY)}
    if not failure.slugs & of_memory:
        return None
    killed = [end for end in course.ends if signal_of(end) == KILL and end.rank is not None and not end.told_to]
    return only(end for end in killed if end.first) or only(killed)


def _of_who_fell_first(failure: Failure, course: Timeline) -> ProcessExit | None:
    """Attribute a line of nobody's, as the kernel's, to the rank that fell first behind it."""
    line = failure.line
    if failure.kind is not FailureKind.SAID or process_of(line.text):
        return None
    hosts = {ending.rank: ending.host for ending in course.ends}
    fell = [
        failure
        for failure in course.failures
        if failure.rank is not None
        and (failure.raised or (failure.kind is FailureKind.SAID and NAMED.match(failure.line.text)))
        and not (failure.is_effect or failure.is_from_outside or course.far(line, failure.began))
        and failure.began.order > line.order
        and line.host in ("", failure.line.host or hosts.get(failure.rank) or line.host)
    ]
    first = lead_of(fell, course)
    several = len({candidate.rank for candidate in fell if candidate.slugs & failure.slugs}) > 1
    if first is None or (several and not course.ended_first(first)):
        return None
    return exit_of(first, course) or _with_rank(first.rank, first.line)


ATTRIBUTIONS: Final = (
    LogRule("label", "apex-arch-missing/near-miss-torch-itself.log", _label, 10, "the label of its line"),
    LogRule("said-itself", "ddp-param-mismatch/sick-one-of-many.log", _said_itself, 9, "its own sentence names the rank"),
    LogRule("its-own-end", "collective-desync/sick-gather-tee.log", _own_exit_that_tells, 8, "the launcher's word on this end"),
    LogRule("nccls-pid", "memlock-limit/sick-second-in-the-table.log", _of_that_pid, 7, "the process's number, which the launcher names"),
    LogRule("repeated-words", "ib-link-error/sick-watchdog-repeats-it.log", _of_who_repeats_it, 6, "this rank alone repeats its words"),
    LogRule("says-the-same", "oom-batch-too-large/sick-warning-names-the-rank.log", _of_who_says_the_same, 5, "this rank alone tells of the same illness"),
    LogRule("announced", "user-code-error/sick-spawn-and-a-loss.log", _announced, 5, "the launcher's line right before it"),
    LogRule("only-end", "apex-undefined-symbol/sick-layer-norm-torchrun.log", _only_exit, 4, "the only end that nothing else explains, or the launcher's first"),
    LogRule("only-process", "nofile-limit/sick-worker-unlabelled.log", _of_the_only_process, 4, "the launcher had this process alone"),
    LogRule("only-one-killed", "cgroup-memory-limit/sick-slurm-step.log", _of_who_was_killed, 3, "the only rank that was killed, or the first"),
    LogRule("first-behind-it", "driver-too-old/sick-warning-of-nobody.log", _of_who_fell_first, 2, "the first to fail behind it"),
)  # fmt: skip
"""By what it is known of which process a failure is: all that apply are added up."""


def silent_ranks(course: Timeline) -> tuple[int, ...]:
    """List the ranks that say nothing, while others, no fewer, lost one or waited in vain. A block of them at the beginning or the end may
    be a node whose log wasn't read."""
    told = {failure.rank for failure in course.failures if failure.effects and failure.rank is not None}
    # Where several speak, the ranks go up to the highest of them at least.
    highest = max(told, default=0) if len(told) > 1 else 0
    everybody = set(course.log.ranks) | set(range(max(course.log.world_size or 0, highest)))
    silent = everybody - told
    few = len(silent) <= max(1, len(everybody) // 4)
    of_a_node = not few and silent in (
        set(range(len(silent))),
        set(range(len(everybody) - len(silent), len(everybody))),
    )
    return tuple(sorted(silent)) if told and (few or len(silent) < len(told)) and not of_a_node else ()


def ranks_alike(lead: Failure, own: Sequence[Failure], course: Timeline) -> tuple[int, ...]:
    """List the ranks that failed in the same way in the same moment, the lead's among them: which of them is read first says nothing."""
    alike = (other.rank for other in own if other is lead or _fail_alike(lead, other, course))
    ranks = sorted({rank for rank in alike if rank is not None})
    return tuple(ranks) if len(ranks) > 1 and lead.rank in ranks else ()


def _fail_alike(lead: Failure, other: Failure, course: Timeline) -> bool:
    if course.clearly_before(lead, other) or course.clearly_before(other, lead):
        return False
    if lead.raised and other.raised:
        return is_alike(lead.raised, other.raised)
    one, end = lead.exited, other.exited
    if one is None or end is None or one.first or end.first or end.told_to:
        return False
    return (one.said_by, one.exit_code) == (end.said_by, end.exit_code)


def count_alike(lead: Failure, course: Timeline) -> int:
    """Count the equal tracebacks without labels, where there are as many as processes whose end is told: all ranks raised it. Else 0."""
    if lead.raised is None or lead.rank is not None:
        return 0
    alike = (raised for raised in course.log.raised if raised.line.rank is None and is_alike(raised, lead.raised))
    times = sum(raised.times for raised in alike)
    return times if 1 < times == len(course.ends) and times >= (course.log.world_size or 0) else 0
