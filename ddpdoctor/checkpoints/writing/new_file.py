"""A new file that is there whole or not at all: written under a hidden name beside its own, and renamed when complete."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddpdoctor.base.ownership import user_name
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import human
from ddpdoctor.checkpoints.errors import CheckpointError, Refused

_LONGEST_NAME = 255
"""Bytes, on every file system that matters."""

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_TRIES = 10


def hidden_name(out: Path) -> Path:
    """The name under which `out` is written. A file found there was left behind by a run that was killed."""
    before, after = b".", b".ddpdoctor-new"
    return out.with_name(os.fsdecode(before + os.fsencode(out.name)[: _LONGEST_NAME - len(before + after)] + after))


@contextmanager
def new_file(out: Path, like: os.stat_result) -> Iterator[int]:
    """A descriptor to read and write what becomes `out` when the block ends, with the mode and the times of `like`.

    Where the block raises anything, KeyboardInterrupt too, nothing is left. Nothing is forced to the disk, no more than
    cp does: after a power cut within the next half minute the new file may be incomplete; its source is untouched.

    Raises:
        Refused: `out` exists, another run is writing it, or the disk is full, read-only or not for this user to write.
    """
    if os.path.lexists(out):
        raise _exists(out)
    hidden = hidden_name(out)
    try:
        fd = _create(out, hidden)
    except OSError as error:
        raise unwritten(out, error) from None
    try:
        yield fd
        os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
        os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        _rename(hidden, out)
        if not os.path.samestat(os.fstat(fd), os.lstat(out)):
            raise Refused(
                f"Somebody else has replaced {out} while it was being written: what lies there now isn't ours"
            )
    except BaseException as error:
        with suppress(OSError):
            hidden.unlink()
            if not os.fstat(fd).st_nlink:
                # Gives its room back at once, so that what is then said to be free is what there was.
                os.ftruncate(fd, 0)
        if isinstance(error, OSError):
            raise unwritten(out, error) from None
        raise
    finally:
        os.close(fd)


def unwritten(out: Path, error: OSError) -> CheckpointError:
    """Why a file could not be written, in plain words."""
    folder = out.parent
    if error.errno == errno.ENOSPC:
        return Refused(f"The disk is full: {human(_free(folder))} are free in {folder}, too little for {out.name}")
    if error.errno == errno.EDQUOT:
        return Refused(f"The quota of this user in {folder} is used up, too little is left for {out.name}")
    if error.errno == errno.EFBIG:
        return Refused(f"{out.name} would be larger than a file may be, on this file system or by `ulimit -f`")
    if error.errno == errno.EROFS:
        return Refused(f"{folder} is on a file system that is mounted read-only")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refused(f"This user may not write to {folder}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refused(f"There is no folder {folder}")
    if error.errno == errno.EEXIST:
        return _exists(out)
    return Refused(f"{out} could not be written: {error.strerror}")


def _exists(out: Path) -> Refused:
    return Refused(f"{out} exists, and is not overwritten", "Choose another name, or remove it first")


def _free(folder: Path) -> int:
    try:
        free = os.statvfs(folder)
    except OSError:
        return 0
    return free.f_bavail * free.f_frsize


def _create(out: Path, hidden: Path) -> int:
    """A new, empty file under the hidden name, locked so that another run doesn't take it for a leftover."""
    for _ in range(_TRIES):
        try:
            fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _remove_leftover(out, hidden)
            continue
        if _lock(fd):
            return fd
        os.close(fd)
        break
    raise _busy(out)


def _remove_leftover(out: Path, hidden: Path) -> None:
    try:
        fd = os.open(hidden, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:
        raise _in_the_way(hidden) from None
    try:
        if not _lock(fd):
            raise _busy(out)
        with suppress(FileNotFoundError):
            # Unless a run that has ended in between has left a new one there, which isn't locked by us.
            if os.path.samestat(os.fstat(fd), os.lstat(hidden)):
                hidden.unlink()
    except OSError:
        raise _in_the_way(hidden) from None
    finally:
        os.close(fd)


def _in_the_way(hidden: Path) -> Refused:
    try:
        owner = f" It belongs to {user_name(hidden.lstat().st_uid)}"
    except OSError:
        owner = ""
    return Refused(
        f"{hidden} is in the way, and can't be removed",
        f"The new file would be written under that name first.{owner}. Choose another name, or have it removed",
        (f"rm {quoted(hidden)}",),
    )


def _busy(out: Path) -> Refused:
    return Refused(f"Another run is writing {out} right now")


def _lock(fd: int) -> bool:
    """False if another process has it. A file system without locks is no reason to write nothing on it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF):
            raise
    return True


def _rename(hidden: Path, out: Path) -> None:
    """Gives the file its name, unless somebody else has taken it meanwhile."""
    try:
        _rename_without_replacing(hidden, out)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # Network file systems know no such rename, but links.
        try:
            os.link(hidden, out)
        except OSError as unlinked:
            if unlinked.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            if os.path.lexists(out):
                raise _exists(out) from None
            hidden.rename(out)
        else:
            hidden.unlink()


def _rename_without_replacing(old: Path, new: Path) -> None:
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(_RENAME_NOREPLACE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new))
