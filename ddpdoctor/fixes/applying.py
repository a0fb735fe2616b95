"""Applies what was chosen: the settings as one file, the checkpoints one after the other, then the end of what is left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.fixes.checkpoint_fix import files_of, fix, undo_size
from ddpdoctor.fixes.choosing import FixChoice
from ddpdoctor.fixes.leftovers import end_targets, left_alone, look, refusal
from ddpdoctor.fixes.remedies import AppliableFix
from ddpdoctor.fixes.settings_file import SettingsLine, SettingsPlace, read_ours, rehearse, safe_place, write
from ddpdoctor.processes.leftovers.ending import Endings

if TYPE_CHECKING:
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


class Applied:
    """What was done by now, also where we are stopped in the middle of it.

    settings_file: the one to be sourced, "" where there is none; settings: its text; settings_elsewhere: why it isn't in the
    current folder. fixed: checkpoints that were changed, each with an undo
    file beside it. notes: what else there is to know of them. endings: what became of leftovers. refused: remedy to why it could not be applied.
    """

    def __init__(self) -> None:
        self.settings_file = ""
        self.settings = ""
        self.settings_elsewhere = ""
        self.fixed: list[Path] = []
        self.notes: list[str] = []
        self.endings = Endings()
        self.refused: dict[AppliableFix, str] = {}
        self._begun: tuple[Path, int] | None = None

    @property
    def anything(self) -> bool:
        return bool(self.settings_file or self.fixed or self.endings.done)

    @property
    def settings_replaced(self) -> bool:
        """Whether the file holds something else by now, or somebody else could have written it."""
        ours = read_ours(Path(self.settings_file)) if self.settings_file else None
        return bool(self.settings_file) and (ours is None or ours.text != self.settings)

    def begin(self, path: Path) -> None:
        """A checkpoint is about to be changed."""
        self._begun = (path, undo_size(path))

    def stopped(self) -> None:
        """Whether the one that was begun was changed, when we were stopped in the middle, its undo file tells."""
        if self._begun and self._begun[0] not in self.fixed and undo_size(self._begun[0]) > self._begun[1]:
            self.fixed.append(self._begun[0])


def settings_of(choices: Sequence[FixChoice]) -> list[SettingsLine]:
    """The lines for the file, with the checks that asked for them."""
    return [SettingsLine(line, choice.case.slug) for choice in choices if choice.remedy for line in choice.remedy.lines]


def apply(choices: Sequence[FixChoice], folder: Path, done: Applied) -> None:
    """Applies them, and enters in `done` whatever was changed as soon as it is."""
    settings = settings_of(choices)
    if settings:
        where = safe_place(folder)
        written, refused = _written(write, where, settings)
        if refused:
            done.refused.update({choice.remedy: refused for choice in choices if choice.remedy and choice.remedy.lines})
        else:
            done.settings_file, done.settings, done.settings_elsewhere = str(where.path), written, where.reason
    # One command may be the fix of several findings.
    for remedy in dict.fromkeys(choice.remedy for choice in choices if choice.remedy and choice.remedy.checkpoints):
        refused = _fix(remedy.checkpoints, done)
        if refused:
            done.refused[remedy] = refused
    _end_leftovers(choices, done)


def _end_leftovers(choices: Sequence[FixChoice], done: Applied) -> None:
    """All at once: each is looked at twice, some seconds apart, and several findings may be about the same."""
    ending = [choice.remedy for choice in choices if choice.remedy and choice.remedy.leftovers]
    if not ending:
        return
    targets = tuple(dict.fromkeys(target for remedy in ending for target in remedy.leftovers))
    end_targets(targets, done.endings)
    for remedy in ending:
        if reason := left_alone(remedy.leftovers, done.endings):
            done.refused[remedy] = reason


def _written(
    write_it: Callable[[Path, Sequence[SettingsLine], str], str], where: SettingsPlace, settings: Sequence[SettingsLine]
) -> tuple[str, str]:
    """The file's text, and "" or why it can't be written."""
    if where.path is None:
        return "", where.reason
    try:
        return write_it(where.path, settings, date.today().isoformat()), ""
    except OSError as error:
        return "", f"{where.path} could not be written: {error.strerror or error}"


def _fix(paths: Sequence[str], done: Applied) -> str:
    """Why one of them was refused, "" where none was."""
    from ddpdoctor.report.reported_checkpoints import Action

    refusal = ""
    for path in files_of(paths):
        done.begin(path)
        outcome = fix(path, dry_run=False)
        if outcome.action is not Action.REFUSED:
            done.notes += (f"{outcome.path}: {note}" for note in outcome.notes)
        if outcome.action is Action.FIXED:
            done.fixed.append(path)
        elif outcome.action is Action.REFUSED:
            refusal = refusal or _refusal(outcome)
    return refusal


def refusals(choices: Sequence[FixChoice], folder: Path) -> dict[AppliableFix, str]:
    """Which remedies could not be applied, and why, as far as that can be told without leaving anything. folder: for the
    settings."""
    from ddpdoctor.report.reported_checkpoints import Action

    found: dict[AppliableFix, str] = {}
    settings = settings_of(choices)
    if settings and (refused := _written(rehearse, safe_place(folder), settings)[1]):
        found.update({choice.remedy: refused for choice in choices if choice.remedy and choice.remedy.lines})
    remedies = dict.fromkeys(choice.remedy for choice in choices if choice.remedy)
    now = look() if any(remedy.leftovers for remedy in remedies) else None
    for remedy in remedies:
        if now and remedy.leftovers and (text := refusal(remedy.leftovers, now)):
            found[remedy] = text
        for path in files_of(remedy.checkpoints):
            outcome = fix(path, dry_run=True)
            if outcome.action is Action.REFUSED:
                found.setdefault(remedy, _refusal(outcome))
    return found


def _refusal(outcome: CheckpointOutcome) -> str:
    """With what was done about an earlier run before it came to that."""
    return ". ".join((f"{outcome.path}: {outcome.error}", " ".join(outcome.notes))).removesuffix(". ")
