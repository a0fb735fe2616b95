"""Decides which fixes of an examination's findings ddpdoctor can apply itself. Nothing is changed here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.base.findings import Fix, Severity
from ddpdoctor.engine.examination import Examination
from ddpdoctor.fixes.free_port import free_port, variable_of
from ddpdoctor.fixes.leftovers import targets_of
from ddpdoctor.fixes.settings_lines import Line, lines_of
from ddpdoctor.knowledge.privileges import NEEDS_ROOT

T = TypeVar("T")


class AppliableFix(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that can be applied: lines for the settings file, checkpoints to be changed in place, or leftovers (pids, and paths in
    /dev/shm) to be ended."""

    fix: Fix
    lines: tuple[Line, ...] = ()
    checkpoints: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """What is carried out: the lines, with the port that was found; or the fix's own commands."""
        return tuple(line.text for line in self.lines) or self.fix.commands


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: its remedies, which are the fixes that can be applied, the best first; or the reason why there is none."""

    slug: str
    severity: Severity
    summary: str
    fixes: tuple[Fix, ...]
    remedies: tuple[AppliableFix, ...] = ()
    reason: str = ""


def cases(examination: Examination, port: Callable[[str], Line | None] = free_port) -> list[Case]:
    """Make a case of each finding, the worst first."""
    return [
        Case(
            slug=check.slug,
            severity=severity,
            summary=finding.summary,
            fixes=finding.fixes,
            remedies=(remedies := tuple(filter(None, (remedy_of(fix, port) for fix in finding.fixes)))),
            reason="" if remedies else why_left(finding.fixes),
        )
        for check, severity, finding in examination.findings
    ]


def remedy_of(fix: Fix, port: Callable[[str], Line | None] = free_port) -> AppliableFix | None:
    """Make a fix appliable; None where its check doesn't call it safe, or one of its commands is unknown here."""
    if not fix.appliable or not fix.commands:
        return None
    if paths := _flatten(paths_of(command) for command in fix.commands):
        return AppliableFix(fix=fix, checkpoints=tuple(paths))
    if targets := _flatten(targets_of(command) for command in fix.commands):
        return AppliableFix(fix=fix, leftovers=tuple(targets))
    if len(fix.commands) == 1 and (variable := variable_of(fix.commands[0])):
        line = port(variable)
        return AppliableFix(fix=fix, lines=(line,)) if line else None
    lines = _flatten(lines_of(command) for command in fix.commands)
    return AppliableFix(fix=fix, lines=tuple(lines)) if lines else None


def paths_of(command: str) -> tuple[str, ...]:
    """The files that a `ddpdoctor fix-checkpoint` without any option names; none of any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    plain = words[:2] == ["ddpdoctor", "fix-checkpoint"] and not any(path.startswith("-") for path in words[2:])
    return tuple(words[2:]) if plain else ()


def _flatten(parts: Iterable[tuple[T, ...]]) -> list[T]:
    """Put all parts in one list; an empty one where a part is empty."""
    found = list(parts)
    return [item for part in found for item in part] if all(found) else []


def why_left(fixes: Sequence[Fix]) -> str:
    """Say why a finding's fixes are none for ddpdoctor, by the first of them."""
    first = fixes[0] if fixes else Fix("")
    if NEEDS_ROOT in first.text or any(command.startswith("sudo ") for command in first.commands):
        return "it needs root"
    if not first.commands:
        return "no command does it"
    if any(lines_of(command) for command in first.commands):
        return "whether it is right, you know best"
    return "ddpdoctor itself applies settings, free ports and checkpoint fixes, and ends proven leftovers"
