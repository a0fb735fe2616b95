"""What there is to say when a file can't be changed or restored, with the way out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddpdoctor.checkpoints.errors import Damaged, Refused
from ddpdoctor.checkpoints.kinds.recognised import quoted
from ddpdoctor.checkpoints.writing import journal
from ddpdoctor.checkpoints.writing.journal import State, undo_file

A_COPY = "Write a new file instead: add -o and its name to the same command"

_WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "this user's quota on the disk is used up",
    errno.EFBIG: "the file would exceed the limit of this shell (ulimit -f) or of the file system",
    errno.EACCES: "this user may not write to the folder",
    errno.EPERM: "the folder is marked as immutable, or the file system does not allow it",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENAMETOOLONG: "its name would be too long",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason(error: OSError) -> str:
    """What the system says, in plain words: "the disk is full"."""
    return _WHY.get(error.errno or 0, error.strerror or str(error))


def stuck(path: Path, why: str, error: OSError) -> Damaged:
    """why: what stopped the change; error: what stopped its being taken back."""
    first = "Free some space on the disk" if error.errno in _FULL else "See to the disk"
    return Damaged(
        f"The file may be half changed ({why}), and bringing its old bytes back failed: {reason(error)}",
        f"Nothing is lost: {undo_file(path).name} holds what is missing. {first}, then restore the original",
        (f"ddpdoctor fix-checkpoint --undo {quoted(path)}",),
    )


def half_tidy(path: Path, error: OSError) -> Refused:
    return Refused(
        f"The content is as it was, but its date or its undo file could not be put right: {reason(error)}",
        "When that is mended, run the command again",
    )


def foreign(path: Path) -> Refused:
    return Refused(
        f"The undo file {undo_file(path).name} belongs to other content than the file has now: it was saved anew or replaced",
        "Nothing was changed. If you don't need the former content, remove the undo file, then run the command again",
        (f"rm {quoted(undo_file(path))}",),
    )


def gone(path: Path) -> Refused:
    return Refused(
        f"{path} is gone, only its undo file is left",
        "If you renamed it, give the undo file the new name, too: the new name followed by " + journal.SUFFIX,
    )


def no_undo(path: Path, folder: int) -> Refused:
    """No undo file: where it may be instead."""
    target = Path(os.path.realpath(path))
    if path.is_symlink() and undo_file(target).exists():
        return Refused(
            f"It is a symbolic link to {target}",
            "Its undo file lies there",
            (f"ddpdoctor fix-checkpoint --undo {quoted(target)}",),
        )
    for name in _left_alone(path, folder):
        return Refused(
            f"There is no undo file {undo_file(path).name}, but {name} belongs to this very content",
            "If you renamed the checkpoint, rename the undo file, too, then run the command again",
            (f"mv {quoted(path.with_name(name))} {quoted(undo_file(path))}",),
        )
    return Refused(f"There is nothing to undo: no undo file {undo_file(path).name} lies beside it")


def _left_alone(path: Path, folder: int) -> Iterator[str]:
    """Undo files in the folder whose checkpoint is gone and which know the content of this one."""
    names = set(os.listdir(folder))
    with suppress(OSError):
        file = os.open(path.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            for name in sorted(names):
                if name.endswith(journal.SUFFIX) and name.removesuffix(journal.SUFFIX) not in names:
                    with suppress(Refused):
                        records = journal.read(folder, name.removesuffix(journal.SUFFIX))
                        if records and journal.state(file, records[-1].layer) is State.AFTER:
                            yield name
        finally:
            os.close(file)
