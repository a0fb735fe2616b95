"""Who could have put, or could replace, what lies at a path: asked before it is run, sourced, written to or believed."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections import deque
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final, NamedTuple

ROOT: Final = 0
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
    return frozenset((ROOT, os.geteuid()))


def foothold_on(
    path: str | os.PathLike[str], trusted: Collection[int] | None = None, *, may_be_missing: bool = False
) -> Foothold | None:
    """Find the first foothold on the way from / to what the path leads to, all links followed; None if there is none.

    Folders that others may write to are safe where they are sticky and what lies in them is a trusted user's.

    Args:
        path: a relative one is looked for in the current folder, whose own way counts, too.
        trusted: user numbers beside root's; by default `trusted_users()`.
        may_be_missing: where nothing is there, find out who could make it.
    Raises:
        OSError: nothing is there, or it may not be looked at.
    """
    trusted = frozenset((ROOT, *trusted)) if trusted is not None else trusted_users()
    left = deque(_parts(os.path.join(os.getcwd(), path)))  # noqa: PTH109, PTH118 (".." must stay, behind a link it leads elsewhere)
    here = "/"
    links = 0
    if found := _foothold_of(here, os.lstat(here), trusted):
        return found
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
            return _foothold_of(folder, os.lstat(folder), trusted, is_sticky_safe=False)
        if found := _foothold_of(here, status, trusted):
            return found
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            target = os.readlink(here)  # noqa: PTH115
            here = "/" if target.startswith("/") else os.path.dirname(here)  # noqa: PTH120
            left.extendleft(reversed(_parts(target)))
    return None


def foothold_of_file(file: int, path: str, trusted: Collection[int] | None = None) -> Foothold | None:
    """As `foothold_on`, of an open file alone, however it was reached. A second hard link is a foothold, too: by it the file
    could have been brought here from elsewhere."""
    trusted = frozenset((ROOT, *trusted)) if trusted is not None else trusted_users()
    status = os.fstat(file)
    found = _foothold_of(path, status, trusted)
    if found is None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return Foothold(path, status.st_uid, "whoever can reach its other hard links")
    return found


def who_misleads(file: int, path: str | os.PathLike[str]) -> Foothold | None:
    """Find out whether somebody else has led root to a file that they may not read, as by a link to a secret of root's; None
    if not. What anybody may read, and what is theirs, is no secret.

    Args:
        file: opened at that path.
    """
    if os.geteuid() != ROOT:
        return None
    status = os.fstat(file)
    if status.st_mode & stat.S_IROTH or not stat.S_ISREG(status.st_mode):
        return None
    try:
        found = foothold_on(path, (ROOT,))
    except OSError as error:  # It was there when it was opened.
        return Foothold(os.fspath(path), ROOT, f"somebody who has changed it just now ({error.strerror})")
    if found is None:
        return None
    is_theirs = status.st_uid != ROOT if found.writers else status.st_uid == found.uid
    return None if is_theirs else found


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if part != "/"]


def _foothold_of(
    path: str, status: os.stat_result, trusted: frozenset[int], *, is_sticky_safe: bool = True
) -> Foothold | None:
    mode, uid = status.st_mode, status.st_uid
    if uid not in trusted:
        return Foothold(path, uid)
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX and is_sticky_safe):
        return None
    if mode & stat.S_IWOTH and not stat.S_ISCHR(mode):
        return Foothold(path, uid, "everybody")
    if mode & stat.S_IWGRP and (others := _others_of_group(path, status, trusted)):
        return Foothold(path, uid, others)
    return None


def _others_of_group(path: str, status: os.stat_result, trusted: frozenset[int]) -> str:
    """Who else may write by the bits of the group, "" if nobody: it is root's, or a trusted user's own as many systems make
    one for each user. With an access control list these bits say what anybody named there may do at the most."""
    if _has_access_list(path):
        return "those on its access control list"
    gid = status.st_gid
    if gid == ROOT:
        return ""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"the group {gid}"
    for uid in trusted:
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            continue
        if user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return ""
    return f"the group {group.gr_name}"


def _has_access_list(path: str) -> bool:
    try:
        os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
    except OSError:
        return False
    return True
