"""A new file that is there whole or not at all: written under a hidden name beside its own, and renamed when complete."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from ddpdoctor.base.ownership import user_name
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import human
from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.writing.exclusive_open import try_lock

_MAX_NAME_BYTES = 255
"""On every file system that matters."""

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_MAX_TRIES = 10


def hidden_name(out: Path) -> Path:
    """The name under which `out` is written. A file found there was left behind by a run that was killed."""
    before, after = b".", b".ddpdoctor-new"
    return out.with_name(os.fsdecode(before + os.fsencode(out.name)[: _MAX_NAME_BYTES - len(before + after)] + after))


@contextmanager
def new_file(out: Path, like: os.stat_result) -> Iterator[int]:
    """A descriptor to read and write what becomes `out` when the block ends, with the mode and the times of `like`.

    Where the block raises anything, KeyboardInterrupt too, nothing is left. Nothing is forced to the disk, no more than
    cp does: after a power cut within the next half minute the new file may be incomplete; its source is untouched.

    Raises:
        Refused: `out` exists, another run is writing it, or the disk is full, read-only or not for this user to write.
    """
    if os.path.lexists(out):
        _refuse_existing(out)
    hidden = hidden_name(out)
    try:
        fd = _create(out, hidden)
    except OSError as error:
        _refuse_unwritten(out, error)
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
            _refuse_unwritten(out, error)
        raise
    finally:
        os.close(fd)


def _refuse_unwritten(out: Path, error: OSError) -> NoReturn:
    folder = out.parent
    free = 0
    with suppress(OSError):
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
    texts = {
        errno.ENOSPC: f"The disk is full: {human(free)} are free in {folder}, too little for {out.name}",
        errno.EDQUOT: f"The quota of this user in {folder} is used up, too little is left for {out.name}",
        errno.EFBIG: f"{out.name} would be larger than a file may be, on this file system or by `ulimit -f`",
        errno.EROFS: f"{folder} is on a file system that is mounted read-only",
        **dict.fromkeys((errno.EACCES, errno.EPERM), f"This user may not write to {folder}"),
        **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), f"There is no folder {folder}"),
    }
    if error.errno == errno.EEXIST:
        _refuse_existing(out)
    raise Refused(texts.get(error.errno or 0, f"{out} could not be written: {error.strerror}")) from None


def _refuse_existing(out: Path) -> NoReturn:
    raise Refused(f"{out} exists, and is not overwritten", "Choose another name, or remove it first") from None


def _create(out: Path, hidden: Path) -> int:
    """A new, empty file under the hidden name, locked so that another run doesn't take it for a leftover."""
    for _ in range(_MAX_TRIES):
        try:
            fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _remove_leftover(out, hidden)
            continue
        # A file system without locks is no reason to write nothing on it.
        if try_lock(fd) is not False:
            return fd
        os.close(fd)
        break
    return _refuse_busy(out)


def _remove_leftover(out: Path, hidden: Path) -> None:
    try:
        fd = os.open(hidden, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:
        _refuse_obstructed(hidden)
    try:
        if try_lock(fd) is False:
            _refuse_busy(out)
        with suppress(FileNotFoundError):
            # Unless a run that has ended in between has left a new one there, which isn't locked by us.
            if os.path.samestat(os.fstat(fd), os.lstat(hidden)):
                hidden.unlink()
    except OSError:
        _refuse_obstructed(hidden)
    finally:
        os.close(fd)


def _refuse_obstructed(hidden: Path) -> NoReturn:
    try:
        owner = f" It belongs to {user_name(hidden.lstat().st_uid)}"
    except OSError:
        owner = ""
    raise Refused(
        f"{hidden} is in the way, and can't be removed",
        f"The new file would be written under that name first.{owner}. Choose another name, or have it removed",
        (f"rm {quoted(hidden)}",),
    ) from None


def _refuse_busy(out: Path) -> NoReturn:
    raise Refused(f"Another run is writing {out} right now")


def _rename(hidden: Path, out: Path) -> None:
    # Give the file its name, unless somebody else has taken it meanwhile.
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
                _refuse_existing(out)
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
