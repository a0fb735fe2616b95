"""Whom a host's kernel has killed for want of memory, as far as a run or its log may speak of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.kernel_log import KernelLine
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.match.global_ranks import has_year, year_shift

STAMP_SECONDS: Final = 2.0
"""By which the kernel's time stamps may be off."""
SAME_TIME_SECONDS: Final = 60.0
"""Seconds between a kill and the words on it: launchers look ten times a second to twice a minute."""
SIGKILL, SHELLS_SIGKILL = -9, 137
_KILLS: Final = re.compile("out of memory|oom-kill", re.IGNORECASE)
_PID: Final = re.compile(r"\b[Kk]ill(?:ed)? process (\d+)|\bpid=(\d+)")


def of_this_run(host: Snapshot, seconds: float, killed: int) -> Snapshot:
    """Leave out kills of earlier runs from a host's facts. What the kernel says of hardware counts on. seconds: how
    long the run took. killed: how many the kernel had counted before."""
    return _with_kills(host, lambda line: line.age <= seconds + STAMP_SECONDS, killed)


def of_this_log(
    host: Snapshot, log: Log, seen: Iterable[SignMatch], *, ahead: float = 0.0, watched: bool = False
) -> Snapshot:
    """Keep of a host's facts only those kills that these words may mean: of the same process, where both tell which;
    else at about that time. ahead: seconds of the local clock before UTC, since most logs don't say their zone.
    watched: the host's facts are already `of_this_run`, and so all in time."""
    ends = [process_exit for process_exit in log.exited if process_exit.exit_code in (SIGKILL, SHELLS_SIGKILL)]
    seen = list(seen)
    pids = {match.words["pid"] for match in seen if match.words.get("pid")}
    # A shell that says 137 of itself speaks of a child.
    pids |= {str(end.pid) for end in ends if end.pid is not None and end.exit_code == SIGKILL}
    times = [match.line.time for match in seen] + [end.time for end in ends] + [end.line.time for end in ends]
    taken = _moment(host.taken_at)

    def fits(line: KernelLine) -> bool:
        pid = _PID.search(line.text)
        if pid and pids:
            return (pid[1] or pid[2]) in pids
        if watched or taken is None or line.age < 0:
            return watched
        said = [time if has_year(time) else time + year_shift(taken) for time in times if time is not None]
        killed = taken - line.age
        return any(abs(time - zone - killed) <= SAME_TIME_SECONDS for time in said for zone in (0.0, ahead))

    return _with_kills(host, fits, 0 if watched else None)


def _with_kills(host: Snapshot, fits: Callable[[KernelLine], bool], counted: int | None) -> Snapshot:
    """Keep the kills that fit. counted: how many of those that were only counted don't fit; None for all."""
    kernel, cgroup = host.kernel_log, host.cgroup
    if not isinstance(kernel, Unknown):
        kept = tuple(line for line in kernel.lines if not _KILLS.search(line.text) or fits(line))
        kernel = msgspec.structs.replace(kernel, lines=kept)
    if not isinstance(cgroup, Unknown) and isinstance(cgroup.oom_kills, int):
        cgroup = msgspec.structs.replace(cgroup, oom_kills=0 if counted is None else max(0, cgroup.oom_kills - counted))
    return msgspec.structs.replace(host, kernel_log=kernel, cgroup=cgroup)


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
