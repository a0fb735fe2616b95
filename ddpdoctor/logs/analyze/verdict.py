"""What the log of a failed run comes to: which rank failed first, of what, and what only fell with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import ranks_named
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.attempts import attempts_of
from ddpdoctor.logs.analyze.endings import says_complete, signal_of
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, failures_of
from ddpdoctor.logs.analyze.illness_traits import is_about_others, is_grave, is_of_host, is_of_network
from ddpdoctor.logs.analyze.order import MERE_HINT, lead_of, weight
from ddpdoctor.logs.analyze.rank_attribution import (
    RankEvidence,
    attribute,
    count_alike,
    exit_of,
    own_exit,
    ranks_alike,
    silent_ranks,
)
from ddpdoctor.logs.analyze.script_errors import is_surely_the_scripts, program_that_failed
from ddpdoctor.logs.analyze.survival import ended_well, got_over, merely_said, survived
from ddpdoctor.logs.analyze.suspects import MAX_SUSPECTS, EvidencePosition, Ranked, beside, chosen, ranked_suspects
from ddpdoctor.logs.analyze.suspects import Suspect as Suspect
from ddpdoctor.logs.analyze.timeline import Timeline, says_much
from ddpdoctor.logs.analyze.timeouts import hypotheses
from ddpdoctor.logs.exceptions import (
    NAMED,
    exception_in,
    is_alike,
    is_cut,
    is_of_launcher,
    is_ordinary,
    kind_of,
    script_of,
)
from ddpdoctor.logs.launch_failures import TERMINATIONS, ends_the_run, programs_missing
from ddpdoctor.logs.parse.exits import RAY_TRAIN

MAX_LINES_TO_TRACEBACK: Final = 5
"""Lines between an exception's own line and the traceback that a logger writes below it."""
MAX_LINES_TO_LAUNCHER: Final = 2
"""Lines between an exception without its traceback, and its launcher's word of that."""
_TRIES_ON: Final = compile_lazily(r"(?:.{0,160}?[ :])?\[W[\d ]|.{0,200}? NCCL INFO .*, retrying$")
"""A warning of torch's, or NCCL's word on a try that another one follows."""
_ENDS_BADLY: Final = compile_lazily(
    r"(?i:\bexit(?:ed|ing)?(?: with)?[ _-](?:code|status)(?: is| was)?[ :=]{1,3}[1-9]\d{0,2}\W*$)|\bFAILED \(exit (?:code )?[1-9]\d{0,2}\)|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)$"
    r"|^Error executing job with overrides: \[|^(?:Error \w+ing|Failed to|Could not|Unable to) \S.{0,300}: \S"
)
_PRODUCT: Final = compile_lazily(
    r"(?i)\[Errno 2\] No such file or directory: .{0,4000}(?:checkpoint|ckpt|weights|models?\b|outputs?\b|results?\b|\.(?:pth?|safetensors|bin)\b)"
)
"""A file, or a folder, that a training makes."""
WHY_LEAD: Final = "it is what failed first, and no sign of an illness is in it"
WHY_ANNOUNCED: Final = "its process went on after it, and nothing else in this log says why the run failed"
WHY_LOST: Final = "a rank ended without a word, and this is what the others say of it"
WHY_TOLD: Final = "all processes were told to end, and nothing in this log went before"
WHY_EFFECT: Final = "only what follows from a failure elsewhere is in this log"


class RunOutcome(Enum):
    """The result of judging a log."""

    ILLNESS = "an illness was recognised"
    USER_ERROR = "an ordinary error in the user's own code"
    STOPPED = "the run was ended from outside"
    UNRECOGNISED = "something failed, and no sign knows it"
    EFFECTS_ONLY = "there are effects of a failure, and its cause is not in this log"
    NOTHING = "nothing in it speaks of a failure"


TOPICS: Final = {RunOutcome.USER_ERROR: LogTopic.MISTAKE, RunOutcome.STOPPED: LogTopic.STOPPED}
"""Outcomes that are no illness, and have a page."""


class LogVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """suspects: at most three, the likeliest first. lead: the line in which the failure shows itself first; its rank and host are those
    that failed first, where the line doesn't tell them by the launcher's word. effects: what only followed, the earliest first."""

    outcome: RunOutcome
    suspects: tuple[Suspect, ...] = ()
    lead: LogLine | None = None
    raised: LoggedException | None = None
    """The exception of the lead, where there is one."""
    exited: ProcessExit | None = None
    """How the rank of the lead ended, where a launcher says so."""
    effects: tuple[SignMatch, ...] = ()
    also: tuple[Suspect, ...] = ()
    """Illnesses that were seen, too, and that this failure doesn't come from: warnings, later ones."""
    said: tuple[LogLine, ...] = ()
    """Where no exception says why it failed: lines before that speak of an error, else the last words of that rank."""
    others: tuple[LoggedException, ...] = ()
    """Exceptions of other ranks that are no effects of a rank's loss: each kind once, where it was raised first."""
    ended_well: bool = False
    """Nothing says that the run failed: what is told of it is a warning, and the lead the line that gives it."""
    survived: tuple[LogLine, ...] = ()
    """Of a run that came to a good end: the lines that speak of an error all the same."""
    silent: tuple[int, ...] = ()
    """Where there are only effects: the ranks that say nothing, while the others lost or missed one. The lead is then the last line of
    the first of them, if there is one."""
    evidence: tuple[RankEvidence, ...] = ()
    """What tells of which rank the lead is."""
    alike: tuple[int, ...] = ()
    """Several ranks that failed as the lead did, in the same moment, its own among them."""
    all_alike: int = 0
    """The number of all ranks, where each raised the same and no label tells which is whose."""
    notices: bool = False
    """The likeliest illness lies between ranks: the lead may only be the one that tells of it."""
    attempt: int = 0
    """Of a launcher that started the ranks again: the one that this is the verdict on, from 0."""
    elsewhere: tuple[LogVerdict, ...] = ()
    """On the other attempts, the oldest first."""


def verdict_of(log: Log, catalogue: Catalogue) -> LogVerdict:
    """The verdict on one run's logs: of several attempts the last one's that tells of a cause, or that it went through."""
    found = [
        msgspec.structs.replace(_of_attempt(attempt, catalogue), attempt=attempt.attempt or 0)
        for attempt in attempts_of(log)
    ]
    last = found[-1]
    if len(found) > 1 and last.outcome is RunOutcome.NOTHING:
        last = msgspec.structs.replace(last, ended_well=True)
    else:
        causes = [log_verdict for log_verdict in reversed(found) if _names_cause(log_verdict, catalogue)]
        last = next(iter(causes), last)
        for earlier in causes[1:]:
            if misses_what_it_was_to_make(last, earlier):
                last = earlier
    return msgspec.structs.replace(
        last, elsewhere=tuple(log_verdict for log_verdict in found if log_verdict.attempt != last.attempt)
    )


def misses_what_it_was_to_make(verdict: LogVerdict, earlier: LogVerdict) -> bool:
    """Whether a run found no file of a kind that trainings make, and an earlier one of another script, which may have been to make it, had failed."""
    raised = verdict.raised
    if raised is None or not _PRODUCT.match(raised.message) or earlier.outcome is RunOutcome.STOPPED:
        return False
    script = script_of(raised)
    return bool(script) and earlier.raised is not None and script_of(earlier.raised) not in ("", script)


def _names_cause(verdict: LogVerdict, catalogue: Catalogue) -> bool:
    """Whether an attempt tells more than what followed, or than that its ranks, whom another attempt's may hinder, didn't meet."""
    if verdict.outcome is RunOutcome.ILLNESS:
        return any(suspect.sure or not is_of_network(catalogue, suspect.slug) for suspect in verdict.suspects)
    return verdict.outcome not in (RunOutcome.EFFECTS_ONLY, RunOutcome.NOTHING)


