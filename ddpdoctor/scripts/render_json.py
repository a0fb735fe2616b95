"""The report of `lint` as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.report.contract import Report, ReportedNotTested, report_finding
from ddpdoctor.report.reported_scripts import ReportedScript
from ddpdoctor.scripts.judging import JudgedScript, PlacedFinding
from ddpdoctor.scripts.render import passed_slugs


def lint_report(
    command: str,
    judged: Sequence[JudgedScript],
    findings: Sequence[PlacedFinding],
    problems: Sequence[str],
    verdict: Verdict,
) -> Report:
    """The report for programs; the arguments are those of the document."""
    passed = passed_slugs(judged)
    told = {*passed, *(check.slug for check, _, _ in findings)}
    crashed = {slug: reason for script in judged for slug, reason in script.crashed.items()}
    idle = {
        slug: reason
        for script in judged
        for slug, reason in script.idle.items()
        if slug not in told and slug not in crashed
    }
    return Report(
        command=command,
        host="",
        verdict=verdict,
        findings=tuple(report_finding(check, severity, finding) for check, severity, finding in findings),
        not_tested=(
            *(ReportedNotTested(slug, reason, SkipReason.CRASHED) for slug, reason in crashed.items()),
            *(ReportedNotTested(slug, reason, SkipReason.NOT_APPLICABLE) for slug, reason in idle.items()),
        ),
        passed=passed,
        problems=tuple(problems),
        scripts=reported_scripts(judged),
    )


def reported_scripts(judged: Sequence[JudgedScript]) -> tuple[ReportedScript, ...]:
    """The scripts that were read, as programs get them."""
    return tuple(ReportedScript(script.path, script.is_distributed, "; ".join(script.problems)) for script in judged)
