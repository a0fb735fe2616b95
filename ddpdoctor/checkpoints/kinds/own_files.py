"""What ddpdoctor itself leaves beside checkpoints: told by their names, since a new file that was cut short holds a checkpoint."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.checkpoints.kinds.recognised import Recognised, mode_of
from ddpdoctor.facts.remedies import Remedy, remedy

_UNDO = ".ddpdoctor-undo"
_UNDO_BEGUN = ".ddpdoctor-undo.new"
_LOCK = ".ddpdoctor-lock"
_NEW = ".ddpdoctor-new"


def is_own(name: str) -> bool:
    """Whether a file of this name is one of ours: nothing to fix, whatever is in it."""
    return name.endswith((_UNDO, _UNDO_BEGUN, _LOCK)) or (name.startswith(".") and name.endswith(_NEW))


def recognise_own(path: Path) -> Recognised | None:
    """None if it isn't one of ours."""
    name = path.name
    if not is_own(name):
        return None
    if name.endswith(_UNDO):
        return _undo(path, path.with_name(name.removesuffix(_UNDO) or name))
    if name.endswith(_UNDO_BEGUN):
        return _own(
            "an undo file of ddpdoctor's that was not finished",
            f"The beginning of ddpdoctor's own undo file of {name.removesuffix(_UNDO_BEGUN)}: a run is at work on that, or was "
            "killed before it changed anything",
            "If no ddpdoctor works on that file, remove this one",
            remedy("remove", path),
        )
    if name.endswith(_LOCK):
        return _own(
            "a lock of ddpdoctor's",
            f"ddpdoctor's own lock: a run is at work on {name.removesuffix(_LOCK)}, or was killed",
            "If no ddpdoctor works on that file, remove this one",
            remedy("remove", path),
        )
    return _own(
        "a new file of ddpdoctor's that is not finished",
        f"ddpdoctor's own unfinished file: a run is writing {name[1:].removesuffix(_NEW)}, or was killed while it did",
        "If no ddpdoctor is writing it, remove it, and write the new file again",
        remedy("remove", path),
    )


def _undo(path: Path, checkpoint: Path) -> Recognised:
    problem = f"ddpdoctor's own undo file: it holds what fix-checkpoint replaced in {checkpoint.name}"
    if not mode_of(checkpoint):
        return _own(
            "an undo file of ddpdoctor's",
            f"{problem}, which is not beside it",
            "Put it beside its checkpoint again, under the same name; alone it is of no use",
        )
    return _own(
        "an undo file of ddpdoctor's",
        problem,
        f"This restores {checkpoint.name} as it was before; without the undo file it stays as it is now",
        remedy("undo", checkpoint),
    )


def _own(called: str, problem: str, advice: str, *remedies: Remedy) -> Recognised:
    return Recognised(kind="own-file", called=called, problem=problem, advice=advice, remedies=remedies)
