"""The report of `diagnose-log` as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.good_runs import RunComparison
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.words import first_rank_and_host, noise, own_errors, unread
from ddpdoctor.report.contract import Report, build_report, mirror, with_explanations
from ddpdoctor.report.reported_log import (
    ReportedAttempt,
    ReportedComparison,
    ReportedEffect,
    ReportedException,
    ReportedExit,
    ReportedLine,
    ReportedLog,
    ReportedMissing,
    ReportedNoise,
    ReportedRankEvidence,
    ReportedRefusal,
    ReportedStop,
    ReportedSuspect,
)

MAX_LINES: Final = 20
MAX_CALLS: Final = 8


def log_report(judgement: LogJudgement, *, with_facts: bool = False) -> Report:
    """with_facts: also all that was read of the log, and what is known of the host."""
    examination, problems = judgement.examination, unread(judgement.log)
    report = build_report("diagnose-log", [examination], problems, with_facts=with_facts, of_all=judgement.word)
    report = with_explanations(report, judgement.explanations)
    # Without a host's facts nothing was passed, and nobody's host was judged.
    return msgspec.structs.replace(report, host=examination.snapshot.host, log=reported_log(judgement))


def reported_log(judgement: LogJudgement) -> ReportedLog:
    """All of it is taken from a judgement, whose text is without secrets."""
    log, verdict, comparison = judgement.log, judgement.verdict, judgement.comparison
    lead, raised, exited = verdict.lead, verdict.raised, verdict.exited
    rank, host = first_rank_and_host(verdict)
    return mirror(
        ReportedLog,
        log,
        outcome=_name(verdict.outcome),
        headline=headline(judgement),
        lead=lead and _line(log, lead),
        rank=rank,
        host=host,
        time=None if lead is None or lead.lent else lead.time,
        exception=raised and mirror(ReportedException, raised, calls=raised.frames[-MAX_CALLS:]),
        exit=exited and mirror(ReportedExit, exited),
        suspects=tuple(_suspect(log, opinion) for opinion in judgement.opinions),
        also=(
            *(_own_error(judgement, words, line) for words, line in own_errors(verdict)),
            *(_suspect(log, diagnosis) for diagnosis in judgement.also),
        ),
        comparison=comparison and _comparison(log, comparison),
        effects=tuple(_effect(log, seen) for seen in grouped(verdict.effects, lambda effect: effect.sign).values()),
        noise=tuple(mirror(ReportedNoise, message) for message in noise(log, judgement.catalogue)),
        not_kept=log.more,
        rank_evidence=tuple(mirror(ReportedRankEvidence, piece) for piece in verdict.evidence),
        attempt=verdict.attempt,
        other_attempts=tuple(
            mirror(ReportedAttempt, other, outcome=_name(other.outcome), lead=other.lead and _line(log, other.lead))
            for other in verdict.elsewhere
        ),
    )


def _name(of: RunOutcome | HostVerdict) -> str:
    """ "not-confirmed"."""
    return of.name.lower().replace("_", "-")


def _comparison(log: Log, comparison: RunComparison) -> ReportedComparison:
    until = comparison.alike_until
    return mirror(
        ReportedComparison,
        comparison,
        refused=tuple(ReportedRefusal(name=name, why=why) for name, why in comparison.refused),
        new=tuple(_line(log, line) for line in comparison.new),
        missing=tuple(mirror(ReportedMissing, line) for line in comparison.missing),
        stopped=tuple(mirror(ReportedStop, stopped, line=_line(log, stopped.line)) for stopped in comparison.stopped),
        alike_until=until and _line(log, until),
    )


def _line(log: Log, line: LogLine) -> ReportedLine:
    name = log.files[line.file].name if line.file < len(log.files) else ""
    return mirror(ReportedLine, line, file=name, time=None if line.lent else line.time)


def _suspect(log: Log, diagnosis: Diagnosis) -> ReportedSuspect:
    held = diagnosis.held
    return mirror(
        ReportedSuspect,
        diagnosis.suspect,
        lines=tuple(_line(log, sighting.line) for sighting in diagnosis.suspect.sightings[:MAX_LINES]),
        held=held and _name(held.standing),
        held_words=held.words if held else "",
    )


def _own_error(judgement: LogJudgement, words: str, line: LogLine) -> ReportedSuspect:
    slug = judgement.catalogue.slug_for(LogTopic.MISTAKE)
    return ReportedSuspect(slug=slug, sure=False, why=words, lines=(_line(judgement.log, line),))


def _effect(log: Log, seen: Sequence[SignMatch]) -> ReportedEffect:
    ranks = sorted({match.line.rank for match in seen if match.line.rank is not None})
    times = sum(match.times for match in seen)
    return ReportedEffect(sign=seen[0].sign, ranks=tuple(ranks), times=times, first=_line(log, seen[0].line))
