"""A checkpoint opened so that nobody else has it, and no signal comes between: what must be true of a file before it is changed
where it lies."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from ddpdoctor.base.ownership import ROOT, footholds_on
from ddpdoctor.base.regular_files import open_regular
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import listed
from ddpdoctor.checkpoints.errors import Busy, Refused
from ddpdoctor.checkpoints.writing.open_handles import Occupant, file_system, is_ours, occupants

_REMOTE_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "fuse", "9p", "lustre", "ceph", "gpfs", "beegfs", "afs", "pvfs", "orangefs", "ocfs", "gfs"),
)
"""How the types begin of those where "in use" can be the server's word for "I don't know"."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""The last one on NFS, for what is open for reading alone."""


class ExclusiveFile(NamedTuple):
    """file, folder: open descriptors, the first for reading and writing; name: of the one in the other."""

    file: int
    folder: int
    name: str


@contextmanager
def open_exclusively(path: Path) -> Iterator[ExclusiveFile]:
    """Open the file, with everybody else kept out while the context lasts.

    Whoever opens it meanwhile waits (Linux leases) where the file system knows such a thing. The caller itself must have
    closed the file: it would be in its own way.

    Raises:
        Refused: it can't be changed, and is untouched.
    """
    with open_folder(path) as folder:
        refuse_links(path, folder)
        with ExitStack() as stack:
            file = _open(path, folder)
            # Closing it ends the lease and the lock, too.
            stack.callback(os.close, file)
            try:
                locked = try_lock(file)
                if locked is None:
                    stack.enter_context(_lock_file(folder, path))
                elif not locked:
                    _refuse_occupied(occupants(file))
                # What was written to it before must not cost time while others wait.
                os.fsync(file)
                _lease(file)
                _ensure_changeable(path, file)
                _refuse_others_links(path, folder, file)
            except OSError as error:
                raise Refused(f"{path} can't be changed: {error.strerror}") from None
            yield ExclusiveFile(file, folder, path.name)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open the folder that the path lies in, so that all names are looked up in the very same one.

    Raises:
        Refused: it can't be opened.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"The folder {path.parent} can't be opened: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened_in(folder: int, name: str) -> Iterator[int]:
    """Open a regular file of an open folder to read it."""
    file = open_regular(f"/proc/self/fd/{folder}/{name}")
    try:
        yield file
    finally:
        os.close(file)


def refuse_links(path: Path, folder: int) -> None:
    """Refuse what has more than one name, isn't a regular file, or isn't there.

    Raises:
        Refused: it is such a file.
    """
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        refuse_unopened(path, error)
    if stat.S_ISLNK(status.st_mode):
        target = Path(os.path.realpath(path))
        if {"blobs", "snapshots"} & {*target.parts, *path.parts}:
            raise Refused(
                f"It is a symbolic link into a hub's cache ({target}), where a file's name is the checksum of its content"
            )
        raise Refused(
            f"It is a symbolic link to {target}",
            "Others may use that file under its own name. If it is meant, name it itself",
            (f"ddpdoctor fix-checkpoint {quoted(target)}",),
        )
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{path} is not a regular file")
    if status.st_nlink > 1:
        raise Refused(f"The file has {status.st_nlink} names (hard links), and a change would show under all of them")


def folder_path(folder: int) -> Path:
    """The path of an open folder, as it is without links."""
    return Path(os.readlink(f"/proc/self/fd/{folder}"))  # noqa: PTH115


def _refuse_others_links(path: Path, folder: int, file: int) -> None:
    # Let no link on the way to the folder lead root to another user's checkpoint. Nobody else could change one that isn't
    # theirs.
    if os.geteuid() != ROOT:
        return
    for found in footholds_on(path.parent, (os.fstat(file).st_uid,)):
        if not found.writers and os.path.islink(found.path):  # noqa: PTH114
            meant = folder_path(folder) / path.name
            raise Refused(
                f"The link {found.path}, which belongs to {found.owner}, leads to another user's checkpoint, {meant}",
                "If that file is meant, name it itself",
                (f"ddpdoctor fix-checkpoint {quoted(meant)}",),
            )
    if str(folder_path(folder)) != os.path.realpath(path.parent):
        raise Refused(f"The folder {path.parent} was replaced meanwhile", "Run the command again")


def refuse_unopened(path: Path, error: OSError) -> NoReturn:
    """Say why a file can't be opened, and what to do.

    Raises:
        Busy: somebody has it for a moment.
        Refused: for any other reason.
    """
    if error.errno == errno.EAGAIN:
        raise Busy(
            f"Another program has just taken {path} for itself (a lease); perhaps a second ddpdoctor, or a file server",
            "Run the command again in a moment",
        ) from None
    raise Refused(f"{path} can't be opened: {error.strerror}") from None


def _open(path: Path, folder: int) -> int:
    try:
        return os.open(path.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise Refused(f"This user may not write to {path}", f"Ask its owner{_owner(path)}") from None
        if error.errno == errno.EPERM:
            raise Refused(
                f"{path} is marked as immutable or append-only",
                "Take the mark off as root",
                (f"sudo chattr -i -a {quoted(path)}",),
            ) from None
        if error.errno == errno.EROFS:
            raise Refused(f"{path} lies on a file system that is mounted read-only") from None
        refuse_unopened(path, error)


def _owner(path: Path) -> str:
    with suppress(OSError, KeyError):
        return f", {path.owner()}"
    return ""


def try_lock(file: int) -> bool | None:
    """Lock an open file against other runs; False if one has locked it, None where the file system has no locks.

    Raises:
        OSError: it can't be locked for another reason.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextmanager
