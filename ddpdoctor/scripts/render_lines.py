"""The findings of `lint` a line each: for editors, and as annotations of GitHub's workflows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import Finding, Severity, SourcePlace
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.engine.registry import Check
from ddpdoctor.scripts.judging import PlacedFinding
from ddpdoctor.scripts.places import place_in_repository

_COMMANDS: Final = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "notice"}


def concise_lines(findings: Sequence[PlacedFinding], problems: Sequence[str]) -> Iterator[str]:
    """Yield `file:line:column: severity slug message` for each finding, then what could not be judged.

    Args:
        findings: of scripts.
        problems: a sentence each.
    """
    for check, severity, finding in findings:
        place = finding.place or SourcePlace("", 0)
        message = f"{severity.value} {check.slug} {finding.summary}"
        yield one_line(f"{place.file}:{place.line}:{place.column}: {message}")
    yield from map(one_line, problems)


def github_lines(findings: Sequence[PlacedFinding], problems: Sequence[str], root: str) -> Iterator[str]:
    """Yield a workflow command for each finding, and one for each thing that could not be judged.

    Args:
        findings: of scripts.
        problems: a sentence each.
        root: of the repository, absolute.
    """
    for check, severity, finding in findings:
        place = place_in_repository(finding.place or SourcePlace("", 0), root)
        properties = {"title": check.slug, "file": place.path}
        if place.line:
            properties |= {"line": str(place.line), "col": str(place.column)}
        text = explained(check, finding)
        yield _command(_COMMANDS[severity], properties, f"{place.cell}: {text}" if place.cell else text)
    for problem in problems:
        yield _command("error", {"title": "could not be judged"}, problem)


def explained(check: Check, finding: Finding) -> str:
    """The finding in several lines: what is wrong, why, and the fixes."""
    lines = [finding.summary, f"why: {finding.cause or check.section('Why')}"]
    for fix in finding.fixes:
        lines += [f"fix: {fix.text}", *(f"    {command}" for command in fix.commands)]
    return "\n".join(lines)


def _command(name: str, properties: dict[str, str], text: str) -> str:
    told = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{name} {told}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """The text as GitHub wants that of a command.

    Args:
        text: whatever is in it ends no line, and begins no other command.
        more: characters that end a property.
    """
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    for character in more:
        escaped = escaped.replace(character, f"%{ord(character):02X}")
    return visible(escaped)
