"""`ddpdoctor jobs` for a person at a terminal: a table a job, what stands out, what the checks find, what was not seen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import one_line, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.processes.gpu_holders import HeldGpu
from ddpdoctor.processes.jobs_rows import memory_heading, rows_of
from ddpdoctor.processes.jobs_summary import described, heading, headline, in_words, looked_for, nothing_here
from ddpdoctor.processes.jobs_table import show_table
from ddpdoctor.processes.overview import JobView, Overview
from ddpdoctor.report.terminal import STYLES, VERDICT_STYLES, Hanging, show_found, show_not_tested


def show_jobs(console: Console, overview: Overview, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the report. `quiet`: a line a finding, and the verdict; `verbose`: every rank, and what was not tested."""
    examination = overview.examination
    if quiet:
        for check, severity, finding in examination.findings:
            line = Text().append(f"{severity.value.upper():<6}", STYLES[severity])
            console.print(line.append(f"{check.slug}: {one_line(finding.summary)}"), soft_wrap=True)
    else:
        rows = heading(overview)
        margin = max(len(label) for label, _ in rows) + 2
        for label, text in rows:
            console.print(Hanging(Text(label, "dim"), Text(one_line(text)), margin))
        console.print()
        if not overview.views:
            console.print(Hanging(Text(), Text(nothing_here(overview), "bold"), 0))
            console.print(Hanging(Text(), Text(looked_for(), "dim"), 0))
            console.print()
        held = overview.held
        for view in overview.views:
            _show_job(console, view, held, verbose=verbose)
        show_found(console, examination.findings)
        _show_not_tested(console, overview, verbose=verbose)
    _show_last(console, overview)


def _show_job(console: Console, view: JobView, held: tuple[HeldGpu, ...], *, verbose: bool) -> None:
    name = Text(f"Job {view.job.name}", "bold")
    console.print(Hanging(name, Text(headline(view), "bold"), len(name) + 2))
    console.print(Hanging(Text(), Text(described(view.job), "dim"), 2))
    show_table(console, rows_of(view, held, fold=not verbose), memory_heading(held, view))
    for severity, text in in_words(view.untold):
        console.print(Hanging(Text(_word(severity), STYLES[severity]), Text(text), 6, indent=2))
    console.print()


def _word(severity: Severity) -> str:
    return severity.value.upper()


def _show_not_tested(console: Console, overview: Overview, *, verbose: bool) -> None:
    """What had nothing to look at is told with -v alone: most hosts have no job."""
    reasons: dict[SkipReason, dict[str, list[str]]] = {why: {} for why in SkipReason}
    for result in overview.examination.results:
        if result.not_tested is not None:
            reasons[result.not_tested.why].setdefault(result.not_tested.reason, []).append(result.check.slug)
    unknown = reasons[SkipReason.CRASHED] | reasons[SkipReason.UNKNOWN]
    show_not_tested(console, unknown, reasons[SkipReason.NOT_APPLICABLE] if verbose else {}, verbose=verbose)
    if verbose and overview.examination.passed:
        console.print(Text(f"Passed ({len(overview.examination.passed)})", "bold green"))
        console.print(Hanging(Text(), Text(", ".join(overview.examination.passed)), 2))
        console.print()


def _show_last(console: Console, overview: Overview) -> None:
    verdict = overview.verdict
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict]).append(f"{outcome(overview)}.", "bold")
    if overview.others:
        line.append(f" {plural(overview.others, 'finding')} on other processes left out: ddpdoctor jobs", "dim")
    if overview.views:
        name = overview.views[0].job.name if len(overview.views) == 1 else "PID"
        line.append(f"\nWhether it goes on, and where each rank stands: ddpdoctor jobs --hang {name}", "dim")
    found = overview.examination.findings
    if found and verdict is not Verdict.OK:
        line.append(f"\nMore on the first: ddpdoctor explain {found[0][0].slug}", "dim")
    console.print(Hanging(Text(), line, 0))


def outcome(overview: Overview) -> str:
    """The verdict in words."""
    if isinstance(overview.examination.snapshot.processes, Unknown):
        return "No verdict: the processes of this host could not be seen"
    severities = [severity for _, severity, _ in overview.examination.findings]
    parts = []
    if fails := severities.count(Severity.FAIL):
        parts.append(plural(fails, "problem"))
    if warns := severities.count(Severity.WARN):
        parts.append(plural(warns, "warning"))
    jobs = plural(len(overview.views), "job") if overview.views else "No job"
    if not parts:
        notes = f"; {plural(len(severities), 'note')}" if severities else ""
        return f"{jobs}, and nothing wrong stands out{notes}"
    return f"{jobs}: {' and '.join(parts)}"
