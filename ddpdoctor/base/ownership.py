"""Finds who could have put, or could replace, what lies at a path: asked before it is run, sourced, written to or believed."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections import deque
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = 0
EVERYBODY: Final = "everybody"
FIRST_GROUP_OF_USERS: Final = 100
"""Groups below are the system's own, as Debian's staff, which may write to /usr/local: nobody's first one."""
MAX_LINKS: Final = 40
"""Symbolic links on one way, as in the kernel."""


class Foothold(NamedTuple):
    """A file, link or folder by which somebody else decides what is found at the end of a path.

    Args:
        path: of that file, link or folder.
        uid: whose it is.
        writers: "" where it is that user's own, else who else may write there: "everybody", "the group staff".
    """

    path: str
    uid: int
    writers: str = ""

    @property
    def words(self) -> str:
        """ "/home/ada belongs to ada", "/srv may be written by everybody"."""
        return (
            f"{self.path} may be written by {self.writers}" if self.writers else f"{self.path} belongs to {self.owner}"
        )

    @property
    def owner(self) -> str:
        return user_name(self.uid)


def user_name(uid: int) -> str:
    """The user's name, "uid 4711" for one without."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def trusted_users() -> frozenset[int]:
    """Root, and who we are."""
    return _with_root((os.geteuid(),))


def _with_root(users: Collection[int]) -> frozenset[int]:
    return frozenset((*_roots(), *users))


@cache
def _roots() -> frozenset[int]:
    """Root's number. A user namespace in which root has none, as in Apptainer, shows him as it shows all who have none there:
    as the overflow user, who must be trusted with "/" itself."""
    try:
        mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if any(inside <= ROOT < inside + count for inside, _, count in mapped):
            return frozenset((ROOT,))
        return frozenset((ROOT, int(Path("/proc/sys/kernel/overflowuid").read_text())))
    except (OSError, ValueError):
        return frozenset((ROOT,))


def foothold_on(
    path: str | os.PathLike[str], trusted: Collection[int] | None = None, *, may_be_missing: bool = False
) -> Foothold | None:
    """Find the first foothold on the way from / to what the path leads to, all links followed; None if there is none.

    Folders that others may write to are safe where they are sticky and what lies in them is a trusted user's.

    Args:
        path: a relative one is looked for in the current folder, whose own way counts, too.
        trusted: user numbers beside root's; by default `trusted_users()`.
        may_be_missing: where nothing is there, find out who could make it.

    It raises `OSError` where nothing is there, or it may not be looked at.
    """
    return next(footholds_on(path, trusted, may_be_missing=may_be_missing), None)


def footholds_on(
    path: str | os.PathLike[str], trusted: Collection[int] | None = None, *, may_be_missing: bool = False
) -> Iterator[Foothold]:
    """Find all footholds on the way that `foothold_on` goes.

    Args:
        path: as there.
        trusted: as there.
        may_be_missing: as there.
    Raises:
        FileNotFoundError: nothing is there, when it comes to that.
        OSError: it may not be looked at, or there are too many links.
    """
    trusted = _with_root(trusted) if trusted is not None else trusted_users()
    if not os.path.isabs(path):  # noqa: PTH117 (".." must stay, behind a link it leads elsewhere)
        path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    left = deque(_parts(os.fspath(path)))
    here = "/"
    links = 0
    if found := _foothold_of(here, os.lstat(here), trusted):
        yield found
    while left:
        name = left.popleft()
        if name == "..":
            here = os.path.dirname(here)  # noqa: PTH120
            continue
        folder, here = here, f"{here.rstrip('/')}/{name}"
        try:
            status = os.lstat(here)
        except FileNotFoundError:
            if not may_be_missing:
                raise
            if found := _foothold_of(folder, os.lstat(folder), trusted, is_sticky_safe=False):
                yield found
            return
        if found := _foothold_of(here, status, trusted):
            yield found
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            target = os.readlink(here)  # noqa: PTH115
            here = "/" if target.startswith("/") else os.path.dirname(here)  # noqa: PTH120
            left.extendleft(reversed(_parts(target)))


def open_folder(path: str | os.PathLike[str]) -> int:
    """Open a folder for `dir_fd`. It may be anybody's, or lie in anybody's, but no link of somebody else's leads there.

    Raises:
        OSError: it can't be opened; ELOOP and our own words where somebody's link leads there.
    """
    foothold = foothold_on(path)
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if foothold is None:
        return folder
    real = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115
    # Nobody else can change the way to the foothold; behind it without links is within it.
    if f"{real}/".startswith(f"{foothold.path.rstrip('/')}/"):
        return folder
    os.close(folder)
    raise OSError(errno.ELOOP, f"a link leads to {real}, and {foothold.words}", os.fspath(path))


def foothold_of_file(file: int, path: str, trusted: Collection[int] | None = None) -> Foothold | None:
    """Find out whether an open file itself is a foothold, however it was reached. A second hard link is one, too: by it the file
    could have been brought here from elsewhere."""
    trusted = _with_root(trusted) if trusted is not None else trusted_users()
    status = os.fstat(file)
    found = _foothold_of(path, status, trusted, file=file)
    if found is None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return Foothold(path, status.st_uid, "whoever can reach its other hard links")
    return found


def who_misleads(file: int, path: str | os.PathLike[str]) -> Foothold | None:
    """Find out whether somebody else has led root to a file that they may not read, as by a link to a secret of root's; None
    if not. What anybody may read where it lies, and what is theirs, is no secret.

    Args:
        file: opened at that path.
        path: by which it was opened.
    """
    if os.geteuid() != ROOT:
        return None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or (status.st_mode & stat.S_IROTH and _is_reached_by_all(file)):
        return None
    try:
        found = foothold_on(path, (ROOT,))
    except OSError as error:  # It was there when it was opened.
        return Foothold(os.fspath(path), ROOT, f"somebody who has changed it just now ({error.strerror})")
    if found is None:
        return None
    is_theirs = status.st_uid != ROOT if found.writers else status.st_uid == found.uid
    return None if is_theirs else found


def _is_reached_by_all(file: int) -> bool:
    """Whether all folders on the way to an open file may be entered by everybody."""
    try:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))  # noqa: PTH115
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    except OSError:
        return False


def _parts(path: str) -> list[str]:
    # As PurePosixPath has them, which takes four times as long: this is asked of each setting and program that root hands on.
    return [part for part in path.split("/") if part not in ("", ".")]


def writers_of_folder(folder: str | os.PathLike[str], trusted: Collection[int] | None = None) -> Foothold | None:
    """Find who else may put names into a folder, be it a sticky one; None if nobody. `OSError` where it may not be looked at."""
    trusted = _with_root(trusted) if trusted is not None else trusted_users()
    folder = os.path.realpath(folder)
    return _foothold_of(folder, os.lstat(folder), trusted, is_sticky_safe=False)


def _foothold_of(
    path: str,
    status: os.stat_result,
    trusted: frozenset[int],
    *,
    is_sticky_safe: bool = True,
    file: int | None = None,
) -> Foothold | None:
    """file: the open one; else what is at the path."""
    mode, uid = status.st_mode, status.st_uid
    if uid not in trusted:
        return Foothold(path, uid)
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX and is_sticky_safe):
        return None
    if mode & stat.S_IWOTH and not stat.S_ISCHR(mode):
        return Foothold(path, uid, EVERYBODY)
    if mode & stat.S_IWGRP and (others := _others_of_group(path if file is None else file, status, trusted)):
        return Foothold(path, uid, others)
    return None


def _others_of_group(file: int | str, status: os.stat_result, trusted: frozenset[int]) -> str:
    """Tell who else may write by the bits of the group, "" if nobody: it is root's, or a trusted user's own as many systems make
    one for each user. With an access control list these bits say what anybody named there may do at the most."""
    if access_list(file):
        return "those on its access control list"
    gid = status.st_gid
    if gid == ROOT:
        return ""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"the group {gid}"
    if gid < FIRST_GROUP_OF_USERS and not group.gr_mem:
        return ""
    for uid in trusted:
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            continue
        if user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return ""
    return f"the group {group.gr_name}"


def access_list(file: int | str) -> bytes:
    """The access control list of an open file, or of what is at a path, as the kernel has it; empty where there is none."""
    try:
        return os.getxattr(file, "system.posix_acl_access", follow_symlinks=isinstance(file, int))
    except OSError:
        return b""
