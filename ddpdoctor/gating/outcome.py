"""Which of the findings count for a gate, and the verdict that comes of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ddpdoctor.base.findings import Owner, Severity
from ddpdoctor.base.text import one_line, plural

if TYPE_CHECKING:
    from ddpdoctor.report.contract import ReportedFinding

GATE_OWNERS: Final = (Owner.NODE,)
"""Whose failures close a gate, unless it is told otherwise: what a user has set takes no node out."""
MAX_NAMED: Final = 5
"""Checks that one line names."""


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """A finding as a gate tells it. commands: those of its first fix that has any."""

    slug: str
    severity: Severity
    owner: Owner
    summary: str
    commands: tuple[str, ...] = ()


class GateOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate has come to.

    Args:
        verdict: `unknown` where too little was seen to say anything.
        failures: why it is closed, the first of the worst.
        warnings: what else is the node's, or may be.
        others: what somebody else is to mend, and no verdict on the node.
        passed: number of checks that looked and found nothing.
        why_unknown: why there is no verdict; "" where there is one.
    """

    verdict: Literal["ok", "warn", "fail", "unknown"]
    failures: tuple[Concern, ...] = ()
    warnings: tuple[Concern, ...] = ()
    others: tuple[Concern, ...] = ()
    passed: int = 0
    why_unknown: str = ""

    @property
    def slugs(self) -> tuple[str, ...]:
        """The checks that closed it, each once."""
        return tuple(dict.fromkeys(concern.slug for concern in self.failures))

    @property
    def told_slugs(self) -> frozenset[str]:
        """The checks that found something, whosever it is."""
        return frozenset(concern.slug for concern in (*self.failures, *self.warnings, *self.others))

    @property
    def line(self) -> str:
        """The whole in one line, which names the owner of the worst, and that owner's checks, the worst first."""
        if self.verdict == "unknown":
            return f"no verdict: {self.why_unknown}"
        if not (counted := self.failures or self.warnings):
            return f"{plural(self.passed, 'check')} passed"
        owner = counted[0].owner
        slugs = tuple(dict.fromkeys(concern.slug for concern in counted if concern.owner is owner))
        more = f" and {len(slugs) - MAX_NAMED} more" if len(slugs) > MAX_NAMED else ""
        return f"{owner.value}: {', '.join(slugs[:MAX_NAMED])}{more}: {counted[0].summary}"


def no_verdict(why: str) -> GateOutcome:
    """The outcome of a gate that could not look."""
    return GateOutcome(verdict="unknown", why_unknown=one_line(why))


def concern_of(finding: ReportedFinding) -> Concern:
    """What a gate tells of a finding."""
    return Concern(
        slug=finding.slug,
        severity=finding.severity,
        owner=finding.owner,
        summary=one_line(finding.summary),
        commands=next((fix.commands for fix in finding.fixes if fix.commands), ()),
    )


def weigh_concerns(
    concerns: Iterable[Concern], *, passed: int, why_unknown: str, owners: Collection[Owner] = GATE_OWNERS
) -> GateOutcome:
    """Count the findings.

    Args:
        concerns: of all checks, the worst first.
        passed: number of checks that looked and found nothing.
        why_unknown: why too little was seen to call the node well; a failure that was seen is one all the same.
        owners: whose failures close the gate.
    """
    told = [concern for concern in concerns if concern.severity is not Severity.INFO]
    failures = tuple(concern for concern in told if concern.severity is Severity.FAIL and concern.owner in owners)
    warnings = tuple(
        concern for concern in told if concern not in failures and concern.owner in (*owners, Owner.UNKNOWN)
    )
    others = tuple(concern for concern in told if concern not in failures and concern not in warnings)
    if not (passed or failures or warnings):
        why_unknown = why_unknown or "none of the checks had anything of the node to look at"
    verdict: Literal["ok", "warn", "fail", "unknown"] = (
        "fail" if failures else "unknown" if why_unknown else "warn" if warnings else "ok"
    )
    return GateOutcome(
        verdict=verdict,
        failures=failures,
        warnings=warnings,
        others=others,
        passed=passed,
        why_unknown=one_line(why_unknown),
    )
