"""Sections of a `Document` out of what checks came to: findings, what was not tested and why, and what passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.text import one_line, plural
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.engine.registry import Check, Result, SkipReason
from ddpdoctor.report.document import STYLES, Paragraph, Section, StyledText, ToldFinding, Words, placed_summary

Found = tuple[Check, Severity, Finding]

MOST_REASONS: Final = 5
"""Why checks had nothing to look at; the rest is counted."""
MOST_SLUGS: Final = 8
"""Checks that are named for one reason; more are counted."""


def finding_sections(found: Sequence[Found]) -> tuple[Section, ...]:
    """Findings in this order, each with its cause, evidence and fixes; what two in a row have in common is said once."""
    sections = []
    before = ""
    for check, severity, finding in found:
        cause = finding.cause or check.section("Why")
        sections.append(Section((ToldFinding(check, severity, finding, "" if cause == before else cause),)))
        before = cause
    return tuple(sections)


def explanation_sections(explanations: Sequence[Explanation]) -> tuple[Section, ...]:
    """What in a script explains the findings above, each with its line as the title."""
    sections = finding_sections([(told.check, told.severity, told.finding) for told in explanations])
    return tuple(
        msgspec.structs.replace(
            section, title=f"And {told.finding.place} {'is' if told.severity is Severity.FAIL else 'may be'} why"
        )
        for told, section in zip(explanations, sections, strict=True)
    )


def finding_lines(found: Sequence[Found], where: str = "") -> tuple[Words, ...]:
    """A line a finding. where: what each begins with."""
    return tuple(
        (
            StyledText(f"{severity.value.upper():<6}", STYLES[severity]),
            f"{where}{check.slug}: {placed_summary(finding)}",
        )
        for check, severity, finding in found
    )


def more_on(found: Sequence[Found]) -> tuple[Words, ...]:
    """The hint where to read more of the first finding, if that is more than a note."""
    return (
        (f"More on the first: ddpdoctor explain {found[0][0].slug}",)
        if found and found[0][1] is not Severity.INFO
        else ()
    )


def problems_and_warnings(
    severities: Sequence[Severity], problem: str = "problem that will stop or spoil training"
) -> list[str]:
    """Count problems and warnings, each if there is any.

    Args:
        severities: of the findings.
        problem: what a failure is called; its first word has a plural.
    """
    noun, space, rest = problem.partition(" ")
    parts = []
    if fails := severities.count(Severity.FAIL):
        parts.append(f"{plural(fails, noun)}{space}{rest}")
    if warns := severities.count(Severity.WARN):
        parts.append(plural(warns, "warning"))
    return parts


# --- what was not tested ------------------------------------------------------------------------------------------------------


def slugs_by_reason(results: Sequence[Result], *kinds: SkipReason) -> dict[str, list[str]]:
    """Why checks have no verdict, for reasons of these kinds in this order, to their slugs."""
    slugs: dict[str, list[str]] = {}
    for kind in kinds:
        for result in results:
            if result.not_tested is not None and result.not_tested.why is kind:
                slugs.setdefault(result.not_tested.reason, []).append(result.check.slug)
    return slugs


def unknown_reasons(results: Sequence[Result]) -> dict[str, list[str]]:
    """Why checks crashed or could not be judged, to their slugs."""
    return slugs_by_reason(results, SkipReason.CRASHED, SkipReason.UNKNOWN)


def idle_reasons(results: Sequence[Result]) -> dict[str, list[str]]:
    """Why checks had nothing to look at, to their slugs."""
    return slugs_by_reason(results, SkipReason.NOT_APPLICABLE)


def not_tested_sections(
    unknown: Mapping[str, Sequence[str]], idle: Mapping[str, Sequence[str]], *, verbose: bool
) -> tuple[Section, ...]:
    """Slugs by reason: of what could not be tested the checks' names, of what had nothing to look at one paragraph."""
    sections = []
    if unknown:
        named = {
            reason: ", ".join(slugs) if verbose or len(slugs) <= MOST_SLUGS else plural(len(slugs), "check")
            for reason, slugs in unknown.items()
        }
        sections.append(Section(_reason_items(named), StyledText("Could not be tested", "bold magenta")))
    if idle:
        blocks = (
            _reason_items({reason: ", ".join(slugs) for reason, slugs in idle.items()})
            if verbose
            else (Paragraph(StyledText(_main_reasons(idle), "dim"), indent=2),)
        )
        sections.append(Section(blocks, "Not tested, for want of anything to look at"))
    return tuple(sections)


def _reason_items(named: Mapping[str, str]) -> tuple[Paragraph, ...]:
    return tuple(
        Paragraph((one_line(reason), StyledText(f": {names}", "dim")), indent=2) for reason, names in named.items()
    )


def _main_reasons(idle: Mapping[str, Sequence[str]]) -> str:
    """ "no NVIDIA GPU on this host (19), Apex is not installed (5), other reasons (9); -v names them all"."""
    most_first = sorted(idle.items(), key=lambda item: -len(item[1]))
    main, rest = most_first[:MOST_REASONS], most_first[MOST_REASONS:]
    parts = [f"{one_line(reason)} ({len(slugs)})" for reason, slugs in main]
    if rest:
        parts.append(f"other reasons ({sum(len(slugs) for _, slugs in rest)})")
    return f"{', '.join(parts)}; -v names the checks"


def passed_section(slugs: Sequence[str], where: str = "") -> Section:
    """The checks that passed, by name; empty where none did."""
    title = StyledText(f"Passed{where} ({len(slugs)})", "bold green")
    return Section((Paragraph(", ".join(slugs), indent=2),), title) if slugs else Section()


def result_sections(examination: Examination, *, verbose: bool) -> tuple[Section, ...]:
    """The findings of one host, and what was not tested and why."""
    results = examination.results
    return (
        *finding_sections(examination.findings),
        *not_tested_sections(unknown_reasons(results), idle_reasons(results), verbose=verbose),
    )
