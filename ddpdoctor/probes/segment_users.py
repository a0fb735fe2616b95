"""Finds who uses a segment in /dev/shm: processes that map it or have it open; and who may still come for one that nobody has mapped or open:
its maker, or one that keeps it for others."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import ENDED_STATES
from ddpdoctor.knowledge.segment_names import Maker, maker_of, maker_pid
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import KERNEL_THREAD, MAX_COMMAND, Proc

SEARCH_SECONDS = 2.0

Inode = tuple[int, int]
"""Device and inode of a file."""

_FORBIDDEN: Final = (errno.EACCES, errno.EPERM)
_MAPPING: Final = compile_lazily(r"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)", re.MULTILINE)

_MANAGER = b"torch_shm_manager"
_TRACKER = b"multiprocessing.resource_tracker"
_KEPT_BY = {Maker.TORCH: _MANAGER, Maker.MEMORY: _TRACKER, Maker.SEMAPHORE: _TRACKER}
"""NCCL's are mapped by their makers for as long as these live."""
_CLOCKS_APART = 5.0
"""Seconds by which a keeper may seem younger than what it keeps."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Use of segments. used: those of the wanted that somebody has. closed: processes that may not be looked into: any of them may have any."""

    used: frozenset[Inode]
    closed: int = 0


def look_for_users(proc: Path, wanted: Mapping[Inode, str]) -> Use | Unknown:
    """Look through all processes for users of the segments.

    It looks on until no process is new: one may have been forked, and its parent have ended, since they were listed. wanted: names by
    inode, since in another mount namespace the path is another.
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
    """Folders where its memory and its files are to be seen: nowhere for a thread of the kernel, or for one that has ended; with its other
    threads, once the first one has ended before them."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        state, flags, threads = fields[0], int(fields[6]), int(fields[17])
        if flags & KERNEL_THREAD:
            return []
        if state not in ENDED_STATES:
            return [process]
        return sorted((process / "task").iterdir()) if threads > 1 else []
    except FileNotFoundError:
        return []
    except (OSError, IndexError, ValueError):
        return [process]


def _mapped(task: Path) -> set[Inode]:
    """Inodes of what it has mapped. `OSError` where it may not be looked into, or has ended."""
    text = (task / "maps").read_text(errors="replace")
    return {(os.makedev(int(major, 16), int(minor, 16)), int(inode)) for major, minor, inode in _MAPPING.findall(text)}


def _open(task: Path, names: frozenset[str]) -> set[Inode]:
    """Find the files of these names that it has open. Others aren't asked: on a hanging file system that would hang us, too.

    Raises:
        OSError: it may not be looked into, or has ended.
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


class SegmentKeeper(msgspec.Struct, frozen=True, kw_only=True):
    """A process that keeps segments for others. started: seconds since the epoch."""

    pid: int
    uid: int
    what: bytes
    started: float


def keepers(context: Context) -> tuple[SegmentKeeper, ...]:
    """All that this user can see."""
    found = []
    proc = Proc(context.path("/proc"))
    for pid in proc.pids():
        words = proc.read(f"{pid}/cmdline", MAX_COMMAND)
        what = next((program for program in (_MANAGER, _TRACKER) if isinstance(words, bytes) and program in words), b"")
        if what and (uid := proc.owner(pid)) >= 0:
            stat = proc.stat(pid)
            # Where its start can't be told, as if it had always been there.
            started = 0.0 if isinstance(stat, Unknown) else time.time() - stat.age
            found.append(SegmentKeeper(pid=pid, uid=uid, what=what, started=started))
    return tuple(found)


def pids_anywhere(context: Context) -> frozenset[int]:
    """List the pids of all processes, with those that they have in containers: a container that shares /dev/shm names its segments by these."""
    proc = Proc(context.path("/proc"))
    inside = {pid: proc.status(pid).get("NSpid", "").split() for pid in proc.pids()}
    return frozenset({*inside, *(int(word) for words in inside.values() for word in words)})


def wanted_by(name: str, state: os.stat_result, known: tuple[SegmentKeeper, ...], pids: Set[int]) -> str:
    """Say who may still come for the segment of that name; "" where nobody may. pids: of all that live."""
    maker = maker_pid(name)
    if maker in pids:
        return f"pid {maker}, which made it"
    kind = maker_of(name)
    what = _KEPT_BY.get(kind) if kind else None
    oldest_use = last_used(state) + _CLOCKS_APART
    keepers_of_it = (keeper for keeper in known if keeper.what == what and keeper.uid == state.st_uid)
    keeper = next((keeper for keeper in keepers_of_it if keeper.started < oldest_use), None)
    return f"{keeper.what.decode()} (pid {keeper.pid})" if keeper else ""


def last_used(state: os.stat_result) -> float:
    """Seconds since the epoch. Of the three the one that `cp -p`, rsync and touch can't set back counts, too."""
    return max(state.st_mtime, state.st_ctime, state.st_atime)
