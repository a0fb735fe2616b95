"""Applies what was chosen: the settings as one file, the checkpoints one after the other, then the end of what is left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.fixes.appliable_fixes import AppliableFix
from ddpdoctor.fixes.choosing import FixChoice
from ddpdoctor.fixes.leftovers import end_targets, look, why_left_alone, why_refused
from ddpdoctor.fixes.settings_file import SettingsLine, SettingsPlace, read_ours, rehearse, safe_place, write
from ddpdoctor.processes.leftovers.ending import Endings

if TYPE_CHECKING:
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


class Applied:
    """A record of what was done by now, also where a signal stops it in the middle."""

    def __init__(self) -> None:
        self.settings_file = ""
        """To be sourced; "" where there is none."""
        self.settings = ""
        """The text of that file."""
        self.settings_elsewhere = ""
        """Why it isn't in the current folder; "" where it is."""
        self.fixed: list[Path] = []
        """Checkpoints that were changed, each with an undo file beside it."""
        self.notes: list[str] = []
        """On those checkpoints."""
        self.endings = Endings()
        """What became of leftovers."""
        self.refused: dict[AppliableFix, str] = {}
        """Why a fix could not be applied."""
        self._begun: tuple[Path, int] | None = None

    @property
    def anything(self) -> bool:
        """Whether anything was changed."""
        return bool(self.settings_file or self.fixed or self.endings.done)

    @property
    def settings_replaced(self) -> bool:
        """Whether the file holds something else by now, or another user could have written it."""
        ours = read_ours(Path(self.settings_file)) if self.settings_file else None
        return bool(self.settings_file) and (ours is None or ours.text != self.settings)

    def begin(self, path: Path) -> None:
        """Note that a checkpoint is about to be changed."""
        from ddpdoctor.checkpoints.writing.journal import undo_size

        self._begun = (path, undo_size(path))

    def stopped(self) -> None:
        """Note a checkpoint as changed where its undo file tells so, though a signal came in the middle."""
        from ddpdoctor.checkpoints.writing.journal import undo_size

        if self._begun and self._begun[0] not in self.fixed and undo_size(self._begun[0]) > self._begun[1]:
            self.fixed.append(self._begun[0])


def settings_of(choices: Sequence[FixChoice]) -> list[SettingsLine]:
    """The lines for the settings file, each with the check that asked for it."""
    return [SettingsLine(line, choice.case.slug) for choice in choices if choice.remedy for line in choice.remedy.lines]


def apply(choices: Sequence[FixChoice], folder: Path, done: Applied) -> None:
    """Apply the chosen fixes, the settings in that folder; `done` is told of each change as soon as it is made."""
    settings = settings_of(choices)
    if settings:
        where = safe_place(folder)
        written, refused = _write_settings(write, where, settings)
        if refused:
            done.refused.update({choice.remedy: refused for choice in choices if choice.remedy and choice.remedy.lines})
        else:
            done.settings_file, done.settings, done.settings_elsewhere = str(where.path), written, where.reason
    # One command may be the fix of several findings.
    for remedy in dict.fromkeys(choice.remedy for choice in choices if choice.remedy and choice.remedy.checkpoints):
        refused = _fix_checkpoints(remedy.checkpoints, done)
        if refused:
            done.refused[remedy] = refused
    _end_leftovers(choices, done)


def _end_leftovers(choices: Sequence[FixChoice], done: Applied) -> None:
    """End all leftovers at once: each is looked at twice, some seconds apart, and several findings may be about the same."""
    ending = [choice.remedy for choice in choices if choice.remedy and choice.remedy.leftovers]
    if not ending:
        return
    targets = tuple(dict.fromkeys(target for remedy in ending for target in remedy.leftovers))
    end_targets(targets, done.endings)
    for remedy in ending:
        if reason := why_left_alone(remedy.leftovers, done.endings):
            done.refused[remedy] = reason


def _write_settings(
    write_it: Callable[[Path, Sequence[SettingsLine], str], str], where: SettingsPlace, settings: Sequence[SettingsLine]
) -> tuple[str, str]:
    """Write the settings. Returns the file's text, and why it can't be written, "" where it was."""
    if where.path is None:
        return "", where.reason
    try:
        return write_it(where.path, settings, date.today().isoformat()), ""
    except OSError as error:
        return "", f"{where.path} could not be written: {error.strerror or error}"


def _fix_checkpoints(paths: Sequence[str], done: Applied) -> str:
    """Change the checkpoints. Returns why one of them was refused, "" where none was."""
    from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
    from ddpdoctor.checkpoints.named_paths import expand

    refusal = ""
    for path in expand(map(Path, paths)):
        done.begin(path)
        outcome = fix(path, EditOptions())
        if outcome.action is not Action.REFUSED:
            done.notes += (f"{outcome.path}: {note}" for note in outcome.notes)
        if outcome.action is Action.FIXED:
            done.fixed.append(path)
        elif outcome.action is Action.REFUSED:
            refusal = refusal or _refusal_words(outcome)
    return refusal


def find_refusals(choices: Sequence[FixChoice], folder: Path) -> dict[AppliableFix, str]:
    """Say of fixes why they could not be applied, as far as that can be told without leaving anything."""
    from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
    from ddpdoctor.checkpoints.named_paths import expand

    found: dict[AppliableFix, str] = {}
    settings = settings_of(choices)
    if settings and (refused := _write_settings(rehearse, safe_place(folder), settings)[1]):
        found.update({choice.remedy: refused for choice in choices if choice.remedy and choice.remedy.lines})
    remedies = dict.fromkeys(choice.remedy for choice in choices if choice.remedy)
    now = look() if any(remedy.leftovers for remedy in remedies) else None
    for remedy in remedies:
        if now and remedy.leftovers and (text := why_refused(remedy.leftovers, now)):
            found[remedy] = text
        for path in expand(map(Path, remedy.checkpoints)):
            outcome = fix(path, EditOptions(), dry_run=True)
            if outcome.action is Action.REFUSED:
                found.setdefault(remedy, _refusal_words(outcome))
    return found


def _refusal_words(outcome: CheckpointOutcome) -> str:
    """Say why a checkpoint was refused, and what was done about an earlier run before that."""
    return ". ".join((f"{outcome.path}: {outcome.error}", " ".join(outcome.notes))).removesuffix(". ")
