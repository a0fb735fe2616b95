"""Who may still come for a segment in /dev/shm that nobody has mapped or open: its maker, or one that keeps it for others."""

from __future__ import annotations

import os
import time
from collections.abc import Set
from contextlib import suppress

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.knowledge.segment_names import Maker, maker_of, maker_pid
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import MAX_COMMAND, Proc

_MANAGER = b"torch_shm_manager"
_TRACKER = b"multiprocessing.resource_tracker"
_KEPT_BY = {Maker.TORCH: _MANAGER, Maker.MEMORY: _TRACKER, Maker.SEMAPHORE: _TRACKER}
"""NCCL's are mapped by their makers for as long as these live."""
_CLOCKS_APART = 5.0
"""Seconds by which a keeper may seem younger than what it keeps."""


class SegmentKeeper(msgspec.Struct, frozen=True, kw_only=True):
    """A process that keeps segments for others. started: seconds since the epoch."""

    pid: int
    uid: int
    what: bytes
    started: float


def keepers(context: Context) -> tuple[SegmentKeeper, ...]:
    """All that this user can see."""
    found = []
    proc = Proc(os.fspath(context.path("/proc")))
    for entry in os.scandir(context.path("/proc")):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            words = proc.read(f"{entry.name}/cmdline", MAX_COMMAND)
            if isinstance(words, Unknown):
                continue
            what = next((one for one in (_MANAGER, _TRACKER) if one in words), b"")
            if what:
                status = entry.stat()
                found.append(
                    SegmentKeeper(
                        pid=int(entry.name), uid=status.st_uid, what=what, started=_started(context, entry.name)
                    )
                )
    return tuple(found)


def pids_anywhere(context: Context) -> frozenset[int]:
    """Of all processes, with those that they have in containers: a container that shares /dev/shm names its segments by these."""
    found = set()
    for name in os.listdir(context.path("/proc")):  # noqa: PTH208 (names are all we need)
        if name.isdecimal():
            found.add(int(name))
            status = context.read(f"/proc/{name}/status")
            if isinstance(status, str):
                line = next((one for one in status.splitlines() if one.startswith("NSpid:")), "")
                found |= {int(one) for one in line.split()[1:]}
    return frozenset(found)


def wanted_by(name: str, state: os.stat_result, known: tuple[SegmentKeeper, ...], pids: Set[int]) -> str:
    """Who may still come for the segment of that name, in words; "" where nobody may. pids: of all that live."""
    maker = maker_pid(name)
    if maker in pids:
        return f"pid {maker}, which made it"
    kind = maker_of(name)
    what = _KEPT_BY.get(kind) if kind else None
    for segment_keeper in known:
        if (
            segment_keeper.what == what
            and segment_keeper.uid == state.st_uid
            and segment_keeper.started < last_used(state) + _CLOCKS_APART
        ):
            return f"{segment_keeper.what.decode()} (pid {segment_keeper.pid})"
    return ""


def last_used(state: os.stat_result) -> float:
    """Seconds since the epoch. Of the three the one that `cp -p`, rsync and touch can't set back counts, too."""
    return max(state.st_mtime, state.st_ctime, state.st_atime)


def _started(context: Context, pid: str) -> float:
    """0.0 where it can't be told: as if it had always been there."""
    text = context.read(f"/proc/{pid}/stat")
    fields = text.rpartition(")")[2].split() if isinstance(text, str) else []
    if len(fields) < 20:
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
