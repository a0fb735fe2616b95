"""The report of `check --fix`: the fixes that it can apply, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpdoctor.base.text import listed, one_line, plural
from ddpdoctor.checkpoints.render import undo_command
from ddpdoctor.fixes.appliable_fixes import Case
from ddpdoctor.fixes.applying import Applied
from ddpdoctor.fixes.proof import Proof
from ddpdoctor.fixes.settings_file import SettingsPlace
from ddpdoctor.report.document import STYLES, Block, Command, Paragraph, StyledText
from ddpdoctor.report.reported_fixes import FixState, Treatment

_WORDS = {
    FixState.CONFIRMED: StyledText("CONFIRMED", "bold green"),
    FixState.NOT_CONFIRMED: StyledText("NOT CONFIRMED", "bold red"),
    FixState.LEFT: StyledText("LEFT TO YOU", "bold yellow"),
    FixState.WOULD_APPLY: StyledText("WOULD APPLY", "bold blue"),
}
_MARGIN = 15
"""Columns: room for the longest of these words."""


def case_blocks(case: Case, number: int, total: int, settings: SettingsPlace) -> Iterator[Block]:
    """One finding, and the fixes between which to choose. number: of this case, from 1. settings: where they would be written."""
    label = StyledText(f"Fix {number} of {total}", STYLES[case.severity])
    yield Paragraph((StyledText(one_line(case.summary), "bold"), StyledText(f"  [{case.slug}]", "dim")), label, _MARGIN)
    several = len(case.remedies) > 1
    for place, remedy in enumerate(case.remedies, 1):
        yield _beside(f"{f'{place}  ' if several else ''}{one_line(remedy.fix.text)}")
        yield from _commands(remedy.commands)
    if any(remedy.checkpoints for remedy in case.remedies):
        yield _beside(StyledText("It is changed in place, with an undo file beside it.", "dim"))
    if any(remedy.leftovers for remedy in case.remedies):
        yield _beside(
            StyledText("It is looked at again first, and ended only if that agrees. There is no way back.", "dim")
        )
    if any(remedy.lines for remedy in case.remedies):
        elsewhere = f" ({settings.reason})" if settings.reason else ""
        where = f"It is written to {settings.path}, for you to source{elsewhere}."
        where = one_line(where if settings.path else f"It can't be written: {settings.reason}.")
        yield _beside(StyledText(where, "dim"))


def treatment_blocks(treatments: Sequence[Treatment]) -> Iterator[Block]:
    """Say what became of each fix, and what is left to type."""
    yield Paragraph("")
    for treatment in treatments:
        text = (StyledText(one_line(treatment.slug), "bold"), f": {one_line(treatment.reason)}")
        yield Paragraph(text, _WORDS[treatment.state], _MARGIN)
        if treatment.text:
            yield _beside(StyledText(one_line(treatment.text), "dim"))
        yield from _commands(treatment.commands)


def outcome_blocks(applied: Applied, proof: Proof | None, named: Sequence[str]) -> Iterator[Block]:
    """Say what was changed, how to use it, and how to go back. named: checkpoints as the user named them."""
    yield Paragraph("")
    if applied.settings_replaced:
        text = f"{applied.settings_file} isn't what was written there any more. Don't source it before you have looked at it."
        yield Paragraph(StyledText(one_line(text), "bold red"))
    elif applied.settings_file:
        if applied.settings_elsewhere:
            text = f"The settings were written to {applied.settings_file}, {applied.settings_elsewhere}."
            yield Paragraph(StyledText(one_line(text), "bold yellow"))
        yield Paragraph(
            "The settings count only where their file is sourced: in this shell now, and in your job script."
        )
        yield Command(f"source {source_path(applied.settings_file)}")
    if applied.fixed:
        changed = plural(len(applied.fixed), "checkpoint")
        yield Paragraph(f"{changed} changed, each with an undo file beside it. To go back:")
        yield Command(undo_command(applied.fixed, named))
    for note in applied.notes:
        yield Paragraph(one_line(note))
    if applied.endings.freed:
        yield Paragraph(f"Freed: {listed(applied.endings.freed, 20)}.")
    if proof is not None and not isinstance(proof.smoke, str) and not proof.smoke_passed:
        yield Paragraph("See smoke's whole report with the settings sourced:")
        yield Command("ddpdoctor smoke")


def source_path(path: str) -> str:
    """Give the path as it is typed in the folder where it lies: without a slash some shells would look in the PATH."""
    from shlex import quote

    return f"./{quote(Path(path).name)}" if Path(path).parent == Path.cwd() else quote(path)


def _beside(text: str | StyledText) -> Paragraph:
    return Paragraph(text, margin=_MARGIN)


def _commands(commands: Sequence[str]) -> Iterator[Block]:
    return (Command(command, _MARGIN + 4) for command in commands)
