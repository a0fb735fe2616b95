"""The report of a preflight: who came, what was tried, and what is wrong, worst first."""

from __future__ import annotations

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import plural, ranks_named
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.job_preflight.judging import examinations_of
from ddpdoctor.job_preflight.messages import JobVerdict
from ddpdoctor.report.check_results import (
    finding_lines,
    finding_sections,
    more_on,
    not_tested_sections,
    problems_and_warnings,
    unknown_reasons,
)
from ddpdoctor.report.document import Document, Paragraph, Section, StyledText
from ddpdoctor.report.merged_findings import folded


def document(verdict: JobVerdict, catalogue: Catalogue, *, verbose: bool = False, quiet: bool = False) -> Document:
    """Build the report.

    Args:
        verdict: that of all ranks.
        catalogue: of the checks.
        verbose: also what could not be tested on the hosts, by name.
        quiet: a line a finding, and the verdict.
    """
    names, examinations = examinations_of(verdict, catalogue)
    # What is wrong with the job names its ranks itself.
    job, hosts = examinations[0], examinations[1:]
    found = sorted([*job.findings, *folded(hosts, names[1:], verbose=verbose)], key=lambda finding: finding[1].rank)
    if not verbose:
        # It stands in the job's own output.
        found = [finding for finding in found if finding[1] is not Severity.INFO]
    counted = " and ".join(problems_and_warnings([severity for _, severity, _ in found]))
    # A look at a host from outside leaves open what a rank knows.
    untested = unknown_reasons([result for host in (examinations if verbose else (job,)) for result in host.results])
    unjudged = tuple(Paragraph(text, StyledText("not judged", "bold magenta"), 12) for text in verdict.problems)
    return Document(
        verdict=verdict.verdict,
        headline=_headline(verdict),
        rows=_rows(verdict),
        lines=(*finding_lines(found), *verdict.problems) if quiet else (),
        sections=()
        if quiet
        else (*finding_sections(found), *not_tested_sections(untested, {}, verbose=verbose), Section(unjudged)),
        outcome=counted or ("No verdict" if verdict.verdict is Verdict.UNKNOWN else "Nothing wrong was found"),
        hints=more_on(found),
    )


def _headline(verdict: JobVerdict) -> str:
    if not verdict.world_size:
        return "Preflight without a verdict"
    if verdict.world_size < 2:
        return "Preflight of this process and its host"
    came = "" if verdict.answered == verdict.world_size else f", {verdict.answered} of which answered"
    hosts = f", and of {plural(len(verdict.hosts), 'host')}" if verdict.hosts else ""
    return f"Preflight of {plural(verdict.world_size, 'rank')}{came}{hosts}"


def _rows(verdict: JobVerdict) -> tuple[tuple[str, str], ...]:
    rows = []
    if verdict.absent:
        rows.append(("missing", ranks_named(verdict.absent)))
    if verdict.calls:
        rows.append(("passed", "; ".join(verdict.calls)))
    return tuple(rows)
