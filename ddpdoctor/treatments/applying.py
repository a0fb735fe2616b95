"""Applies what was chosen: the settings as one file, then the checkpoints one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.treatments.checkpoint import fix
from ddpdoctor.treatments.choosing import Choice
from ddpdoctor.treatments.remedies import Remedy
from ddpdoctor.treatments.settings import Setting, place, write

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.outcomes import Outcome


class Applied:
    """What was done by now, also where we are stopped in the middle of it.

    settings_file: the one to be sourced, "" where there is none. fixed: checkpoints that were changed, each with an undo
    file beside it. refused: remedy to why it could not be applied.
    """

    def __init__(self) -> None:
        self.settings_file = ""
        self.fixed: list[Path] = []
        self.refused: dict[Remedy, str] = {}

    @property
    def anything(self) -> bool:
        return bool(self.settings_file or self.fixed)


def settings_of(choices: Sequence[Choice]) -> list[Setting]:
    """The lines for the file, with the checks that asked for them."""
    return [Setting(line, one.case.slug) for one in choices if one.remedy for line in one.remedy.lines]


def apply(choices: Sequence[Choice], folder: Path, done: Applied) -> None:
    """Applies them, and enters in `done` whatever was changed as soon as it is."""
    settings = settings_of(choices)
    if settings:
        path = place(folder)
        try:
            write(path, settings, date.today().isoformat())
            done.settings_file = str(path)
        except OSError as error:
            text = f"{path} could not be written: {error.strerror or error}"
            done.refused.update({one.remedy: text for one in choices if one.remedy and one.remedy.lines})
    # One command may be the fix of several findings.
    for remedy in dict.fromkeys(one.remedy for one in choices if one.remedy and one.remedy.checkpoints):
        refusal = _fix(remedy.checkpoints, done)
        if refusal:
            done.refused[remedy] = refusal


def _fix(paths: Sequence[str], done: Applied) -> str:
    from ddpdoctor.checkpoints.outcomes import Action

    refused: list[Outcome] = []
    for path in paths:
        for one in fix([path], dry_run=False):
            if one.action is Action.FIXED:
                done.fixed.append(Path(one.path))
            elif one.action is Action.REFUSED:
                refused.append(one)
    return f"{refused[0].path}: {refused[0].error}" if refused else ""


def refusals(choices: Sequence[Choice]) -> dict[Remedy, str]:
    """Which remedies could not be applied, and why, as far as that can be told without changing anything."""
    from ddpdoctor.checkpoints.outcomes import Action

    found: dict[Remedy, str] = {}
    for remedy in dict.fromkeys(one.remedy for one in choices if one.remedy and one.remedy.checkpoints):
        refused = [one for one in fix(remedy.checkpoints, dry_run=True) if one.action is Action.REFUSED]
        if refused:
            found[remedy] = f"{refused[0].path}: {refused[0].error}"
    return found
