"""What `check --fix` shows at a terminal: the fixes that it can apply, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.text import listed, one_line, plural, visible
from ddpdoctor.checkpoints.render_terminal import undo_command
from ddpdoctor.fixes.applying import Applied
from ddpdoctor.fixes.proof import Proof
from ddpdoctor.fixes.remedies import Case
from ddpdoctor.fixes.settings_file import SettingsPlace
from ddpdoctor.report.reported_fixes import FixState, Treatment
from ddpdoctor.report.terminal import STYLES, Hanging

_WORDS = {
    FixState.CONFIRMED: ("CONFIRMED", "bold green"),
    FixState.NOT_CONFIRMED: ("NOT CONFIRMED", "bold red"),
    FixState.LEFT: ("LEFT TO YOU", "bold yellow"),
    FixState.WOULD_APPLY: ("WOULD APPLY", "bold blue"),
}
_MARGIN = 15
"""Columns: room for the longest of these words."""


def show_case(console: Console, case: Case, number: int, total: int, settings: SettingsPlace) -> None:
    """One finding, and the fixes between which to choose."""
    head = Text(one_line(case.summary), "bold").append(f"  [{case.slug}]", "dim not bold")
    label = Text(f"Fix {number} of {total}", STYLES[case.severity])
    console.print(Hanging(label, head, _MARGIN))
    several = len(case.remedies) > 1
    for place, remedy in enumerate(case.remedies, 1):
        text = Text(f"{place}  " if several else "").append(one_line(remedy.fix.text))
        console.print(Hanging(Text(""), text, _MARGIN))
        _show_commands(console, remedy.commands)
    if any(remedy.checkpoints for remedy in case.remedies):
        console.print(Hanging(Text(""), Text("It is changed in place, with an undo file beside it.", "dim"), _MARGIN))
    if any(remedy.leftovers for remedy in case.remedies):
        ended = "It is looked at again first, and ended only if that agrees. There is no way back."
        console.print(Hanging(Text(""), Text(ended, "dim"), _MARGIN))
    if any(remedy.lines for remedy in case.remedies):
        elsewhere = f" ({settings.reason})" if settings.reason else ""
        where = f"It is written to {settings.path}, for you to source{elsewhere}."
        where = one_line(where if settings.path else f"It can't be written: {settings.reason}.")
        console.print(Hanging(Text(""), Text(where, "dim"), _MARGIN))


def show_treatments(console: Console, treatments: Sequence[Treatment]) -> None:
    """What became of each, and what is left to type."""
    console.print()
    for treatment in treatments:
        word, style = _WORDS[treatment.state]
        text = Text(one_line(treatment.slug), "bold").append(f": {one_line(treatment.reason)}", "not bold")
        console.print(Hanging(Text(word, style), text, _MARGIN))
        if treatment.text:
            console.print(Hanging(Text(""), Text(one_line(treatment.text), "dim"), _MARGIN))
        _show_commands(console, treatment.commands)


def show_outcome(console: Console, applied: Applied, proof: Proof | None, named: Sequence[str]) -> None:
    """What was changed, how to use it, and how to go back. named: checkpoints as the user named them."""
    console.print()
    if applied.settings_replaced:
        text = f"{applied.settings_file} isn't what was written there any more. Don't source it before you have looked at it."
        console.print(Text(one_line(text), "bold red"))
    elif applied.settings_file:
        if applied.settings_elsewhere:
            text = f"The settings were written to {applied.settings_file}, {applied.settings_elsewhere}."
            console.print(Text(one_line(text), "bold yellow"))
        console.print(
            Text("The settings count only where their file is sourced: in this shell now, and in your job script.")
        )
        console.print(Text(f"    source {source_path(applied.settings_file)}", "cyan"), soft_wrap=True)
    if applied.fixed:
        told = f"{plural(len(applied.fixed), 'checkpoint')} changed, each with an undo file beside it. To go back:"
        console.print(Text(told))
        console.print(Text(f"    {visible(undo_command(applied.fixed, named))}", "cyan"), soft_wrap=True)
    for note in applied.notes:
        console.print(Text(one_line(note)))
    if applied.endings.freed:
        console.print(Text(f"Freed: {listed(applied.endings.freed, 20)}."))
    if proof is not None and not isinstance(proof.smoke, str) and not proof.smoke_passed:
        console.print(Text("See smoke's whole report with the settings sourced:"))
        console.print(Text("    ddpdoctor smoke", "cyan"), soft_wrap=True)


def source_path(path: str) -> str:
    """As it is typed in the folder where it lies: without a slash some shells would look in the PATH."""
    from shlex import quote

    return f"./{quote(Path(path).name)}" if Path(path).parent == Path.cwd() else quote(path)


def _show_commands(console: Console, commands: Sequence[str]) -> None:
    for command in commands:
        for line in visible(command).splitlines():
            console.print(Text(" " * (_MARGIN + 4) + line, "cyan"), soft_wrap=True)
