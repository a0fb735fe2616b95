"""The outcome of one file that was handed to fix-checkpoint."""

from __future__ import annotations

from enum import Enum

import msgspec

from ddpdoctor.facts.checkpoints import CheckpointFile


class Action(str, Enum):
    """Actions of fix-checkpoint on a file."""

    CLEAN = "clean"
    """There was nothing to do."""
    WOULD_FIX = "would-fix"
    """There is something to do; it was a dry run."""
    FIXED = "fixed"
    """Changed in place, and verified."""
    WRITTEN = "written"
    """A new file was written, and verified."""
    WOULD_UNDO = "would-undo"
    """There is something to undo; it was a dry run."""
    UNDONE = "undone"
    """The original was restored from its undo file."""
    LEFT = "left"
    """It is of a kind that holds no pins."""
    REFUSED = "refused"
    """It could not be handled; `error` says why. Nothing was changed but what `notes` say of an earlier run."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that went from one device to another. bytes: of the storages."""

    device_from: str
    device_to: str
    tensors: int
    bytes: int


class CheckpointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One file's fate.

    before, after: its facts; after only where something was written. written: path of the new file. renamed: keys that
    lost a prefix. undone: changes taken back. dropped: top-level keys that were left out. notes: what else the user should know. error, advice,
    commands: why it was refused and what to do; choices: the keys between which --params-only could not choose.
    """

    path: str
    action: Action
    before: CheckpointFile | None = None
    after: CheckpointFile | None = None
    written: str = ""
    undo_file: str = ""
    moved: tuple[Moved, ...] = ()
    renamed: int = 0
    undone: int = 0
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    advice: str = ""
    commands: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
