"""The report of `lint`: findings worst first, then the files that could not be read."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.text import one_line, plural
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.report.check_results import (
    finding_lines,
    finding_sections,
    more_on,
    not_tested_sections,
    passed_section,
    problems_and_warnings,
)
from ddpdoctor.report.document import Document, Paragraph, Section, StyledText
from ddpdoctor.scripts.judging import JudgedScript, PlacedFinding

_MAX_CRASHED = 3
_NOT_READ = StyledText("not read", "bold magenta")
_NOT_READ_WORDS = ": not read: "
"""That a problem has for itself, and not beside that label."""
_MARGIN = 10


def lint_document(
    judged: Sequence[JudgedScript],
    findings: Sequence[PlacedFinding],
    problems: Sequence[str],
    verdict: Verdict,
    *,
    verbose: bool = False,
    quiet: bool = False,
) -> Document:
    """The report for people.

    Args:
        judged: the files.
        findings: of all of them.
        problems: why some of them, or something else, could not be read.
        verdict: on the whole.
        verbose: name what passed.
        quiet: a line a finding, and the verdict.
    """
    outcome = " and ".join(problems_and_warnings([severity for _, severity, _ in findings]))
    unread = [one_line(problem.replace(_NOT_READ_WORDS, ": ", 1)) for problem in problems]
    told = Section(tuple(Paragraph(problem, _NOT_READ, _MARGIN) for problem in unread))
    return Document(
        verdict=verdict,
        sections=() if quiet else (*finding_sections(findings), told, *_passed(judged, verbose=verbose)),
        lines=(*finding_lines(findings), *((_NOT_READ, f"  {problem}") for problem in unread)) if quiet else (),
        outcome=outcome or _without_problems(judged, findings),
        counts=_counts(judged, problems),
        hints=more_on(findings),
    )


def _without_problems(judged: Sequence[JudgedScript], hints: Sequence[PlacedFinding]) -> str:
    if hints:
        return "No certain mistake was found"
    if any(script.passed for script in judged):
        return "No mistake was found"
    return "Nothing to judge: no script was read in which several ranks train" if judged else "Nothing was read"


def _counts(judged: Sequence[JudgedScript], problems: Sequence[str]) -> str:
    distributed = sum(script.is_distributed for script in judged)
    parts = [f"{plural(len(judged), 'file')} read" + (f", {distributed} of them distributed" if judged else "")]
    if ignored := sum(script.ignored for script in judged):
        parts.append(f"{plural(ignored, 'finding')} ignored by comments")
    if problems:
        parts.append(f"{len(problems)} not read")
    if crashed := crashes(judged):
        parts.append(f"{plural(len(crashed), 'check')} crashed")
    return f"{'; '.join(parts)}."


def _passed(judged: Sequence[JudgedScript], *, verbose: bool) -> tuple[Section, ...]:
    failed = tuple(Paragraph(crash, indent=2) for crash in crashes(judged)[:_MAX_CRASHED])
    title = StyledText("Could not be tested", "bold magenta")
    crashed = Section(failed, title) if failed else Section()
    if not verbose:
        return (crashed,)
    return (crashed, passed_section(passed_slugs(judged)), *not_tested_sections({}, _idle_slugs(judged), verbose=True))


def _idle_slugs(judged: Sequence[JudgedScript]) -> dict[str, list[str]]:
    """The checks that had nothing to look at in any file where several ranks train, by the reason."""
    trained = [script for script in judged if script.is_distributed]
    looked = {slug for script in trained for slug in script.passed}
    looked.update(check.slug for script in trained for check, _, _ in script.findings)
    reasons: dict[str, str] = {}
    for script in trained:
        for slug, reason in script.idle.items():
            if slug not in looked:
                reasons.setdefault(slug, reason)
    by_reason: dict[str, list[str]] = {}
    for slug, reason in reasons.items():
        by_reason.setdefault(reason, []).append(slug)
    return by_reason


def crashes(judged: Sequence[JudgedScript]) -> tuple[str, ...]:
    """The checks that failed themselves, with the reason of each."""
    reasons = {slug: reason for script in judged for slug, reason in script.crashed.items()}
    return tuple(f"{slug}: {reason}" for slug, reason in reasons.items())


def passed_slugs(judged: Sequence[JudgedScript]) -> tuple[str, ...]:
    """The checks that looked at some file, and found nothing in any."""
    found = {check.slug for script in judged for check, _, _ in script.findings}
    return tuple(dict.fromkeys(slug for script in judged for slug in script.passed if slug not in found))
