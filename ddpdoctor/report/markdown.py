"""The report as Markdown, to paste into a bug report: anonymised, with the facts that a maintainer asks for first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpdoctor import __version__
from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Check, SkipReason
from ddpdoctor.report.privacy import Anonymiser
from ddpdoctor.report.summary import summary
from ddpdoctor.report.terminal import verdict_line

Anonymise = Callable[[str], str]


def to_markdown(examinations: Sequence[Examination], problems: Sequence[str] = ()) -> str:
    """The whole report."""
    first = verdict_line(examinations, problems).plain.splitlines()[0]
    parts = [f"## ddpdoctor {__version__}", f"**{escape(first)}**"]
    for number, one in enumerate(examinations, 1):
        anonymise = Anonymiser(one.snapshot, number if len(examinations) > 1 else None)
        parts += _host(one, anonymise)
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


def _host(one: Examination, anonymise: Anonymise) -> list[str]:
    rows = "\n".join(f"| {label} | {escape(anonymise(text))} |" for label, text in summary(one))
    parts = [f"| | |\n|---|---|\n{rows}"]
    parts += [_finding(check, severity, finding, anonymise) for check, severity, finding in one.findings]
    not_tested = [
        f"- {result.check.slug}: {escape(anonymise(result.not_tested.reason))}"
        for result in one.results
        if result.not_tested is not None and result.not_tested.why is not SkipReason.NOT_APPLICABLE
    ]
    inapplicable = sum(
        result.not_tested is not None and result.not_tested.why is SkipReason.NOT_APPLICABLE for result in one.results
    )
    if not_tested:
        parts.append("### Not tested\n\n" + "\n".join(not_tested))
    parts.append(f"{len(one.passed)} checks passed; {inapplicable} had nothing to look at on this host.")
    environment = one.snapshot.environment
    if not isinstance(environment, Unknown) and environment.settings:
        lines = "\n".join(f"{setting.name}={anonymise(setting.value)}" for setting in environment.settings)
        parts.append(f"<details><summary>Settings</summary>\n\n{code(lines)}\n\n</details>")
    return parts


def _finding(check: Check, severity: Severity, finding: Finding, anonymise: Anonymise) -> str:
    cause = finding.cause or check.section("Why")
    parts = [
        f"### {severity.value.upper()} {check.slug}: {escape(anonymise(finding.summary))}",
        escape(anonymise(cause)),
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