def _of_attempt(log: Log, catalogue: Catalogue) -> LogVerdict:
    failures = failures_of(log, catalogue)
    course = Timeline(log, failures, catalogue)
    standing = [
        failure
        for failure in failures
        if any(_stays_sick(catalogue, slug) for slug in failure.slugs) or not course.went_on_until_stopped(failure)
    ]
    if len(standing) < len(failures):
        failures, course = standing, Timeline(log, standing, catalogue)
    fallen = any(failure.is_effect for failure in failures)
    # Who cancels a job for no other reason has mostly seen that it hangs.
    hung = any(failure.effects for failure in failures)
    own = [
        failure
        for failure in failures
        if not failure.is_effect
        and not (fallen and weight(failure, course) == MERE_HINT)
        and not (hung and failure.exited and failure.is_from_outside and not failure.exited.error)
        and not _breaks_off_behind_an_effect(failure, failures)
    ]
    effects = tuple(seen for failure in failures for seen in failure.effects)
    lead = lead_of(own, course)
    if ended_well(course) and not _errors_behind(course):
        return _ended_well(own, course)
    if lead is None:
        return _without_cause(effects, course)
    ranked = ranked_suspects(lead, own, course)
    outcome = _outcome(lead, ranked, bool(effects) and not _was_ended(lead, failures))
    if outcome is RunOutcome.ILLNESS:
        suspects, also = chosen(ranked)
        # Else there is what the others say of a rank that went without a word.
        suspects = suspects or _told_of(effects, WHY_LOST)[:MAX_SUSPECTS]
    else:
        slug = catalogue.slug_for(TOPICS[outcome]) if outcome in TOPICS else ""
        over = got_over(lead, course)
        sure = not over and (lead.raised is None or bool(lead.signs) or is_surely_the_scripts(lead.raised, course.log))
        why = WHY_ANNOUNCED if over else WHY_LEAD
        suspects = (Suspect(slug=slug, sure=sure, sightings=lead.signs, why=why),) if slug else ()
        also = beside(ranked, suspects)
    line, evidence = attribute(lead, course)
    if outcome is RunOutcome.UNRECOGNISED and (missing := _mistake_in(line, course)) and programs_missing(line.text):
        return msgspec.structs.replace(missing, evidence=evidence, exited=own_exit(lead, course), effects=effects)
    if outcome is RunOutcome.UNRECOGNISED and lead.raises(is_cut):
        # Loggers and rich write the exception itself before its traceback.
        above = _exception_right_above(lead, course)
        if above and (mistake := _mistake_in(above, course)) and mistake.raised and lead.raised:
            raised = msgspec.structs.replace(mistake.raised, own=lead.raised.own)
            return msgspec.structs.replace(
                mistake, raised=raised, evidence=evidence, exited=own_exit(lead, course), effects=effects
            )
    return LogVerdict(
        outcome=outcome,
        suspects=suspects,
        lead=line,
        evidence=evidence,
        raised=lead.raised,
        exited=own_exit(lead, course) or exit_of(lead, course),
        effects=effects,
        alike=ranks_alike(lead, own, course),
        all_alike=count_alike(lead, course),
        notices=bool(suspects) and is_about_others(catalogue, suspects[0].slug),
        also=also,
        others=_others(lead, own, course),
        said=_said_before(course, lead) if (lead.exited or lead.raises(is_cut)) and not lead.signs else (),
        ended_well=outcome is RunOutcome.ILLNESS and _only_warns(course),
    )


def _exception_right_above(lead: Failure, course: Timeline) -> LogLine | None:
    """Find the exception's own line that its process has written before the traceback."""
    near = [
        error
        for error in course.log.errors
        if NAMED.match(error.text)
        and error.stream == lead.began.stream
        and 0 < lead.began.number - error.number <= MAX_LINES_TO_TRACEBACK
    ]
    return max(near, key=lambda line: line.number, default=None)


def _breaks_off_behind_an_effect(failure: Failure, others: Sequence[Failure]) -> bool:
    """Whether it is a traceback without its end right behind the words of the same stream on a process that is gone: what waited for it, in
    another thread, falls with it."""
    if not failure.raises(is_cut):
        return False
    return any(
        other.effects
        and other.raised is not None
        and other.line.stream == failure.line.stream
        and 0 < failure.began.number - other.over.number <= MAX_LINES_TO_LAUNCHER
        for other in others
    )


def _only_warns(course: Timeline) -> bool:
    """Whether libraries only warn, of what they try again, or long before the log's end: where the log was cut, or the run goes on, nothing failed.
    Or whether the training has come to its end in spite of what was said, as a monitor may."""
    mere = all(
        failure.kind is FailureKind.SAID
        and ((not failure.names and _TRIES_ON.match(failure.line.text)) or course.only_warned(failure))
        for failure in course.failures
    )
    said = all(failure.kind is FailureKind.SAID and not failure.effects for failure in course.failures)
    return bool(mere or (said and says_complete(course.latest))) and not _last_errors(course)


