"""The words when a file can't be changed or restored, with the way out, and on a run that was cut short."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import human
from ddpdoctor.checkpoints.errors import CheckpointError, Damaged, Refused, Stale, Torn
from ddpdoctor.checkpoints.writing import journal
from ddpdoctor.checkpoints.writing.exclusive_open import ExclusiveFile, folder_path, open_folder, opened_in
from ddpdoctor.checkpoints.writing.journal import JournalStage, JournalState, undo_file
from ddpdoctor.checkpoints.writing.trust import free_name

COPY_ADVICE = "Write a new file instead: add -o and its name to the same command"

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "this user's quota on the disk is used up",
    errno.EFBIG: "the file would exceed the limit of this shell (ulimit -f) or of the file system",
    errno.EACCES: "this user may not write to the folder",
    errno.EPERM: "the folder is marked as immutable, or the file system does not allow it",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENAMETOOLONG: "its name would be too long",
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason(error: OSError) -> str:
    """The system's error in plain words: "the disk is full"."""
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def refuse_unwritten(text: str, error: OSError, folder: int) -> NoReturn:
    """Say what could not be done in an open folder, and what to do about it.

    Raises:
        Refused: always.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        raise Refused(text, COPY_ADVICE) from None
    where = quoted(folder_path(folder))
    commands: tuple[str, ...]
    elsewhere = "or write a new file on another disk: add -o and its path to the same command"
    if error.errno == errno.EIO:
        advice, commands = "The disk or its server fails: save what you can from it", ("sudo dmesg | tail -20",)
    elif error.errno == errno.EDQUOT:
        advice, commands = "Delete something of yours there", (f"du -sh {where}", "quota -s")
    else:
        status = os.fstatvfs(folder)
        free = human(status.f_bavail * status.f_frsize)
        advice = f"Free some space, of which a change in place needs little ({free} are free)"
        commands = (f"df -h {where}",)
        if status.f_files and not status.f_favail:
            advice, commands = "It has no inodes left: delete some files, however small", (f"df -i {where}",)
    raise Refused(text, f"{advice}, {elsewhere}", commands) from None


def fail_half_changed(path: Path, why: str, error: OSError) -> NoReturn:
    """Say that a file may be half changed: what stopped the change, and which error stopped its being taken back.

    Raises:
        Damaged: always.
    """
    first = "Free some space on the disk" if error.errno in _DISK_FULL else "See to the disk"
    raise Damaged(
        f"The file may be half changed ({why}), and bringing its old bytes back failed: {reason(error)}",
        f"Nothing is lost: {undo_file(path).name} holds what is missing. {first}, then restore the original",
        (f"ddpdoctor fix-checkpoint --undo {quoted(path)}",),
    ) from None


def refuse_untidy(error: OSError) -> NoReturn:
    """Say that only the date or the undo file could not be put right.

    Raises:
        Refused: always.
    """
    raise Refused(
        f"The content is as it was, but its date or its undo file could not be put right: {reason(error)}",
        "When that is mended, run the command again",
    ) from None


def stale(path: Path) -> Stale:
    """The undo file of other content."""
    return Stale(
        f"The undo file {undo_file(path).name} belongs to other content than the file has now: it was saved anew or replaced",
        "Nothing was changed. If you don't need the former content, remove the undo file, then run the command again",
        (f"rm {quoted(undo_file(path))}",),
    )


def torn_earlier(path: Path) -> Torn:
    """The undo file of a change that wasn't finished, and a file that isn't quite what such a change leaves."""
    name = undo_file(path).name
    return Torn(
        f"A run that was killed may have left this file half changed, and it isn't what that run knew: {name} doesn't fit it",
        f"Nothing was changed. Don't delete {name}: it may be the only copy of a part of the file. Copy the checkpoint "
        "again, or, if it was saved anew since, move the undo file aside, then run the command again",
        (f"mv {quoted(undo_file(path))} {quoted(free_name(undo_file(path)))}",),
    )


def refuse_missing_checkpoint(path: Path, folder: int) -> NoReturn:
    """Say that a checkpoint is gone, and where it may be.

    Raises:
        Refused: always.
    """
    for name in _renamed(path, folder):
        raise Refused(
            f"{path} is gone, only its undo file is left; {name} has its content",
            "Give the undo file the new name, too, then run the command again with that name",
            (f"mv {quoted(undo_file(path))} {quoted(undo_file(path.with_name(name)))}",),
        ) from None
    raise Refused(
        f"{path} is gone, only its undo file is left",
        "If you renamed or moved it, let the undo file follow it: the new name followed by "
        f"{journal.SUFFIX}. If you deleted it on purpose, delete the undo file, too",
        (f"rm {quoted(undo_file(path))}",),
    ) from None


def refuse_without_undo(path: Path, folder: int) -> NoReturn:
    """Say that there is no undo file, and where it may be instead; Torn is raised if the file was left half changed.

    Raises:
        Refused: in all other cases.
    """
    target = Path(os.path.realpath(path))
    if path.is_symlink() and undo_file(target).exists():
        raise Refused(
            f"It is a symbolic link to {target}",
            "Its undo file lies there",
            (f"ddpdoctor fix-checkpoint --undo {quoted(target)}",),
        )
    for name, torn in _undo_files_under_other_names(path, folder):
        if torn:
            raise torn
        raise Refused(
            f"There is no undo file {undo_file(path).name}, but {name} belongs to this very content",
            "If you renamed the checkpoint, rename the undo file, too, then run the command again",
            (f"mv {quoted(path.with_name(name))} {quoted(undo_file(path))}",),
        )
    raise Refused(f"There is nothing to undo: no undo file {undo_file(path).name} lies beside it")


def torn_under_other_name(path: Path) -> Torn | None:
    """The error if the path is a file that was left half changed, and renamed without its undo file; None if it isn't."""
    if os.path.lexists(undo_file(path)):
        return None
    with suppress(CheckpointError, OSError), open_folder(path) as folder:
        return next((torn for _, torn in _undo_files_under_other_names(path, folder) if torn), None)
    return None


