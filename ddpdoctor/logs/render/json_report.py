"""The report of `diagnose-log` as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.good_runs import RunComparison
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.words import noise, own_errors, unread
from ddpdoctor.report.contract import Report, build_report, mirror, with_explanations
from ddpdoctor.report.reported_log import (
    HeldName,
    OutcomeName,
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

OUTCOMES: Final[dict[RunOutcome, OutcomeName]] = {
    RunOutcome.ILLNESS: "illness",
    RunOutcome.USER_ERROR: "user-error",
    RunOutcome.STOPPED: "stopped",
    RunOutcome.UNRECOGNISED: "unrecognised",
    RunOutcome.EFFECTS_ONLY: "effects-only",
    RunOutcome.NOTHING: "nothing",
}
HELD: Final[dict[HostVerdict, HeldName]] = {
    HostVerdict.CONFIRMED: "confirmed",
    HostVerdict.CONTRADICTED: "contradicted",
    HostVerdict.NOT_CONFIRMED: "not-confirmed",
    HostVerdict.NOT_TESTED: "not-tested",
}
MAX_LINES: Final = 20
MAX_CALLS: Final = 8


def log_report(judgement: LogJudgement, *, with_facts: bool = False) -> Report:
    """with_facts: also all that was read of the log, and what is known of the host."""
    report = build_report(
        "diagnose-log",
        [judgement.examination],
        unread(judgement.log),
        with_facts=with_facts,
        of_all=judgement.word,
    )
    report = with_explanations(report, judgement.explanations)
    # Without a host's facts nothing was passed, and nobody's host was judged.
    return msgspec.structs.replace(report, host=judgement.examination.snapshot.host, log=reported_log(judgement))


def reported_log(judgement: LogJudgement) -> ReportedLog:
    """All of it is taken from a judgement, whose text is without secrets."""
    log, verdict = judgement.log, judgement.verdict
    lead, raised, exited = verdict.lead, verdict.raised, verdict.exited
    rank = lead.rank if lead else None
    return mirror(
        ReportedLog,
        log,
        outcome=OUTCOMES[verdict.outcome],
        headline=headline(judgement),
        lead=_line(log, lead) if lead else None,
        rank=exited.rank if rank is None and exited else rank,
        host=lead.host or (exited.host if exited else "") if lead else "",
        time=lead.time if lead and not lead.lent else None,
        exception=mirror(ReportedException, raised, calls=raised.frames[-MAX_CALLS:]) if raised else None,
        exit=mirror(ReportedExit, exited) if exited else None,
        suspects=tuple(_suspect(log, opinion) for opinion in judgement.opinions),
        also=(
            *(_own_error(judgement, *error) for error in own_errors(verdict)),
            *(_suspect(log, diagnosis) for diagnosis in judgement.also),
        ),
        comparison=_comparison(log, judgement.comparison) if judgement.comparison else None,
        effects=_effects(log, verdict.effects),
        noise=tuple(mirror(ReportedNoise, message) for message in noise(log, judgement.catalogue)),
        not_kept=log.more,
        rank_evidence=tuple(mirror(ReportedRankEvidence, piece) for piece in verdict.evidence),
        attempt=verdict.attempt,
        other_attempts=tuple(
            ReportedAttempt(
                attempt=log_verdict.attempt,
                outcome=OUTCOMES[log_verdict.outcome],
                lead=_line(log, log_verdict.lead) if log_verdict.lead else None,
            )
            for log_verdict in verdict.elsewhere
        ),
    )


def _comparison(log: Log, comparison: RunComparison) -> ReportedComparison:
    return mirror(
        ReportedComparison,
        comparison,
        refused=tuple(ReportedRefusal(name=name, why=why) for name, why in comparison.refused),
        new=tuple(_line(log, line) for line in comparison.new),
        missing=tuple(mirror(ReportedMissing, line) for line in comparison.missing),
        stopped=tuple(mirror(ReportedStop, stopped, line=_line(log, stopped.line)) for stopped in comparison.stopped),
        alike_until=_line(log, comparison.alike_until) if comparison.alike_until else None,
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
        held=HELD[held.standing] if held else None,
        held_words=held.words if held else "",
    )


def _own_error(judgement: LogJudgement, words: str, line: LogLine) -> ReportedSuspect:
    slug = judgement.catalogue.slug_for(LogTopic.MISTAKE)
    return ReportedSuspect(slug=slug, sure=False, why=words, lines=(_line(judgement.log, line),))


def _effects(log: Log, effects: Sequence[SignMatch]) -> tuple[ReportedEffect, ...]:
    kinds: dict[str, list[SignMatch]] = {}
    for effect in effects:
        kinds.setdefault(effect.sign, []).append(effect)
    return tuple(
        ReportedEffect(
            sign=sign,
            ranks=tuple(sorted({match.line.rank for match in seen if match.line.rank is not None})),
            times=sum(match.times for match in seen),
            first=_line(log, seen[0].line),
        )
        for sign, seen in kinds.items()
    )
