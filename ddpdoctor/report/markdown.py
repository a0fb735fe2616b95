"""The report as Markdown, to paste into a bug report: anonymised, with the facts that a maintainer asks for first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ddpdoctor.base.text import one_line, visible
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.contract import Report, ReportedFinding, build_report
from ddpdoctor.report.privacy import Anonymiser, hosts_in, people_in
from ddpdoctor.report.summary import summary
from ddpdoctor.report.terminal import verdict_line

Anonymise = Callable[[str], str]


def report_to_markdown(report: Report, text: str, examinations: Sequence[Examination]) -> str:
    """A command's report: its findings, and what a terminal shows of it.

    Args:
        report: what the command came to.
        text: what a terminal shows.
        examinations: of the hosts, whose names are taken out.
    """
    snapshots = [examination.snapshot for examination in examinations]
    facts = msgspec.to_builtins([report, *(snapshot.meeting for snapshot in snapshots)])
    others = hosts_in(facts) - {snapshot.host for snapshot in snapshots}
    snapshots += [Snapshot(host=host) for host in sorted(others)]
    people = people_in(facts)
    anonymisers = [
        Anonymiser(snapshot, number if len(snapshots) > 1 else None, people)
        for number, snapshot in enumerate(snapshots, 1)
    ]

    def anonymise(text: str) -> str:
        for anonymiser in anonymisers:
            text = anonymiser(text)
        return text

    parts = [f"## ddpdoctor {report.command} {report.version}", f"**{report.verdict.value.upper()}**"]
    parts += [_finding(finding, anonymise) for finding in report.findings]
    parts += [f"- not judged: {escape(anonymise(problem))}" for problem in report.problems]
    parts += _not_tested(report, anonymise)
    parts.append(_details("The whole report", anonymise(text)))
    return "\n\n".join(parts) + "\n"


def to_markdown(examinations: Sequence[Examination], problems: Sequence[str] = ()) -> str:
    """What `check` says of hosts, with what a maintainer asks for first."""
    first = verdict_line(examinations, problems).plain.splitlines()[0]
    parts = [f"## ddpdoctor {__version__}", f"**{escape(first)}**"]
    for number, examination in enumerate(examinations, 1):
        anonymise = Anonymiser(examination.snapshot, number if len(examinations) > 1 else None)
        parts += _host(examination, anonymise)
    parts += [f"- not judged: {escape(problem)}" for problem in problems]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    for character in "\\`*_[]|#~@":
        text = text.replace(character, "\\" + character)
    return text


def code(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{visible(text)}\n{fence}"


def _host(examination: Examination, anonymise: Anonymise) -> list[str]:
    report = build_report("check", [examination])
    rows = "\n".join(f"| {label} | {escape(anonymise(text))} |" for label, text in summary(examination))
    parts = [f"| | |\n|---|---|\n{rows}"]
    parts += [_finding(finding, anonymise) for finding in report.findings]
    parts += _not_tested(report, anonymise)
    inapplicable = sum(skipped.why is SkipReason.NOT_APPLICABLE for skipped in report.not_tested)
    parts.append(f"{len(report.passed)} checks passed; {inapplicable} had nothing to look at on this host.")
    environment = examination.snapshot.environment
    if not isinstance(environment, Unknown) and environment.settings:
        lines = "\n".join(f"{setting.name}={anonymise(setting.value)}" for setting in environment.settings)
        parts.append(_details("Settings", lines))
    return parts


def _not_tested(report: Report, anonymise: Anonymise) -> list[str]:
    lines = [
        f"- {skipped.slug}: {escape(anonymise(skipped.reason))}"
        for skipped in report.not_tested
        if skipped.why is not SkipReason.NOT_APPLICABLE
    ]
    return ["### Not tested\n\n" + "\n".join(lines)] if lines else []


def _details(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{code(text)}\n\n</details>"


def _finding(finding: ReportedFinding, anonymise: Anonymise) -> str:
    parts = [
        f"### {finding.severity.value.upper()} {finding.slug}: {escape(anonymise(finding.summary))}",
        escape(anonymise(finding.cause)),
    ]
    parts.append(
        "\n".join(
            f"- seen: {escape(anonymise(evidence.text))} ({escape(anonymise(evidence.source))})"
            for evidence in finding.evidence
        )
    )
    for fix in finding.fixes:
        parts.append(f"Fix: {escape(anonymise(fix.text))}")
        if fix.commands:
            parts.append(code(anonymise("\n".join(fix.commands))))
    return "\n\n".join(part for part in parts if part)
