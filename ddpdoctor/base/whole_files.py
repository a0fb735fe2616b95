"""Writes files whole or not at all, also into folders of other users."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from ddpdoctor.base.ownership import open_folder


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out beforehand whether a file can be written there, by making an empty one beside it. A pipe or a terminal is left alone: its
    reader would take that for the end.

    Raises:
        OSError: it can't.
    """
    target = Path(path)
    if target.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return
    folder = open_folder(target.parent)
    try:
        hidden = _hidden_name(target)
        os.close(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder))
        os.unlink(hidden, dir_fd=folder)
    finally:
        os.close(folder)


def _hidden_name(target: Path) -> str:
    return f".{target.name}.{os.urandom(8).hex()}"


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int, group: int = -1) -> None:
    """Write a file beside the target and rename it: under that name there is never half a file, and no link there is followed.

    Args:
        path: of the target; what is there is replaced.
        content: of it.
        mode: its permissions, whatever the umask.
        group: whose it is to be; -1: as a new file's.

    Raises:
        OSError: it can't be written, or not for that group; what was there is as it was.
    """
    target = Path(path)
    folder = open_folder(target.parent)
    try:
        hidden = _hidden_name(target)
        handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                # By its descriptor: under the name there may be another by now, in a folder of somebody else's.
                os.fchown(file.fileno(), -1, group)
                os.fchmod(file.fileno(), mode)
            os.rename(hidden, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(hidden, dir_fd=folder)
            raise
    finally:
        os.close(folder)
