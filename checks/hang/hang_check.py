"""Checks of single causes by which a running job hangs: each says what is special of its cause; the rest all have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ddpdoctor.base.findings import FAIL, Finding, Owner, Severity
from ddpdoctor.engine.log_traits import PLAIN_SIGNS, LogTraits
from ddpdoctor.engine.registry import Predicate, check, derived_check
from ddpdoctor.facts.hang import Hang
from ddpdoctor.hang.certainty import severity_of
from ddpdoctor.hang.evidence import evidence_of
from ddpdoctor.hang.verdict import HangVerdict, verdict_for
from ddpdoctor.knowledge.hang_causes import HangCause

FindingOfVerdict = Callable[[HangVerdict, Hang], Finding]


def hang_check(
    slug: str, cause: HangCause, *, owner: Owner, severity: Severity = FAIL, log: LogTraits = PLAIN_SIGNS
) -> Callable[[FindingOfVerdict], FindingOfVerdict]:
    """Register a check that is made of what a function makes of the verdict, where that is of this cause.

    The function's docstring is the page. Evidence, rank and severity are the verdict's; the function may say another severity.
    """

    def predicate_of(finding_of: FindingOfVerdict) -> Predicate:
        def predicate(hang: Hang) -> Iterator[Finding]:
            return findings_of(hang, cause, finding_of)

        return predicate

    return derived_check(check(slug, owner=owner, severity=severity, stands_for=(cause,), log=log), predicate_of)


def findings_of(hang: Hang, cause: HangCause, finding_of: FindingOfVerdict) -> Iterator[Finding]:
    """Yield the finding where the verdict is of that cause, with what a verdict says by itself."""
    if found := verdict_for(hang, cause):
        finding = finding_of(found, hang)
        yield msgspec.structs.replace(
            finding,
            evidence=evidence_of(found, hang),
            severity=finding.severity or severity_of(found, hang),
            rank=found.blamed_rank(hang),
        )
