"""Writes a picture beside a report: over nobody's file but our own, and through no link."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from ddpdoctor.api.errors import WriteError, write_problem

READABLE: Final = 0o644
"""There is nothing in it but names of hosts, and figures."""


def refuse_foreign_file(path: str | os.PathLike[str]) -> None:
    """Make sure that what lies at the path, if anything does, may be replaced.

    Raises:
        OSError: it is a link, no file, or another user's.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise OSError(errno.EEXIST, f"{what} is there", os.fspath(path))
    if status.st_uid != os.geteuid():
        from ddpdoctor.base.ownership import user_name

        raise OSError(errno.EEXIST, f"a file of {user_name(status.st_uid)} is there", os.fspath(path))


def write_picture(path: str | os.PathLike[str], content: str) -> None:
    """Write a picture, whole or not at all.

    Raises:
        WriteError: it can't be written.
    """
    from ddpdoctor.base.whole_files import write_whole

    try:
        refuse_foreign_file(path)
        write_whole(path, content.encode(), READABLE)
    except OSError as error:
        raise WriteError(write_problem(path, error)) from error
