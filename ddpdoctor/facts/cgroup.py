"""Limits that a container, Slurm or systemd put on this process."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.facts.base import Facts, Maybe, Source


class Cgroup(Facts, frozen=True, kw_only=True):
    """Bytes and cores; None means no limit. The tightest limit on the way from our cgroup to the root counts."""

    version: Annotated[int, Source("/proc/self/cgroup")]
    """1 or 2; 0: no cgroups."""
    memory_limit: Annotated[Maybe[int | None], Source("memory.max")] = None
    memory_used: Annotated[Maybe[int | None], Source("memory.current")] = None
    oom_kills: Annotated[Maybe[int | None], Source("memory.events oom_kill")] = None
    """How often the kernel killed a process of this cgroup since it was made."""
    cpu_limit: Annotated[Maybe[float | None], Source("cpu.max")] = None
    """Cores' worth of time."""
    cpuset_cores: Annotated[Maybe[int | None], Source("cpuset.cpus.effective")] = None
    pids_limit: Annotated[Maybe[int | None], Source("pids.max")] = None