def _others(lead: Failure, own: Sequence[Failure], course: Timeline) -> tuple[LoggedException, ...]:
    """Mistakes that other ranks made by themselves: none that the lead's rank has made as well, as one of a chain or at its end."""
    kinds: dict[object, LoggedException] = {}
    for failure in own:
        of_another = failure.is_ordinary and failure.rank not in (None, lead.rank)
        if failure.raised and of_another and not (course.outlived(failure) or got_over(failure, course)):
            kinds.setdefault(kind_of(failure.raised), failure.raised)
    place = (lead.line.file, lead.line.rank)
    same = [raised for raised in course.log.raised if lead.raised and (raised.line.file, raised.line.rank) == place]
    return tuple(kind for kind in kinds.values() if not any(is_alike(kind, mine) for mine in same))


def _outcome(lead: Failure, ranked: Sequence[Ranked], lost: bool) -> RunOutcome:
    told = lead.exited and signal_of(lead.exited) in TERMINATIONS and not lost and not lead.signs
    if lead.is_from_outside or told:
        return RunOutcome.STOPPED
    if lead.is_ordinary:
        # Of an end without any exception words that only fit an illness tell more than its exit code.
        near = {EvidencePosition.SHORTLY_BEFORE, *((EvidencePosition.HINT_NEAR,) if lead.exited else ())}
        grave = any(candidate.place in near and candidate.grave for candidate in ranked)
        return RunOutcome.ILLNESS if grave and not lead.signs and not says_much(lead) else RunOutcome.USER_ERROR
    return RunOutcome.ILLNESS if ranked or (lead.exited and lost) else RunOutcome.UNRECOGNISED


def _was_ended(lead: Failure, failures: Sequence[Failure]) -> bool:
    """Whether the launcher saw one rank end by SIGTERM first, and none by anything else: somebody ended it, and the others lost it."""
    ends = [failure.exited for failure in failures if failure.exited and not failure.exited.told_to]
    told = bool(ends) and all(end.exit_code is not None and signal_of(end) in TERMINATIONS for end in ends)
    return told and lead.exited is not None and lead.exited.first


def _told_of(seen: Iterable[SignMatch], why: str) -> tuple[Suspect, ...]:
    """Suspect each illness of which something was seen."""
    return tuple(
        Suspect(slug=slug, sure=False, sightings=tuple(sightings), why=why)
        for slug, sightings in grouped(seen, lambda match: match.slug).items()
    )


def _ended_well(own: Sequence[Failure], course: Timeline) -> LogVerdict:
    """What it got over is no failure; warnings are something to tell of all the same."""
    warnings = [
        failure
        for failure in own
        if failure.kind is FailureKind.SAID and failure.names and _stays_sick(course.catalogue, failure.names[0].slug)
    ]
    if not warnings:
        caught = {
            failure.line for failure in course.failures if not failure.exited and (failure.raised or failure.names)
        }
        lines = sorted({*caught, *survived(course)}, key=lambda line: line.order)
        return LogVerdict(outcome=RunOutcome.NOTHING, ended_well=True, survived=tuple(lines))
    suspects, also = chosen(ranked_suspects(warnings[0], warnings, course))
    return LogVerdict(outcome=RunOutcome.ILLNESS, suspects=suspects, lead=warnings[0].line, also=also, ended_well=True)


def _stays_sick(catalogue: Catalogue, slug: str) -> bool:
    """Whether an illness is worth a word though the run went on."""
    return not is_grave(catalogue, slug) or is_of_host(catalogue, slug)


