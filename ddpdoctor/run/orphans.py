"""What the command has started and left running: while we run, its orphans are ours."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
"""Of linux/prctl.h."""


def adopt() -> None:
    """Become the parent of all orphans of the command, however they have cut themselves off: by a session of their own, by nohup,
    as a daemon. When we end, the system's or container's first process gets them, as without us."""
    import ctypes  # Here: a Python without it may run a command, too.

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """Pids of our own, also of those that have ended and were not asked how."""
    found = ""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += (thread / "children").read_text()
    return frozenset(int(pid) for pid in found.split())


def places(*descriptors: int) -> frozenset[tuple[int, int]]:
    """Device and inode of what these are open on: how other processes' descriptors are known to be the same."""
    found = set()
    for number in descriptors:
        with suppress(OSError):
            status = os.fstat(number)
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)
