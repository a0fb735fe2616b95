"""Limits that a container, Slurm or systemd put on this process."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Cgroup(Facts, frozen=True, kw_only=True):
    """Bytes and cores; None means no limit. The tightest limit on the way from our cgroup to the root counts."""

    version: Annotated[int, Source("/proc/self/cgroup")]
    """1 or 2; 0: no cgroups."""
    memory_limit: Annotated[Maybe[int | None], Source("memory.max")] = None
    memory_used: Annotated[Maybe[int | None], Source("memory.current")] = None
    memory_reclaimable: Annotated[Maybe[int | None], Source("memory.stat active_file + inactive_file")] = None
    """Page cache, counted in `memory_used`, which the kernel drops before it kills anybody."""
    oom_kills: Annotated[Maybe[int | None], Source("memory.events oom_kill")] = None
    """How often the kernel killed a process of this cgroup (the one with the limit, if there is one) since it was made."""
    cpu_limit: Annotated[Maybe[float | None], Source("cpu.max")] = None
    """Cores' worth of time."""
    cpuset_cores: Annotated[Maybe[int | None], Source("cpuset.cpus.effective")] = None
    pids_limit: Annotated[Maybe[int | None], Source("pids.max")] = None
    """Processes and threads together."""
    pids_used: Annotated[Maybe[int | None], Source("pids.current")] = None
