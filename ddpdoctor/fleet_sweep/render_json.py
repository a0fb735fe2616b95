"""A sweep in the JSON contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import plural
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.fleet_sweep.comparison import OddFact, shown_value
from ddpdoctor.fleet_sweep.outcome import FleetOutcome
from ddpdoctor.fleet_sweep.sweep import STATES
from ddpdoctor.knowledge.hostlist import fold
from ddpdoctor.report.contract import Report, ReportedFinding, ReportedNotTested
from ddpdoctor.report.reported_fleet import ReportedChange, ReportedFleet, ReportedFleetHost, ReportedOddFact


def fleet_report(outcome: FleetOutcome) -> Report:
    """Build what `fleet --json` prints."""
    sweep = outcome.sweep
    columns = [Counter(host.states[place] for host in sweep.hosts.values()) for place in range(len(sweep.checks))]
    return Report(
        command="fleet",
        host="",
        verdict=outcome.verdict,
        findings=tuple(
            ReportedFinding(
                found.slug,
                found.family,
                found.severity,
                found.owner,
                found.finding.summary,
                found.finding.cause,
                found.finding.evidence,
                found.finding.fixes,
                docs=found.docs,
                nodes=fold(names),
            )
            for found, names in outcome.by_finding
        ),
        not_tested=tuple(
            ReportedNotTested(
                sweep.checks[place], f"on {plural(counts[STATES[why.value]], 'host')} of {len(sweep.hosts)}", why
            )
            for why in (SkipReason.CRASHED, SkipReason.UNKNOWN)
            for place, counts in enumerate(columns)
            if counts[STATES[why.value]]
        ),
        passed=tuple(
            slug
            for slug, counts in zip(sweep.checks, columns, strict=True)
            if counts and set(counts) == {STATES["passed"]}
        ),
        problems=outcome.problems,
        fleet=_fleet(outcome),
    )


def _fleet(outcome: FleetOutcome) -> ReportedFleet:
    held = outcome.held
    groups = outcome.groups
    return ReportedFleet(
        read=outcome.sweep.read,
        passing=fold(outcome.passing),
        failing=fold(outcome.exclusions),
        absent=fold(outcome.absent),
        unexpected=fold(outcome.unexpected),
        unjudged=fold(outcome.unjudged),
        hosts=tuple(_hosts(outcome)),
        odd=tuple(fact for group in groups for fact in _facts(group.label, group.odd)),
        undecided=tuple(fact for group in groups for fact in _facts(group.label, group.undecided)),
        not_compared=tuple(fact for group in groups for fact in _facts(group.label, group.unknown)),
        deviations=tuple(_facts("", held.deviations)) if held else (),
        without_baseline=fold(held.without) if held else "",
        different=tuple(sorted({path for group in groups for path in group.different})),
        changes=None
        if outcome.changes is None
        else tuple(
            ReportedChange(
                kind=change.kind.value,
                what=change.what,
                before=shown_value(change.before) if change.before else "",
                after=shown_value(change.after) if change.after else "",
                hosts=fold(change.hosts),
            )
            for change in outcome.changes
        ),
    )


def _hosts(outcome: FleetOutcome) -> Iterable[ReportedFleetHost]:
    for name in sorted(outcome.sweep.hosts):
        host = outcome.sweep.hosts[name]
        found = outcome.sweep.findings_of(host)
        yield ReportedFleetHost(
            host=name,
            group=outcome.labels[name],
            verdict=host.verdict,
            passing=name not in outcome.exclusions,
            why=outcome.exclusions.get(name, ""),
            fail=_slugs(found_slug.slug for found_slug in found if found_slug.severity is Severity.FAIL),
            warn=_slugs(found_slug.slug for found_slug in found if found_slug.severity is Severity.WARN),
            odd=tuple(outcome.odd_hosts.get(name, ())),
        )


def _slugs(slugs: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(slugs))


def _facts(label: str, facts: Iterable[OddFact]) -> Iterable[ReportedOddFact]:
    return (
        ReportedOddFact(
            group=label,
            path=fact.path,
            value=shown_value(fact.value),
            expected=None if fact.expected is None else shown_value(fact.expected),
            hosts=fold(fact.hosts),
            agreeing=fact.agreeing,
            of=fact.of,
        )
        for fact in facts
    )
