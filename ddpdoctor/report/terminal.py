"""The report for a person at a terminal: the verdict, what is wrong, worst first, then what was not tested, then what was fine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ddpdoctor.base.findings import Evidence, Finding, Fix, Severity
from ddpdoctor.base.text import one_line, plural, visible
from ddpdoctor.engine.examination import Examination, Verdict, conclusion, node_names, unless_unjudged
from ddpdoctor.engine.registry import Check, SkipReason
from ddpdoctor.report.summary import summary

_MOST_REASONS = 5
_MOST_NAMES = 8

STYLES = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "bold blue"}
VERDICT_STYLES = {
    Verdict.OK: "bold green",
    Verdict.WARN: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "bold magenta",
}


def make_console(file: TextIO, width: int | None = None) -> Console:
    """A console that guesses nothing about what it prints: no markup, no emoji, no highlighting of numbers."""
    # With a height, rich asks no further: on a terminal that calls itself dumb it would take 80 columns, whatever COLUMNS says.
    return Console(file=file, width=width, height=25, markup=False, emoji=False, highlight=False)


def show(
    console: Console,
    examinations: Sequence[Examination],
    problems: Sequence[str] = (),
    *,
    verbose: bool = False,
    quiet: bool = False,
) -> None:
    """Prints the report. `quiet`: a line a finding and the verdict; `verbose`: what passed and had nothing to test, by name."""
    for one, name in zip(examinations, node_names(examinations), strict=True):
        if quiet:
            _show_lines(console, one, f"{one_line(name)}: " if len(examinations) > 1 else "")
        elif len(examinations) > 1 and not verbose and one.conclusion is Verdict.OK:
            console.print(Hanging(Text("OK", VERDICT_STYLES[Verdict.OK]), Text(f"{one_line(name)}: {_counts(one)}"), 6))
            console.print()
        else:
            _show_host(console, one, verbose=verbose)
    for problem in problems:
        console.print(Text().append("not judged  ", "bold magenta").append(visible(problem)))
    console.print(Hanging(Text(""), verdict_line(examinations, problems), 0))


def verdict_line(examinations: Sequence[Examination], problems: Sequence[str] = ()) -> Text:
    """The whole in one sentence, which never says "fine" of what was not tested; of several hosts, each by name."""
    verdict = unless_unjudged(conclusion(examinations), problems)
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    if not examinations:
        return line.append("No verdict: nothing could be judged.", "bold")
    if len(examinations) == 1:
        line.append(f"{_outcome(examinations[0])}.", "bold").append(f" {_counts(examinations[0])}")
    else:
        hosts = zip(node_names(examinations), examinations, strict=True)
        line.append("; ".join(f"{one_line(name)}: {_outcome(one)}" for name, one in hosts) + ".", "bold")
    if problems:
        line.append(f" {plural(len(problems), 'snapshot')} could not be read.", "bold")
    findings = [
        (severity.rank, check.slug) for examination in examinations for check, severity, _ in examination.findings
    ]
    worst = min(findings, key=lambda finding: finding[0], default=None)
    if worst and worst[0] < Severity.INFO.rank:
        line.append(f"\nMore on the first: ddpdoctor explain {worst[1]}", "dim")
    return line


def _outcome(one: Examination) -> str:
    if one.verdict is Verdict.UNKNOWN:
        return "No verdict: not a single check could be judged"
    found = _found(one)
    if one.conclusion is Verdict.UNKNOWN:
        unanswered, all_of_them = one.unanswered
        few = f"No verdict: {unanswered} of {all_of_them} checks that had something to look at could not be tested"
        return f"{few}; {found} so far" if found else few
    return found or "Nothing wrong was found"


def _found(one: Examination) -> str:
    severities = [severity for _, severity, _ in one.findings]
    parts = []
    if fails := severities.count(Severity.FAIL):
        parts.append(plural(fails, "problem") + " that will stop or spoil training")
    if warns := severities.count(Severity.WARN):
        parts.append(plural(warns, "warning"))
    return " and ".join(parts)


def _counts(one: Examination) -> str:
    reasons = [result.not_tested.why for result in one.results if result.not_tested]
    idle = reasons.count(SkipReason.NOT_APPLICABLE)
    unknown = len(reasons) - idle
    return f"{plural(len(one.passed), 'check')} passed, {unknown} could not be tested, {idle} had nothing to look at."


def _show_lines(console: Console, one: Examination, node: str) -> None:
    for check, severity, finding in one.findings:
        line = Text().append(f"{severity.value.upper():<5}", STYLES[severity])
        line.append(f"{node}{check.slug}: {one_line(finding.summary)}")
        console.print(line, soft_wrap=True)


def _show_host(console: Console, one: Examination, *, verbose: bool) -> None:
    rows = summary(one)
    margin = max(len(label) for label, _ in rows) + 2
    for label, text in rows:
        console.print(Hanging(Text(label, "dim"), Text(one_line(text)), margin))
    console.print()
    show_findings(console, one, verbose=verbose)
    if verbose and one.passed:
        console.print(Text(f"Passed ({len(one.passed)})", "bold green"))
        console.print(Hanging(Text(""), Text(", ".join(one.passed)), 2))
        console.print()


def show_findings(console: Console, one: Examination, *, verbose: bool) -> None:
    """What is wrong, worst first, and what was not tested and why."""
    show_found(console, one.findings)
    reasons = _by_reason(one, SkipReason.CRASHED) | _by_reason(one, SkipReason.UNKNOWN)
    show_not_tested(console, reasons, _by_reason(one, SkipReason.NOT_APPLICABLE), verbose=verbose)


def show_found(console: Console, found: Sequence[tuple[Check, Severity, Finding]]) -> None:
    """Findings in this order, each with its cause, evidence and fixes; what two in a row have in common is said once."""
    told = ""
    for check, severity, finding in found:
        cause = finding.cause or check.section("Why")
        _show_finding(console, check, severity, finding, "" if cause == told else cause)
        told = cause


def _show_finding(console: Console, check: Check, severity: Severity, finding: Finding, cause: str) -> None:
    """`cause` is empty where the finding before had the same."""
    head = Text(one_line(finding.summary), "bold")
    head.append(f"  [{check.slug}]", "dim not bold")
    console.print(Hanging(Text(severity.value.upper(), STYLES[severity]), head, 6))
    if cause:
        console.print(_part("why", Text(_paragraph(cause))))
    for index, evidence in enumerate(finding.evidence):
        # The source of several in a row stands after the last of them.
        after = finding.evidence[index + 1 : index + 2]
        again = bool(after) and after[0].source == evidence.source
        console.print(_part("" if index else "seen", evidence_text(Evidence(evidence.text) if again else evidence)))
    for fix in finding.fixes:
        _show_fix(console, fix)
    console.print()


def _show_fix(console: Console, fix: Fix) -> None:
    console.print(_part("fix", Text(_paragraph(fix.text))))
    for command in fix.commands:
        for line in visible(command).splitlines():
            # Unwrapped, whatever the width: it is there to be copied.
            console.print(Text(" " * 14 + line, "cyan"), soft_wrap=True)


def evidence_text(evidence: Evidence) -> Text:
    """What was seen, and in small where."""
    text = Text(one_line(evidence.text))
    if evidence.source:
        text.append(f"  ({one_line(evidence.source)})", "dim")
    return text


def show_not_tested(
    console: Console, unknown: Mapping[str, Sequence[str]], idle: Mapping[str, Sequence[str]], *, verbose: bool
) -> None:
    """Slugs by reason: of what could not be tested the checks' names, of what had nothing to look at one paragraph."""
    if unknown:
        console.print(Text("Could not be tested", "bold magenta"))
        for reason, slugs in unknown.items():
            names = ", ".join(slugs) if verbose or len(slugs) <= _MOST_NAMES else plural(len(slugs), "check")
            console.print(Hanging(Text(""), Text(one_line(reason)).append(f": {names}", "dim"), 2))
        console.print()
    if not idle:
        return
    console.print(Text("Not tested, for want of anything to look at", "bold"))
    if verbose:
        for reason, slugs in idle.items():
            console.print(Hanging(Text(""), Text(one_line(reason)).append(f": {', '.join(slugs)}", "dim"), 2))
    else:
        console.print(Hanging(Text(""), Text(_main_reasons(idle), "dim"), 2))
    console.print()


