"""One host examined: its facts, the plan, and what each check came to; and the verdict over several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.engine.advice import with_a_fix, with_advice
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, Result, SkipReason, diagnose
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot

MAX_UNANSWERED_SHARE = 1 / 3
"""Of the checks that had something to look at: where more could not be tested, nothing is said of the whole."""
MIN_UNANSWERED = 3
"""Whoever chooses two or three checks sees of each what it came to."""


class Verdict(str, Enum):
    """The whole in a word; `unknown` where no check reached a verdict, or of a whole host too few did."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"

    def exit_code(self, *, strict: bool) -> int:
        """0 nothing failed, 1 something did (or warned, if strict), 2 no verdict."""
        if self is Verdict.UNKNOWN:
            return 2
        return 1 if self is Verdict.FAIL or (strict and self is Verdict.WARN) else 0


class Examination(msgspec.Struct, frozen=True):
    """One host's facts and what the checks made of them."""

    snapshot: Snapshot
    plan: Plan
    results: tuple[Result, ...]

    @property
    def findings(self) -> list[tuple[Check, Severity, Finding]]:
        """Worst first; among equals in the checks' order."""
        found = [
            (
                result.check,
                severity := result.check.severity_of(finding),
                _advised(result.check, severity, with_advice(result.check, finding, self.results)),
            )
            for result in self.results
            for finding in result.findings
        ]
        return sorted(found, key=lambda advised: advised[1].rank)

    @property
    def passed(self) -> list[str]:
        return [result.check.slug for result in self.results if result.passed]

    @property
    def unanswered(self) -> tuple[int, int]:
        """Count the checks that could not be tested, for want of a fact or by their own fault, and those that had something to look at."""
        reasons = [result.not_tested.why if result.not_tested else None for result in self.results]
        applicable = len(reasons) - reasons.count(SkipReason.NOT_APPLICABLE)
        return applicable - reasons.count(None), applicable

    @property
    def has_too_few_answers(self) -> bool:
        """Whether too many checks could not be tested to call the host well."""
        unanswered, applicable = self.unanswered
        return unanswered >= max(MIN_UNANSWERED, MAX_UNANSWERED_SHARE * applicable)

    @property
    def conclusion(self) -> Verdict:
        """The verdict on the host: none where nothing fails, and too many checks could not be tested."""
        return Verdict.UNKNOWN if self.has_too_few_answers and self.verdict is not Verdict.FAIL else self.verdict

    @property
    def verdict(self) -> Verdict:
        return verdict_on(self.results, passed=bool(self.passed))


def _advised(of: Check, severity: Severity, finding: Finding) -> Finding:
    return with_a_fix(of, finding) if severity is Severity.FAIL else finding


def verdict_on(results: Iterable[Result], *, passed: bool) -> Verdict:
    """The worst of all findings; none where there are none and no check has passed.

    Args:
        results: of checks.
        passed: whether any check has, among them or beside them.
    """
    severities = {result.check.severity_of(finding) for result in results for finding in result.findings}
    for severity, verdict in ((Severity.FAIL, Verdict.FAIL), (Severity.WARN, Verdict.WARN)):
        if severity in severities:
            return verdict
    return Verdict.OK if passed or severities else Verdict.UNKNOWN


def examine(snapshot: Snapshot, nproc: int | None, checks: Iterable[Check]) -> Examination:
    """Judge one host's facts by the checks."""
    plan = plan_for(snapshot, nproc)
    return Examination(snapshot, plan, diagnose(snapshot, plan, checks))


def node_names(examinations: Sequence[Examination]) -> list[str]:
    """Name each of them: by its host's name, and where two snapshots are of one host a number behind it."""
    names: list[str] = []
    for examination in examinations:
        host = examination.snapshot.host or "unnamed"
        earlier = sum(name == host or name.startswith(f"{host} (") for name in names)
        names.append(f"{host} ({earlier + 1})" if earlier else host)
    return names


def overall(examinations: Sequence[Examination]) -> Verdict:
    """The worst verdict; one host without any is worse than a warning elsewhere, and not as bad as a failure."""
    return _worst(examination.verdict for examination in examinations)


def conclusion(examinations: Sequence[Examination]) -> Verdict:
    """The same of whole hosts: see `Examination.conclusion`."""
    return _worst(examination.conclusion for examination in examinations)


def unless_unjudged(verdict: Verdict, problems: Sequence[str]) -> Verdict:
    """The verdict on the whole, where something may not have been judged: a failure stays one, of the rest nothing is said.

    Args:
        verdict: on what was judged.
        problems: what kept something from being judged.
    """
    return Verdict.UNKNOWN if problems and verdict is not Verdict.FAIL else verdict


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    order = [Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.OK]
    return min(verdicts, key=order.index, default=Verdict.UNKNOWN)
