"""Judges the facts of scripts, one after the other, and keeps what was found: the facts of a project are larger than its findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.engine.examination import examine
from ddpdoctor.engine.redaction import redact_facts, redact_source
from ddpdoctor.engine.registry import Check, Result, Skipped, SkipReason
from ddpdoctor.facts.script import Role, Script
from ddpdoctor.facts.snapshot import Snapshot

PlacedFinding = tuple[Check, Severity, Finding]

_OF_SEVERAL_RANKS = (Role.PROCESS_GROUP, Role.WRAP, Role.SHARD, Role.ENGINE, Role.SAMPLER)


class JudgedScript(msgspec.Struct, frozen=True):
    """What a file came to.

    Args:
        path: of the file.
        is_distributed: several ranks run it, as far as is seen.
        findings: of the checks, without those that a comment in the source ignores.
        passed: slugs of the checks that found nothing.
        idle: slugs of the checks that had nothing to look at, to their reasons.
        ignored: how many findings a comment ignores.
        problems: why it, or a file that it imports, could not be read.
        crashed: slugs of checks that failed themselves, to their reasons.
    """

    path: str
    is_distributed: bool = False
    findings: tuple[PlacedFinding, ...] = ()
    passed: tuple[str, ...] = ()
    idle: dict[str, str] = {}
    ignored: int = 0
    problems: tuple[str, ...] = ()
    crashed: dict[str, str] = {}


def judge_script(script: Script, checks: Iterable[Check]) -> JudgedScript:
    """Judge a script by the checks."""
    problems = tuple(f"{file.path}: {file.problem}" for file in script.files if file.problem)
    if script.problem:
        return JudgedScript(script.path, problems=problems)
    examination = examine(Snapshot(script=script), 1, checks)
    findings = tuple(map(_redacted, (found for found in examination.findings if not _is_ignored(script, found))))
    skipped = [(result.check.slug, result.not_tested) for result in examination.results if result.not_tested]
    return JudgedScript(
        script.path,
        next(script.with_role(*_OF_SEVERAL_RANKS), None) is not None,
        findings,
        _shared(tuple(examination.passed)),
        _shared_idle(
            tuple((slug, reason.reason) for slug, reason in skipped if reason.why is SkipReason.NOT_APPLICABLE)
        ),
        len(examination.findings) - len(findings),
        problems,
        {slug: reason.reason for slug, reason in skipped if reason.why is SkipReason.CRASHED},
    )


@lru_cache
def _shared(slugs: tuple[str, ...]) -> tuple[str, ...]:
    """The same object for the same slugs: of ten thousand files most come to the same."""
    return slugs


@lru_cache
def _shared_idle(reasons: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Likewise."""
    return dict(reasons)


def _redacted(found: PlacedFinding) -> PlacedFinding:
    """The finding without what only its sentences show to be a secret. Its edits are made, and shown by what they change."""
    check, severity, finding = found
    return check, severity, msgspec.structs.replace(redact_facts(finding, redact_source), edits=finding.edits)


def _is_ignored(script: Script, found: PlacedFinding) -> bool:
    check, _, finding = found
    place = finding.place
    return place is not None and any(
        (line.file, line.line) == (place.file, place.line) and (not line.slugs or check.slug in line.slugs)
        for line in script.ignored
    )


def merge_findings(judged: Sequence[JudgedScript]) -> tuple[PlacedFinding, ...]:
    """All findings, worst first, then by file and line; one that several scripts come to once, by the worst of them."""
    by_place: dict[object, PlacedFinding] = {}
    for script in judged:
        for found in script.findings:
            key = (found[0].slug, found[2].place)
            known = by_place.get(key)
            if known is None or found[1].rank < known[1].rank:
                by_place[key] = found
    return tuple(sorted(by_place.values(), key=_order))


def merge_results(judged: Sequence[JudgedScript], checks: Iterable[Check]) -> Iterator[Result]:
    """Yield what each check that judged any of the scripts came to in all of them together."""
    findings = merge_findings(judged)
    for check in checks:
        found = tuple(
            msgspec.structs.replace(finding, severity=severity) for by, severity, finding in findings if by is check
        )
        crashed = next((script.crashed[check.slug] for script in judged if check.slug in script.crashed), None)
        idle = next((script.idle[check.slug] for script in judged if check.slug in script.idle), None)
        has_passed = any(check.slug in script.passed for script in judged)
        if crashed is not None:
            yield Result(check, found, Skipped(SkipReason.CRASHED, crashed))
        elif found or has_passed:
            yield Result(check, found)
        elif idle is not None:
            yield Result(check, (), Skipped(SkipReason.NOT_APPLICABLE, idle))


def _order(found: PlacedFinding) -> tuple[int, str, int, int]:
    place = found[2].place
    return found[1].rank, place.file if place else "", place.line if place else 0, place.column if place else 0