def _main_reasons(idle: Mapping[str, Sequence[str]]) -> str:
    """ "no NVIDIA GPU on this host (19), Apex is not installed (5), other reasons (9); -v names them all"."""
    most_first = sorted(idle.items(), key=lambda item: -len(item[1]))
    main, rest = most_first[:_MOST_REASONS], most_first[_MOST_REASONS:]
    parts = [f"{one_line(reason)} ({len(slugs)})" for reason, slugs in main]
    if rest:
        parts.append(f"other reasons ({sum(len(slugs) for _, slugs in rest)})")
    return f"{', '.join(parts)}; -v names the checks"


def _by_reason(one: Examination, why: SkipReason) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for result in one.results:
        if result.not_tested is not None and result.not_tested.why is why:
            reasons.setdefault(result.not_tested.reason, []).append(result.check.slug)
    return reasons


def _part(label: str, text: Text) -> Hanging:
    return Hanging(Text(label, "dim"), text, 6, indent=6)


class Hanging:
    """A label, and beside it a text wrapped within its own column; `indent` and `margin` in columns."""

    def __init__(self, label: Text, text: Text, margin: int, indent: int = 0) -> None:
        self._label = label
        self._text = text
        self._margin = margin
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = Text(" " * self._indent).append_text(self._label)
        first.pad_right(max(0, self._margin - len(self._label)))
        rest = Text(" " * (self._indent + self._margin))
        width = max(20, options.max_width - self._indent - self._margin)
        for number, line in enumerate(self._text.wrap(console, width)):
            line.rstrip()
            yield (rest if number else first) + line


def _paragraph(text: str) -> str:
    """Source line breaks become spaces; blank lines and list items stay."""
    lines: list[str] = []
    for line in visible(text).splitlines():
        stripped = line.strip()
        if lines and stripped and lines[-1] and not stripped.startswith(("- ", "* ")):
            lines[-1] += " " + stripped
        else:
            lines.append(stripped)
    return "\n".join(lines)