def _lock_file(folder: int, path: Path) -> Iterator[None]:
    # Lock by a file that only one can create: on Lustre without "flock", on NFS without a lock daemon.
    lock = path.name + ".ddpdoctor-lock"
    me = f"{os.uname().nodename} {os.getpid()}"
    with suppress(FileNotFoundError):
        reader = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        host, _, pid = os.read(reader, 1 << 10).decode(errors="replace").rpartition(" ")
        os.close(reader)
        if host != os.uname().nodename or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
            raise Busy(
                f"This file system has no locks, and {lock} says that a run on {host or 'some host'} (pid {pid}) is at work",
                "If no ddpdoctor works on this file, remove that one",
                (f"rm {quoted(path.with_name(lock))}",),
            )
        os.unlink(lock, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        writer = os.open(lock, flags, 0o644, dir_fd=folder)
    except FileExistsError:
        _refuse_occupied(())
    try:
        os.write(writer, me.encode())
        yield
    finally:
        os.close(writer)
        os.unlink(lock, dir_fd=folder)


def _lease(file: int) -> None:
    # Let whoever opens the file from now on wait.
    for _ in range(3):
        lease = _ask_for_lease(file)
        # A mapping in a container belongs to the layer below, of which the lease knows nothing.
        if (lease != 0 or file_system(file) == "overlay") and (found := occupants(file)):
            _refuse_occupied(found)
        # Who has it and isn't there to be seen may just have closed it.
        if lease != errno.EAGAIN or file_system(file).startswith(_REMOTE_FILE_SYSTEMS):
            return
    raise Refused(
        "The file is open in a process that this user can't see (another user's, or in another container)",
        "End what reads or writes it, then run the command again",
        ("sudo fuser -v " + quoted(Path(f"/proc/self/fd/{file}").readlink()),),
    )


def _ask_for_lease(file: int) -> int:
    """0, or why not: EAGAIN means that somebody has it; anything else that there are no leases, or not for this user."""
    try:
        # The signal by which the kernel asks for the lease back; this one is ignored unless somebody handles it.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return error.errno or -1
    return 0


def _refuse_occupied(found: Sequence[Occupant]) -> NoReturn:
    # Whoever isn't there to be seen has locked it as we do, on another host perhaps.
    kind = Busy if all(is_ours(occupant.pid) for occupant in found) else Refused
    text = (
        f"The file is in use: {listed(found)}"
        if found
        else "The file is locked; perhaps a second ddpdoctor works on it"
    )
    commands = tuple(f"ps -fp {occupant.pid}" for occupant in found[:5])
    raise kind(text, "Wait until it is closed, then run the command again", commands) from None


def _ensure_changeable(path: Path, file: int) -> None:
    # Make sure that the file got no second name meanwhile, and that its date can be kept.
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise Refused("The file was renamed, replaced, deleted or linked meanwhile", "Run the command again")
    try:
        # Only its owner may set a date, and a resume that takes the newest file must not be misled.
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    except PermissionError:
        raise Refused(
            "The file belongs to another user, so that its date could not be kept",
            f"Ask its owner{_owner(path)}",
        ) from None


_DEFERRED_SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2),
)
"""All that a terminal, a scheduler or a person sends to end or stop a program, but the two that can't be put off."""


@contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Put signals off for the milliseconds in which a file is being changed; at the end they are delivered.

    Yields:
        A list that those are put into that come meanwhile.
    """
    deferred: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        deferred.append(number)

    before = {}
    try:
        for number in _DEFERRED_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, note)
    except ValueError:
        # Not in the main thread: no handler would run here anyway.
        before = {}
    try:
        yield deferred
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in deferred:
            signal.raise_signal(came)
