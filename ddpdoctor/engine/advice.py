"""Adds to a finding what other checks know of the words that it rests on."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.text import capital, listed
from ddpdoctor.engine.registry import Check, Result, SkipReason

MAX_NAMED_CHECKS = 3


def with_advice(of: Check, finding: Finding, results: Iterable[Result]) -> Finding:
    """Add what the checks say that know the words of a finding. Those that found something on the same host come first, with
    their fix; one that has nothing to look at there isn't named.

    Args:
        of: the finding's own check.
        finding: as that check gave it.
        results: what all checks came to.
    """
    if not finding.said:
        return finding
    by_slug = {result.check.slug: result for result in results}
    fitting = [
        check
        for check in of.catalogue.saying(finding.said)
        if check.slug != of.slug and _may_be(by_slug.get(check.slug))
    ]
    found = [check for check in fitting if check.slug in by_slug and by_slug[check.slug].findings]
    # What passed may fail in the training all the same, but comes last; before it what only a log shows, which knows nothing of this host.
    named = sorted(
        found or fitting,
        key=lambda check: (check.slug in by_slug and by_slug[check.slug].passed, check.groups == {"log"}),
    )[:MAX_NAMED_CHECKS]
    if not named:
        return finding
    first = tuple(
        _found(by_slug[check.slug]) for check in found[:MAX_NAMED_CHECKS] if by_slug[check.slug].findings[0].fixes
    )
    which = listed(f"`{check.slug}`" for check in named)
    known = Fix(
        f"This is what {which} {'say' if len(named) > 1 else 'says'}",
        tuple(f"ddpdoctor explain {check.slug}" for check in named),
    )
    fixes = (*first, known, *finding.fixes) if found else (*finding.fixes, known)
    return msgspec.structs.replace(finding, fixes=fixes)


def with_a_fix(of: Check, finding: Finding) -> Finding:
    """Add what the check's page advises, where this host's facts led to no fix."""
    if finding.fixes:
        return finding
    advice = " ".join(of.section("Fix").split()) or "See what is known of it"
    return msgspec.structs.replace(finding, fixes=(Fix(advice, (f"ddpdoctor explain {of.slug}",)),))


def _may_be(result: Result | None) -> bool:
    return result is None or result.not_tested is None or result.not_tested.why is not SkipReason.NOT_APPLICABLE


def _found(result: Result) -> Fix:
    fix = result.findings[0].fixes[0]
    slug = result.check.slug
    text = f"`{slug}` was found on this host, and these are its words. {capital(fix.text)}"
    return msgspec.structs.replace(fix, text=text, proven_by=fix.proven_by or slug)
