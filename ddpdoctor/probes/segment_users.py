"""Which segments in /dev/shm some process maps or has open, and how many processes could not be asked."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.unknown import Unknown

SEARCH_SECONDS = 2.0

Inode = tuple[int, int]
"""Device and inode of a file."""

_FORBIDDEN: Final = (errno.EACCES, errno.EPERM)
_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD, among the flags in /proc/<pid>/stat."""
_MAPPING: Final = re.compile(r"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)", re.MULTILINE)


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """used: those of the wanted that somebody has. closed: processes that may not be looked into: any of them may have any."""

    used: frozenset[Inode]
    closed: int = 0


def look_for_users(proc: Path, wanted: Mapping[Inode, str]) -> Use | Unknown:
    """wanted: the names by inode. By inode, since in another mount namespace the path is another.

    Looks on until no process is new: one may have been forked, and its parent have ended, since they were listed.
    """
    until = time.monotonic() + SEARCH_SECONDS
    used: set[Inode] = set()
    closed: set[str] = set()
    seen: set[str] = set()
    while True:
        try:
            new = {name for name in os.listdir(proc) if name.isdecimal()} - seen  # noqa: PTH208 (names are all we need)
        except OSError as error:
            return Unknown(f"/proc: {error.strerror}")
        if not seen and "1" not in new:
            return Unknown("/proc doesn't show all processes (hidepid), and those that it hides may use them")
        if not new:
            return Use(used=frozenset(used), closed=len(closed))
        for pid in new:
            if time.monotonic() > until:
                return Unknown(f"looking through all processes took longer than {SEARCH_SECONDS:.0f} s")
            for task in _tasks(proc / pid):
                try:
                    used |= wanted.keys() & _mapped(task)
                    used |= wanted.keys() & _open(task, frozenset(wanted.values()))
                except OSError as error:
                    # The links of one that is just ending are forbidden, too.
                    if error.errno in _FORBIDDEN and task in _tasks(proc / pid):
                        closed.add(pid)
        seen |= new


def _tasks(process: Path) -> list[Path]:
    """Where its memory and its files are to be seen: nowhere for a thread of the kernel, or for one that has ended; with its other
    threads, once the first one has ended before them."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        state, flags, threads = fields[0], int(fields[6]), int(fields[17])
        if flags & _KERNEL_THREAD:
            return []
        if state not in "ZX":
            return [process]
        return sorted((process / "task").iterdir()) if threads > 1 else []
    except FileNotFoundError:
        return []
    except (OSError, IndexError, ValueError):
        return [process]


def _mapped(task: Path) -> set[Inode]:
    """Raises OSError where it may not be looked into, or has ended."""
    text = (task / "maps").read_text(errors="replace")
    return {(os.makedev(int(major, 16), int(minor, 16)), int(inode)) for major, minor, inode in _MAPPING.findall(text)}


def _open(task: Path, names: frozenset[str]) -> set[Inode]:
    """The files of these names that it has open. Others aren't asked: on a hanging file system that would hang us, too.

    Raises OSError where it may not be looked into, or has ended.
    """
    found: set[Inode] = set()
    for entry in (task / "fd").iterdir():
        try:
            if str(entry.readlink()).removesuffix(" (deleted)").rpartition("/")[2] in names:
                state = entry.stat()
                found.add((state.st_dev, state.st_ino))
        except OSError as error:
            if error.errno in _FORBIDDEN:
                raise
    return found