def _only_ended(failures: Sequence[Failure], course: Timeline) -> LogVerdict:
    """Nothing is known but that processes ended: told to, or by themselves, and their own words are elsewhere; or an exception without
    its traceback stands right before, or in the launcher's own words."""
    first = next((failure for failure in failures if failure.exited and failure.exited.first), failures[0])
    # Those that the launcher ends, it may tell of before the one that failed.
    told_of = [end.line for end in course.log.exited if end.line.file == failures[0].line.file]
    line = _just_before(min(told_of, key=lambda line: line.order), course)
    if line is None and first.exited and first.exited.first and NAMED.match(first.exited.error):
        line = msgspec.structs.replace(first.line, text=first.exited.error)
    exited = own_exit(first, course)
    if line:
        lead, evidence = attribute(msgspec.structs.replace(first, line=line), course)
        found = _mistake_in(lead, course) or LogVerdict(outcome=RunOutcome.UNRECOGNISED, lead=lead)
        return msgspec.structs.replace(found, evidence=evidence, exited=exited)
    lead, evidence = attribute(first, course)
    if not all(failure.exited and _was_told(failure.exited) for failure in failures):
        return LogVerdict(outcome=RunOutcome.EFFECTS_ONLY, lead=lead, evidence=evidence, exited=exited)
    told = Suspect(slug=course.catalogue.slug_for(LogTopic.STOPPED), sure=False, sightings=(), why=WHY_TOLD)
    return LogVerdict(outcome=RunOutcome.STOPPED, suspects=(told,), lead=lead, evidence=evidence, exited=exited)


def _just_before(end: LogLine, course: Timeline) -> LogLine | None:
    """The exception without its traceback, or the word on a program that isn't found, that stands right before a launcher's first word."""
    near = [
        late_error
        for late_error in _late_errors(course)
        if late_error.file == end.file and 0 < end.number - late_error.number <= MAX_LINES_TO_LAUNCHER
    ]
    telling = (line for line in reversed(near) if NAMED.match(line.text) or ends_the_run(line.text))
    return next(telling, None)


def _last_errors(course: Timeline) -> list[LogLine]:
    """An error that its rank went on after for long was none that ends a run; what is indented is part of something else."""
    return [late_error for late_error in _late_errors(course) if not merely_said(late_error, course)]


def _late_errors(course: Timeline) -> list[LogLine]:
    """The same, whatever comes right behind them."""
    return [
        error
        for error in course.log.errors
        if (not error.text[:1].isspace() or _is_last_of_a_cut(error, course)) and not course.gone_on_after(error)
    ]


def _is_last_of_a_cut(error: LogLine, course: Timeline) -> bool:
    """Whether an exception that is indented is its rank's last line: nothing is left of what it was part of."""
    last = course.last.get(error.rank)
    return last is not None and last.order == error.order and bool(NAMED.match(error.text.lstrip()))


def _ended_badly(course: Timeline) -> list[LogLine]:
    """The log's last line, where it is an exception's name alone, Hydra's word before one, or says with which code something ended, and none of
    a good end."""
    last = course.latest
    return [last] if last is not None and _ENDS_BADLY.search(last.text) else []


def _said_before(course: Timeline, lead: Failure | None = None) -> tuple[LogLine, ...]:
    """Lines that speak of an error before all that is known to have followed; where there are none, the last words of the lead's rank."""
    first = min((failure.began.order for failure in course.failures), default=0)
    errors = [late_error for late_error in _late_errors(course) if late_error.order < first][:MAX_SUSPECTS]
    if errors or lead is None or lead.rank is None:
        return tuple(errors)
    last = course.last.get(lead.rank)
    return (last,) if last and last.order < lead.line.order else ()


def _errors_behind(course: Timeline) -> bool:
    """Whether errors that nothing knows follow on all that the run may have got over."""
    last = max((failure.over.order for failure in course.failures), default=0)
    return bool(course.failures) and any(last_error.order > last for last_error in _last_errors(course))


def _was_told(exited: ProcessExit) -> bool:
    """A launcher that names neither code nor signal cancelled it, unless it says that it failed; Kubernetes starts it again."""
    if exited.exit_code is None:
        return not exited.first and exited.said_by not in ("mp.spawn", "kubernetes", RAY_TRAIN)
    return signal_of(exited) in TERMINATIONS


def _first_that_counts(errors: Sequence[LogLine], course: Timeline) -> LogLine | None:
    """Pick the first error; of a single process's exceptions the one that is its last line, which it didn't get over."""
    last = [
        error
        for error in errors
        if course.latest is not None and error.order == course.latest.order and NAMED.match(error.text)
    ]
    alone = not course.log.ranks and not course.log.launcher
    return next(iter([*last, *errors] if alone else errors), None)


