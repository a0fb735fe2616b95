"""Checks of illnesses that only a log shows: they speak wherever it has their signs, and rest on the lines that have them."""

from __future__ import annotations

from collections.abc import Callable

from ddpdoctor.base.findings import FAIL, Owner, Severity
from ddpdoctor.engine.log_traits import PLAIN_SIGNS, LogTraits
from ddpdoctor.engine.registry import Predicate, check, derived_check
from ddpdoctor.logs.analyze.sightings import FindingOfSigns, judging_signs


def log_check(
    slug: str, *, owner: Owner, severity: Severity = FAIL, of_rank: bool = False, log: LogTraits = PLAIN_SIGNS
) -> Callable[[FindingOfSigns], FindingOfSigns]:
    """Registers a check that is made of its log signs, and of what a function makes of those that a log has.

    The function's docstring is the page. It is asked only where signs of the illness were met, those of healthy runs apart;
    the lines with them are the finding's evidence, unless it names its own. `of_rank`: it is about the rank whose line came first, unless
    it names one.
    """

    def predicate_of(finding_of: FindingOfSigns) -> Predicate:
        return judging_signs(slug, finding_of, of_rank=of_rank)

    return derived_check(check(slug, owner=owner, severity=severity, log=log), predicate_of)
