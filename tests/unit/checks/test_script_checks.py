"""The rules of scripts: each finds the mistake in every script that makes it, and is silent on honest ones that look the same."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.registry import Check, SkipReason
from tests.support.script_cases import ORIGINS, ScriptCase, script_cases, slugs_with_scripts

RULES = [check for check in all_checks() if "script" in check.groups]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.slug)
every_case = pytest.mark.parametrize("case", script_cases(), ids=lambda case: case.id)


@pytest.mark.quick
@every_rule
def test_a_rule_has_sick_scripts_and_honest_ones(rule: Check) -> None:
    assert script_cases(rule.slug, "sick-")
    assert script_cases(rule.slug, "near-miss-")


@every_rule
def test_an_honest_script_is_judged_and_fine(rule: Check) -> None:
    """Silence may also mean that there was nothing to look at: that alone proves nothing."""
    assert any(case.judge().passed for case in script_cases(rule.slug, "near-miss-"))


@pytest.mark.quick
def test_every_folder_of_scripts_is_a_rules() -> None:
    assert set(slugs_with_scripts()) == {rule.slug for rule in RULES}


@every_case
def test_a_script_is_judged_right(case: ScriptCase) -> None:
    result = case.judge()
    assert result.not_tested is None or result.not_tested.why is SkipReason.NOT_APPLICABLE, result.not_tested
    assert bool(result.findings) is case.is_sick
    for finding in result.findings:
        assert finding.place is not None
        assert finding.place.text
        assert finding.evidence
        assert finding.fixes
        assert len(finding.summary) <= 120
        assert "\n" not in finding.summary


@every_case
def test_a_script_says_where_it_comes_from(case: ScriptCase) -> None:
    first = case.path.read_text().partition("\n")[0]
    assert first.startswith(ORIGINS)
    assert len(first) > 20
