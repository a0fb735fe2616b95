"""Whether what lies beside a checkpoint is what a run of ours left there: whoever may write to the folder can put one there."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ddpdoctor.base.ownership import Foothold, access_list, foothold_of_file, trusted_users, user_name
from ddpdoctor.base.shell import quoted
from ddpdoctor.checkpoints.errors import Untrusted
from ddpdoctor.checkpoints.writing.exclusive_open import ExclusiveFile, folder_path


def ensure_trusted(file: int, name: str, checkpoint: ExclusiveFile) -> None:
    """Make sure that an open file of that name in the checkpoint's folder is to be believed; else Untrusted is raised.

    It has to be the checkpoint's owner's, root's or ours, with one name, and not to be written by anybody who may not write
    the checkpoint itself.
    """
    status = os.fstat(file)
    found = foothold_of_file(file, name, _trusted(checkpoint))
    if not found or found.writers:
        if stat.S_ISREG(status.st_mode) and status.st_nlink - _put_aside_halfway(status, name, checkpoint) > 1:
            found = Foothold(name, status.st_uid, "whoever can reach its other hard links")
        elif found and _writers_alike(file, checkpoint.file):
            found = None
    if found:
        _refuse_untrusted(found, checkpoint)


def ensure_owner_trusted(name: str, checkpoint: ExclusiveFile) -> None:
    """Make sure that what can't be opened belongs to somebody who is to be believed; OSError is raised if nothing is there."""
    status = os.stat(name, dir_fd=checkpoint.folder, follow_symlinks=False)
    if status.st_uid not in _trusted(checkpoint):
        _refuse_untrusted(Foothold(name, status.st_uid), checkpoint)


def _refuse_untrusted(found: Foothold, checkpoint: ExclusiveFile) -> NoReturn:
    # found: with the file's name alone for its path.
    whose = "" if found.writers else f" (the checkpoint to {user_name(os.fstat(checkpoint.file).st_uid)})"
    path = folder_path(checkpoint.folder) / found.path
    raise Untrusted(
        f"What lies in place of the undo file isn't believed: {found.words}{whose}",
        "Nothing was changed. Look at it; if nobody whom you trust wrote it, move it out of the way, or, where you may not, "
        f"ask {found.owner} or an administrator",
        (f"ls -l {quoted(path)}", f"mv {quoted(path)} {quoted(free_name(path))}"),
    )


def free_name(path: Path) -> Path:
    """A name that nothing has yet, for an undo file that is put out of the way."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.old" + (f"-{number}" if number > 1 else ""))):
        number += 1
    return free


def _trusted(checkpoint: ExclusiveFile) -> frozenset[int]:
    return trusted_users() | {os.fstat(checkpoint.file).st_uid}


def _writers_alike(undo: int, checkpoint: int) -> bool:
    """Whether whoever may write the undo file may write the checkpoint, too: then it gives them nothing."""
    theirs, its = os.fstat(undo), os.fstat(checkpoint)
    more = theirs.st_mode & ~its.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    by_group = theirs.st_mode & stat.S_IWGRP
    return not more and not (by_group and (theirs.st_gid != its.st_gid or access_list(undo) != access_list(checkpoint)))


def _put_aside_halfway(status: os.stat_result, name: str, checkpoint: ExclusiveFile) -> int:
    """The number of further names that it has from being put aside, by a run that was killed between its two steps."""
    if status.st_nlink == 1:
        return 0
    count = 0
    for other_name in os.listdir(checkpoint.folder):  # noqa: PTH208 (a descriptor)
        if other_name.startswith(f"{name}.old"):
            with suppress(OSError):
                other = os.stat(other_name, dir_fd=checkpoint.folder, follow_symlinks=False)
                count += os.path.samestat(status, other)
    return count
