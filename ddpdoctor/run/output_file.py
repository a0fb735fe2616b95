"""The file of `--keep`: opened before the command starts, so that no other user can put another in its place in the hours until it is
written."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import Final

from ddpdoctor.base.ownership import foothold_on, open_folder, trusted_users, user_name

FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
FIRST_OWN_DESCRIPTOR: Final = 3
"""Those before are the command's, also where they are closed."""


class OutputFileError(Exception):
    """Nothing can be kept there; the text says why, in a few words."""


class OutputFile:
    """A file that is open for writing. What is in it stays until `write`."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Args:
            path: of a new file, or of one that exists and is root's or ours.

        Raises:
            OutputFileError: nothing can be kept there.
        """
        self.path = path
        self._made = False
        try:
            self._file = self._open()
        except OSError as error:
            raise OutputFileError(_explain(path, error)) from None

    def write(self, data: bytes) -> None:
        """Put this in the place of what is in there. An OSError tells that it can't be written, an OutputFileError that it was removed and
        what lies there now isn't ours to write."""
        if not os.fstat(self._file).st_nlink:
            # As by a command that empties its folder when it starts.
            os.close(self._file)
            self._file = self._open()
        with open(self._file, "wb", buffering=0) as file:  # noqa: PTH123 (a descriptor is no path)
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                file.truncate(0)
            while data:
                data = data[file.write(data) :]

    def discard(self) -> None:
        """Leave nothing of it: the command was never started."""
        if self._made:
            with suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108
        os.close(self._file)

    def _open(self) -> int:
        folder, name = os.path.split(_without_own_links(self.path))
        at = open_folder(folder or ".")
        try:
            try:
                found = os.open(name, FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
                self._made = True
            except FileExistsError:
                found = os.open(name, FLAGS, dir_fd=at)
                self._made = False
        finally:
            os.close(at)
        try:
            if not self._made and (problem := _problem(found, self.path)):
                raise OutputFileError(problem)
            return fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, FIRST_OWN_DESCRIPTOR)
        finally:
            os.close(found)


def _without_own_links(path: str) -> str:
    """Follow a link that no other user could have put there.

    Raises:
        OutputFileError: another user could have.
    """
    if not os.path.islink(path):  # noqa: PTH114
        return path
    if foothold := foothold_on(path):
        raise OutputFileError(f"it is a link, and {foothold.words}; name the file itself")
    return os.path.realpath(path)


def _problem(file: int, path: str) -> str:
    """Say why what lies there already isn't to be written; "" if it is."""
    status = os.fstat(file)
    if stat.S_ISCHR(status.st_mode):
        foothold = foothold_on(path)
        return f"it is a device, and {foothold.words}" if foothold else ""
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid not in trusted_users():
        return f"it is there already and belongs to {user_name(status.st_uid)}; name a new file"
    if status.st_nlink > 1:
        return "it has other names (hard links), and what is written to it is written there, too; name a new file"
    return ""


def _explain(path: str, error: OSError) -> str:
    folder = os.path.dirname(path) or "."  # noqa: PTH120
    if error.errno == errno.EISDIR or os.path.isdir(path):  # noqa: PTH112
        return "it is a folder"
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(folder):  # noqa: PTH112
        return f"there is no folder {folder}"
    if error.errno == errno.ENOENT and os.path.islink(path):  # noqa: PTH114
        return "it is a link to what is not there; name the file itself"
    if error.errno == errno.EACCES:
        return "it may not be written" if os.path.lexists(path) else f"no file may be made in {folder}"
    if error.errno == errno.ENXIO:
        return "it is no regular file"
    return error.strerror or str(error)
