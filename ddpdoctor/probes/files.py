"""Looking at files that anybody may have made. Unlike pathlib's, `exists`, `isdir` and `isfile` never raise: not where a folder on
the way may not be entered, and not for names that are too long or no names at all, all of which settings may hold."""

import errno
import os
import stat
from os.path import exists, isdir, isfile

__all__ = ["exists", "isdir", "isfile", "open_regular", "read_start"]


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file to read it. Neither a named pipe nor a device can hold us up, or is as much as opened, unless
    somebody puts it there just now; nor would it be read then.

    Returns:
        The descriptor, which is the caller's to close.
    Raises:
        OSError: it can't be opened, or isn't a regular file.
        ValueError: no file can have that name.
    """
    _check(os.stat(path))  # noqa: PTH116 (pathlib is slow to import)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_start(path: str | os.PathLike[str], most: int) -> bytes:
    """The first so many bytes of a regular file, and never more.

    Raises:
        OSError, ValueError: as of `open_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def _check(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
