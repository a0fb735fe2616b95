"""Looks at /dev/shm, and at the segments there that no process uses any more."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.knowledge.segment_names import MODE, maker_of
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.proc import user_name
from ddpdoctor.probes.segment_users import keepers, last_used, look_for_users, pids_anywhere, wanted_by
from ddpdoctor.probes.smoke_notes import dead_runs

MAX_SEGMENTS_OF_A_USER = 10_000
"""That are looked at: whoever leaves more hides his own alone."""
SETTLED_SECONDS = 60.0
"""A younger segment may belong to a job that is just starting and has not mapped it yet."""

Stale = tuple[Mapping[str, os.stat_result], int]
"""By name, and how many processes could not be looked into."""


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
    segments, left_out = _segments(folder)
    looked = _stale(context, segments)
    stale, closed = ({}, 0) if isinstance(looked, Unknown) else looked
    listed = tuple(segments_of(context, stale))
    return SharedMemory(
        size=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        writable=os.access(folder, os.W_OK | os.X_OK),
        read_only=bool(state.f_flag & os.ST_RDONLY),
        stale=looked if isinstance(looked, Unknown) else tuple(segment.path for segment in listed),
        stale_size=sum(segment.size for segment in listed),
        segments=listed,
        left_out=left_out,
        closed=closed,
    )


def _stale(context: Context, segments: Mapping[str, os.stat_result]) -> Stale | Unknown:
    """The segments that nobody is seen to use; Unknown where those who may use them can't be seen."""
    if not segments:
        return {}, 0
    namespace = context.link("/proc/self/ns/pid")
    if not namespace:
        return Unknown("/proc/self/ns/pid can't be read")
    if namespace != INITIAL_PID_NAMESPACE:
        return Unknown(f"processes outside of this container may use {plural(len(segments), 'segment')} in /dev/shm")
    me = os.geteuid()
    # Nobody but root may look into the processes of another segment's owner.
    judged = {name: state for name, state in segments.items() if me in (0, state.st_uid)}
    if not judged:
        return Unknown(_others(len(segments)))
    use = look_for_users(
        context.path("/proc"), {(status.st_dev, status.st_ino): name for name, status in judged.items()}
    )
    if isinstance(use, Unknown):
        return use
    stale = {name: state for name, state in judged.items() if (state.st_dev, state.st_ino) not in use.used}
    if not stale and len(judged) < len(segments):
        return Unknown(_others(len(segments) - len(judged)))
    return stale, use.closed if stale else 0


def segments_of(context: Context, stale: Mapping[str, os.stat_result]) -> Iterator[Segment]:
    """Describe each of these, by name."""
    known, pids = (keepers(context), pids_anywhere(context)) if stale else ((), frozenset())
    smokes = {key: name for run in dead_runs(context.environ) for key, name in run.noted.items()} if stale else {}
    now = time.time()
    for name, state in sorted(stale.items()):
        yield Segment(
            path=f"/dev/shm/{name}",
            size=state.st_blocks * 512,
            uid=state.st_uid,
            user=user_name(state.st_uid),
            age=round(max(0.0, now - last_used(state)), 1),
            device=state.st_dev,
            inode=state.st_ino,
            wanted_by=wanted_by(name, state, known, pids),
            by_smoke=smokes.get((state.st_dev, state.st_ino)) == name and state.st_uid == os.geteuid(),
        )


def _others(count: int) -> str:
    return f"other users, whose processes can't be looked into, own {plural(count, 'segment')} in /dev/shm"


def _segments(folder: Path) -> tuple[dict[str, os.stat_result], tuple[str, ...]]:
    """Find what looks in every respect as its makers leave it: whatever else lies there is none of ours. And what was left out of it."""
    found: dict[str, os.stat_result] = {}
    count: Counter[int] = Counter()
    newest = time.time() - SETTLED_SECONDS
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if maker_of(entry.name):
                    state = entry.stat(follow_symlinks=False)
                    made_so = stat.S_ISREG(state.st_mode) and stat.S_IMODE(state.st_mode) == MODE
                    if made_so and state.st_nlink == 1 and last_used(state) < newest:
                        count[state.st_uid] += 1
                        if count[state.st_uid] <= MAX_SEGMENTS_OF_A_USER:
                            found[entry.name] = state
    except OSError:
        pass  # Gone in between, or not ours to list.
    return found, tuple(
        f"{many - MAX_SEGMENTS_OF_A_USER:,} more segments of {user_name(uid)} lie in /dev/shm than are looked at"
        for uid, many in sorted(count.items())
        if many > MAX_SEGMENTS_OF_A_USER
    )
