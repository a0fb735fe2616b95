"""Pipes and terminals that are named as the file to write to: /dev/stdout, >(gzip > x), /dev/null."""

from __future__ import annotations

import errno
import os
import stat

from ddpdoctor.base.ownership import MAX_LINKS, foothold_of_file, trusted_users, user_name

_DESCRIPTORS = ("/dev/fd", "/proc/self/fd", "/proc/thread-self/fd")


def open_stream(path: str | os.PathLike[str]) -> int | None:
    """Open what isn't written as a file is; None where a file is, or nothing.

    Raises:
        OSError: somebody else's link leads there, or it is somebody else's pipe; nobody reads the pipe; it is a disk or a socket.
    """
    name = os.path.abspath(path)  # noqa: PTH100 (no link may be followed)
    for _ in range(MAX_LINKS):
        folder = os.path.realpath(os.path.dirname(name))  # noqa: PTH120
        last = os.path.basename(name)  # noqa: PTH119
        if last.isdecimal() and folder in map(os.path.realpath, _DESCRIPTORS):
            return os.dup(int(last))  # It is open already, whatever it is.
        name = f"{folder.rstrip('/')}/{last}"
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            break
        target = os.path.join(folder, os.readlink(name))  # noqa: PTH115, PTH118
        if status.st_uid not in trusted_users():
            if _is_file(target):
                return None  # The link is replaced, and not followed.
            raise OSError(errno.ELOOP, f"{name} is a link of {user_name(status.st_uid)}'s")
        name = target
    return _open(name, status.st_mode)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _open(path: str, mode: int) -> int | None:
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        raise OSError(errno.EINVAL, "a disk or a socket is there, and no file")
    try:
        # Without waiting for a reader, who may never come.
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(mode):
            raise OSError(errno.ENXIO, "it is a pipe that nobody reads") from error
        raise
    now = os.fstat(file).st_mode
    if stat.S_IFMT(now) != stat.S_IFMT(mode):
        problem: str | None = "it was replaced a moment ago"
    elif stat.S_ISFIFO(now):
        found = foothold_of_file(file, path)
        problem = found and f"it is a pipe, and {found.words}"
    else:
        problem = None
    if problem:
        os.close(file)
        raise OSError(errno.EPERM, problem)
    os.set_blocking(file, True)
    return file
