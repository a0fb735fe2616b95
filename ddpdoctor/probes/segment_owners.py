"""Who may still come for a segment in /dev/shm that nobody has mapped or open: its maker, or one that keeps it for others."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from ddpdoctor.probes.context import Context

_MAKER = re.compile(r"torch_(\d+)_")
_MANAGER = b"torch_shm_manager"
_TRACKER = b"multiprocessing.resource_tracker"
_KEPT_BY = {"torch_": _MANAGER, "psm_": _TRACKER, "sem.mp-": _TRACKER}
"""NCCL's are mapped by their makers for as long as these live."""
_CLOCKS_APART = 5.0
"""Seconds by which a keeper may seem younger than what it keeps."""


class Keeper(msgspec.Struct, frozen=True, kw_only=True):
    """A process that keeps segments for others. started: seconds since the epoch."""

    pid: int
    uid: int
    what: bytes
    started: float


def keepers(context: Context) -> tuple[Keeper, ...]:
    """All that this user can see."""
    found = []
    for entry in os.scandir(context.path("/proc")):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            words = context.path(f"/proc/{entry.name}/cmdline").read_bytes()
            what = next((one for one in (_MANAGER, _TRACKER) if one in words), b"")
            if what:
                status = entry.stat()
                found.append(
                    Keeper(pid=int(entry.name), uid=status.st_uid, what=what, started=_started(context, entry.name))
                )
    return tuple(found)


def wanted_by(name: str, state: os.stat_result, known: tuple[Keeper, ...]) -> str:
    """Who may still come for the segment of that name, in words; "" where nobody may."""
    maker = _MAKER.match(name)
    if maker and Path(f"/proc/{maker[1]}").exists():
        return f"pid {maker[1]}, which made it"
    what = next((keeper for prefix, keeper in _KEPT_BY.items() if name.startswith(prefix)), None)
    for one in known:
        if one.what == what and one.uid == state.st_uid and one.started < state.st_mtime + _CLOCKS_APART:
            return f"{one.what.decode()} (pid {one.pid})"
    return ""


def _started(context: Context, pid: str) -> float:
    """0.0 where it can't be told: as if it had always been there."""
    text = context.read(f"/proc/{pid}/stat")
    fields = text.rpartition(")")[2].split() if isinstance(text, str) else []
    if len(fields) < 20:
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
