"""Looks at /dev/shm, and at the segments there that no process uses any more."""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.segment_owners import keepers, wanted_by
from ddpdoctor.wording import plural

# NCCL; torch's file_system strategy; multiprocessing.shared_memory; multiprocessing's semaphores.
PREFIXES = ("nccl-", "torch_", "psm_", "sem.mp-")
SETTLED = 60.0
"""Seconds: a younger segment may belong to a job that is just starting and has not mapped it yet."""
SEARCH_SECONDS = 2.0

Inode = tuple[int, int]


def probe(context: Context) -> SharedMemory | Unknown:
    if not sys.platform.startswith("linux"):
        return Unknown("only Linux has /dev/shm")
    folder = context.path("/dev/shm")
    try:
        state = os.statvfs(folder)
    except FileNotFoundError:
        return SharedMemory(exists=False, size=0, free=0, writable=False)
    except OSError as error:
        return Unknown(f"/dev/shm: {error.strerror}")
    stale = _stale(context, folder)
    segments = () if isinstance(stale, Unknown) else tuple(segments_of(context, stale))
    return SharedMemory(
        size=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        writable=os.access(folder, os.W_OK | os.X_OK),
        stale=stale if isinstance(stale, Unknown) else tuple(one.path for one in segments),
        stale_size=sum(one.size for one in segments),
        segments=segments,
    )


def _stale(context: Context, folder: Path) -> dict[str, os.stat_result] | Unknown:
    """The segments that nobody uses; Unknown where those who may use them can't be seen."""
    segments = _segments(folder)
    if not segments:
        return {}
    try:
        namespace = str(context.path("/proc/self/ns/pid").readlink())
    except OSError as error:
        return Unknown(f"/proc/self/ns/pid: {error.strerror}")
    if namespace != INITIAL_PID_NAMESPACE:
        return Unknown(f"processes outside of this container may use {plural(len(segments), 'segment')} in /dev/shm")
    me = os.geteuid()
    # Only the owner's processes (and root's) may open a segment, and only our own can be looked into.
    judged = {name: state for name, state in segments.items() if me in (0, state.st_uid)}
    if not judged:
        return Unknown(_others(len(segments)))
    used = _in_use(context, {(state.st_dev, state.st_ino) for state in judged.values()})
    if isinstance(used, Unknown):
        return used
    stale = {name: state for name, state in judged.items() if (state.st_dev, state.st_ino) not in used}
    if not stale and len(judged) < len(segments):
        return Unknown(_others(len(segments) - len(judged)))
    return stale


def segments_of(context: Context, stale: Mapping[str, os.stat_result]) -> Iterator[Segment]:
    """What is known of each of these, by name."""
    known = keepers(context) if stale else ()
    now = time.time()
    for name, state in sorted(stale.items()):
        yield Segment(
            path=f"/dev/shm/{name}",
            size=state.st_blocks * 512,
            uid=state.st_uid,
            user=user_name(state.st_uid),
            age=round(max(0.0, now - state.st_mtime), 1),
            device=state.st_dev,
            inode=state.st_ino,
            wanted_by=wanted_by(name, state, known),
        )


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _others(count: int) -> str:
    return f"other users, whose processes can't be looked into, own {plural(count, 'segment')} in /dev/shm"


def _segments(folder: Path) -> dict[str, os.stat_result]:
    found = {}
    newest = time.time() - SETTLED
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIXES) and entry.is_file(follow_symlinks=False):
                    state = entry.stat(follow_symlinks=False)
                    if state.st_mtime < newest:
                        found[entry.name] = state
    except OSError:
        return found  # Gone in between, or not ours to list.
    return found


def _in_use(context: Context, wanted: set[Inode]) -> set[Inode] | Unknown:
    """Those of the wanted that a process maps or has open. By inode: in another mount namespace the path is another."""
    until = time.monotonic() + SEARCH_SECONDS
    used: set[Inode] = set()
    try:
        processes = [entry for entry in context.path("/proc").iterdir() if entry.name.isdigit()]
    except OSError as error:
        return Unknown(f"/proc: {error.strerror}")
    for process in processes:
        if time.monotonic() > until:
            return Unknown(f"looking through all processes took longer than {SEARCH_SECONDS:.0f} s")
        used |= wanted & _mapped(process)
        used |= wanted & _open(process)
    return used


def _mapped(process: Path) -> set[Inode]:
    try:
        text = (process / "maps").read_text(errors="replace")
    except OSError:
        return set()  # It has ended, or it is another user's, who can't hold a segment of ours.
    return {
        (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        for major, minor, inode in re.findall(r"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)", text, re.MULTILINE)
    }


def _open(process: Path) -> set[Inode]:
    found: set[Inode] = set()
    try:
        for entry in (process / "fd").iterdir():
            # Only what lies in memory: to stat a file on a hanging file system would hang us too.
            if "/dev/shm/" in str(entry.readlink()):
                state = entry.stat()
                found.add((state.st_dev, state.st_ino))
    except OSError:
        return found
    return found
