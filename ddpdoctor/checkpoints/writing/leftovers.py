"""What a run that was cut short left of its work on a file, in words."""

from __future__ import annotations

from typing import NamedTuple

from ddpdoctor.checkpoints.writing.journal import JournalStage, JournalState


class Recovery(NamedTuple):
    """What was done (or, on a dry run, would be) about an interrupted earlier run.

    finished: the file now is as that run wanted it; else it is as it was before that run. text: the same, as a sentence.
    torn: the file is, or was, neither.
    """

    finished: bool
    text: str
    torn: bool


class FoundLeftover(NamedTuple):
    """What was found of an earlier run, and what comes of it: said when it is done, and when it is only looked at."""

    finished: bool
    found: str
    done: str
    planned: str
    torn: bool = False

    def told(self, *, dry_run: bool) -> Recovery:
        return Recovery(self.finished, f"{self.found}; {self.planned if dry_run else self.done}", self.torn)


NEVER_BEGUN = FoundLeftover(
    False,
    "An earlier run was cut short before it changed anything",
    "what it left is removed",
    "the next run removes what it left",
)
_TAKEN_BACK = FoundLeftover(
    False,
    "An earlier run was cut short while it changed this file",
    "it is taken back: the file is as it was before that change",
    "the file is half changed, and the next run takes that back",
    torn=True,
)
_ALREADY_BACK = FoundLeftover(
    False,
    "The file is already as it was before it was changed",
    "its undo file is removed",
    "the next run removes its undo file",
)
_UNDONE = FoundLeftover(
    False,
    "An earlier undo was cut short",
    "it is finished: the change is undone",
    "the file is half restored, and the next run finishes that",
    torn=True,
)
_FINISHED = FoundLeftover(
    True,
    "An earlier run was cut short when it had just changed this file",
    "its change is complete, and stays",
    "its change is complete, and stays",
)
_STAYS = FoundLeftover(
    True,
    "An earlier undo was cut short before it restored anything",
    "the file is still the changed one",
    "the file is still the changed one",
)


def ending_of(stage: JournalStage, state: JournalState) -> FoundLeftover | None:
    """None if nothing is left to be done. The state is not FOREIGN."""
    if state is JournalState.AFTER:
        return {JournalStage.CHANGING: _FINISHED, JournalStage.COMPLETE: None, JournalStage.UNDOING: _STAYS}[stage]
    if stage is JournalStage.UNDOING:
        return _UNDONE
    return _ALREADY_BACK if stage is JournalStage.COMPLETE and state is JournalState.BEFORE else _TAKEN_BACK
