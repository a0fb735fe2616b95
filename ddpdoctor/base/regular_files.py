"""Opening files where anybody may have put something else. Neither a named pipe nor a device is opened, which by itself could hold
us up or, as with a watchdog, have the host started anew."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotRegularError(OSError):
    """It is a named pipe, a device or the like, as its mode says."""

    def __init__(self, mode: int) -> None:
        super().__init__(errno.EINVAL, "not a regular file")
        self.mode = mode


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file to read it, and nothing else, also where somebody puts it there just now.

    Returns:
        The descriptor, which is the caller's to close.
    Raises:
        OSError: it can't be opened, or is something else (`NotRegularError`).

    It raises `ValueError` where no file can have that name.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _check(os.fstat(place))
        descriptor = _open(f"/proc/self/fd/{place}")
        if descriptor is not None:
            return descriptor
    finally:
        os.close(place)
    descriptor = os.open(path, FLAGS)  # There is no /proc here.
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open(path: str) -> int | None:
    try:
        return os.open(path, FLAGS)
    except FileNotFoundError:
        return None


def read_start(path: str | os.PathLike[str], most: int) -> bytes:
    """Read the first so many bytes of a regular file, and never more. It raises what `open_regular` does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def _check(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise NotRegularError(facts.st_mode)