def _renamed(path: Path, folder: int) -> Iterator[str]:
    """Files in the folder with content that the undo file of this path knows, of the same owner as that."""
    with suppress(OSError, Refused, IndexError), opened_in(folder, undo_file(path).name) as undo:
        layer = journal.read(ExclusiveFile(undo, folder, path.name))[-1].layer
        owner = os.fstat(undo).st_uid
        for name in sorted(os.listdir(folder)):
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode) or not 0 <= status.st_size - layer.size <= layer.appended:
                    continue
                with opened_in(folder, name) as file:
                    if os.fstat(file).st_uid == owner and journal.state(file, layer) in (
                        JournalState.AFTER,
                        JournalState.TORN,
                    ):
                        yield name


def _undo_files_under_other_names(path: Path, folder: int) -> Iterator[tuple[str, Torn | None]]:
    """Undo files in the folder whose checkpoint is gone and which know the content of this one; the error, if it is half changed."""
    names = set(os.listdir(folder))
    with suppress(OSError), opened_in(folder, path.name) as file:
        for name in sorted(names):
            if name.endswith(journal.SUFFIX) and name.removesuffix(journal.SUFFIX) not in names:
                with suppress(Refused):
                    records = journal.read(ExclusiveFile(file, folder, name.removesuffix(journal.SUFFIX)))
                    state = journal.state(file, records[-1].layer) if records else JournalState.FOREIGN
                    if state is JournalState.AFTER:
                        yield name, None
                    elif state is JournalState.TORN:
                        yield name, _torn_under(path, name)


def _torn_under(path: Path, name: str) -> Torn:
    return Torn(
        f"An earlier run was cut short while it changed this file, and {name}, which knows its content, has its former name",
        "The file is half changed. Give the undo file the new name, too; the next run takes that change back",
        (f"mv {quoted(path.with_name(name))} {quoted(undo_file(path))}", f"ddpdoctor fix-checkpoint {quoted(path)}"),
    )


class Recovery(NamedTuple):
    """The end of a run that was cut short.

    finished: the file is, or will be, as that run wanted it; else as it was before. torn: the file is, or was, neither.
    done, planned: what was done about it, and what the next run will do; "" if that says the same. is_planned: nothing was
    touched yet.
    """

    finished: bool
    found: str
    done: str
    planned: str = ""
    torn: bool = False
    is_planned: bool = False

    @property
    def text(self) -> str:
        """All of it as a sentence."""
        return f"{self.found}; {(self.is_planned and self.planned) or self.done}"


NEVER_BEGUN = Recovery(
    False,
    "An earlier run was cut short before it changed anything",
    "what it left is removed",
    "the next run removes what it left",
)
_TAKEN_BACK = Recovery(
    False,
    "An earlier run was cut short while it changed this file",
    "it is taken back: the file is as it was before that change",
    "the file is half changed, and the next run takes that back",
    torn=True,
)
_ALREADY_BACK = Recovery(
    False,
    "The file is already as it was before it was changed",
    "its undo file is removed",
    "the next run removes its undo file",
)
_UNDONE = Recovery(
    False,
    "An earlier undo was cut short",
    "it is finished: the change is undone",
    "the file is half restored, and the next run finishes that",
    torn=True,
)
_FINISHED = Recovery(
    True, "An earlier run was cut short when it had just changed this file", "its change is complete, and stays"
)
_STAYS = Recovery(
    True, "An earlier undo was cut short before it restored anything", "the file is still the changed one"
)


def ending_of(stage: JournalStage, state: JournalState) -> Recovery | None:
    """The end that a run came to; None if nothing is left to be done. The state is not FOREIGN."""
    if state is JournalState.AFTER:
        return {JournalStage.CHANGING: _FINISHED, JournalStage.COMPLETE: None, JournalStage.UNDOING: _STAYS}[stage]
    if stage is JournalStage.UNDOING:
        return _UNDONE
    return _ALREADY_BACK if stage is JournalStage.COMPLETE and state is JournalState.BEFORE else _TAKEN_BACK