def _is_in_passing(line: LogLine, course: Timeline) -> bool:
    """Whether a job script doesn't find a program that trains nothing, behind a training that took steps."""
    log = course.log
    trained = log.trains is not None and log.trains.order < line.order
    return bool(programs_missing(line.text)) and trained and not ends_the_run(line.text)


def _mistake_in(line: LogLine, course: Timeline) -> LogVerdict | None:
    """Judge a line that no sign knows: an exception without its traceback is mostly a mistake, and a program that nobody finds surely is."""
    raised = exception_in(line)
    absent = bool(programs_missing(line.text))
    if not absent and not (raised and is_ordinary(raised)):
        return None
    slug = course.catalogue.slug_for(LogTopic.MISTAKE)
    return LogVerdict(
        outcome=RunOutcome.USER_ERROR,
        suspects=(Suspect(slug=slug, sure=ends_the_run(line.text), sightings=(), why=WHY_LEAD),),
        lead=line,
        raised=None if absent else raised,
    )


def _without_cause(effects: tuple[SignMatch, ...], course: Timeline) -> LogVerdict:
    """Judge a log in which there are only effects, or errors that no sign knows, or nothing."""
    log, failures = course.log, course.failures
    if not failures:
        errors = _last_errors(course) or _ended_badly(course)
        lead = _first_that_counts(errors, course)
        if lead and _is_in_passing(lead, course):
            return LogVerdict(outcome=RunOutcome.NOTHING, ended_well=True, survived=(lead,))
        if lead and (mistake := _mistake_in(lead, course)):
            return mistake
        return LogVerdict(
            outcome=RunOutcome.UNRECOGNISED if lead else RunOutcome.NOTHING,
            lead=lead,
            ended_well=bool(log.errors and not lead),
            survived=() if lead else survived(course),
        )
    if program := program_that_failed(failures):
        line, evidence = attribute(program, course)
        blamed = Suspect(slug=course.catalogue.slug_for(LogTopic.MISTAKE), sure=True, sightings=(), why=WHY_LEAD)
        return LogVerdict(
            outcome=RunOutcome.USER_ERROR, suspects=(blamed,), lead=line, evidence=evidence, raised=program.raised
        )
    ends = [failure for failure in failures if failure.exited and not failure.exited.told_to]
    if not effects and ends and all(failure.exited or failure.raises(is_of_launcher) for failure in failures):
        return _only_ended(ends, course)
    signs = (sign for failure in failures for sign in failure.signs if not failure.is_effect)
    silent = silent_ranks(course)
    why = f"{ranks_named(silent)} said nothing of it, while the others waited" if silent else WHY_EFFECT
    suspects = [
        Suspect(
            slug=course.catalogue.slug_for(hypothesis.cause),
            sure=hypothesis.proven,
            sightings=hypothesis.seen,
            why=hypothesis.why,
            compared=True,
        )
        for hypothesis in hypotheses(log, effects, course.catalogue)
    ]
    if suspects and suspects[0].sure:
        lead = suspects[0].sightings[0].line
        return LogVerdict(outcome=RunOutcome.ILLNESS, suspects=tuple(suspects), lead=lead, effects=effects)
    told = {suspect.slug for suspect in suspects}
    if suspects:
        # That they timed out is what was compared.
        told.add(course.catalogue.slug_for(HangCause.TIMED_OUT))
    suspects += _told_of((seen for seen in (*effects, *signs) if seen.slug not in told), why)
    own = [failure for failure in failures if not failure.raises(is_of_launcher)]
    first = next((failure for failure in own if failure.kind is not FailureKind.ENDED), (own or failures)[0])
    of_silent = (line for rank, line in course.last.items() if rank in silent)
    # What torch says of a store that is gone comes long after a rank's last words.
    last = next((line for line in of_silent if not any(noise.text in line.text for noise in log.noise)), None)
    line, evidence = (last, ()) if last else attribute(first, course)
    return LogVerdict(
        outcome=RunOutcome.EFFECTS_ONLY,
        suspects=tuple(suspects[:MAX_SUSPECTS]),
        lead=line,
        evidence=evidence,
        raised=None if last else first.raised,
        exited=None if last else own_exit(first, course),
        effects=effects,
        said=_said_before(course),
        silent=silent,
    )
