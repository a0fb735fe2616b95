"""What the kernel counts of a process: read every few seconds, in a fraction of a millisecond, without touching the process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import ProcessIdentity
from ddpdoctor.probes.proc import PAGE, TICKS, Proc


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment. Those of the main thread tell of steps; others may have a heartbeat of their own."""

    seconds: float
    """On the monotonic clock."""
    state: str
    """The kernel's letter."""
    runs: int
    """How often the main thread was let onto a processor since its start: as long as that is the same, it has done nothing."""
    main_cpu: float
    """Seconds of the main thread."""
    main_bytes: int
    """Read and written by the main thread, in whatever way but over sockets."""
    cpu: float
    """Seconds of all its threads."""
    resident: int
    """Bytes."""
    major_faults: int


def count(process: ProcessIdentity, proc: Proc) -> Counters | None:
    """Read the counters of a process; None where it has ended, even if another has its pid now, or where this kernel doesn't count."""
    stat = proc.stat(process.pid)
    if isinstance(stat, Unknown) or stat.start != process.start or stat.ended:
        return None
    pid = process.pid
    main = proc.read(f"{pid}/task/{pid}/schedstat", 128)
    fields = main.split() if isinstance(main, bytes) else []
    transferred = proc.transferred(pid, pid)
    return Counters(
        seconds=time.monotonic(),
        state=stat.state,
        runs=int(fields[2]) if len(fields) == 3 else _switches(pid, proc),
        main_cpu=int(fields[0]) / 1e9 if len(fields) == 3 else stat.cpu / TICKS,
        main_bytes=0 if isinstance(transferred, Unknown) else transferred,
        cpu=stat.cpu / TICKS,
        resident=stat.resident * PAGE,
        major_faults=stat.major_faults,
    )


def _switches(pid: int, proc: Proc) -> int:
    """Kernels that keep no statistics of the scheduler count these all the same."""
    status = proc.status(pid)
    names = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    return sum(int(text) for name in names if (text := status.get(name, "")).isdecimal())


class Helpers(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has started, and what that has started, but for DataLoader workers: compilers, uploads, loggers."""

    pids: frozenset[int] = frozenset()
    cpu: float = 0.0
    """Seconds of all of them."""
    transferred: int = 0
    """Bytes."""


def count_helpers(ranks: Iterable[int], apart: frozenset[int], proc: Proc) -> Mapping[int, Helpers]:
    """Count what the processes below each rank have used. apart: pids of those that are judged by themselves."""
    children: dict[int, list[int]] = {}
    cpu: dict[int, float] = {}
    try:
        pids = proc.pids()
    except OSError:
        return {}
    for pid in pids:
        stat = proc.stat(pid)
        if not isinstance(stat, Unknown) and not stat.ended:
            children.setdefault(stat.parent, []).append(pid)
            cpu[pid] = stat.cpu / TICKS
    found = {}
    for rank in ranks:
        below: list[int] = []
        waiting = list(children.get(rank, ()))
        while waiting:
            pid = waiting.pop()
            if pid not in apart:
                below.append(pid)
                waiting += children.get(pid, ())
        amounts = (proc.transferred(pid) for pid in below)
        transferred = sum(amount for amount in amounts if not isinstance(amount, Unknown))
        found[rank] = Helpers(pids=frozenset(below), cpu=sum(cpu[pid] for pid in below), transferred=transferred)
    return found
