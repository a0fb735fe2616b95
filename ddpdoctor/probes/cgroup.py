"""Reads the limits of our cgroup and of those above it, in version 1, version 2 and the mixture of both."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.mounts import Mount, read_mounts

NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as the largest number of pages: 0x7ffffffffffff000 bytes."""

Number = Maybe[int | None]

_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "memory.oom_control"),
    2: ("memory.max", "memory.current", "", "memory.events"),
}
"""Limit, use, what the names in memory.stat begin with, and where the kernel counts the kills (in version 1 since 4.13)."""


class Levels:
    """The folders of one controller from our own cgroup up to the topmost that we can see."""

    def __init__(self, context: Context, folders: tuple[str, ...]) -> None:
        self._context = context
        self.folders = folders

    def text(self, folder: str, name: str) -> Maybe[str | None]:
        """None where there is no such file: the controller is off there, or it is the root."""
        found = self._context.read_if_there(f"{folder}/{name}")
        return found.strip() if isinstance(found, str) else found

    def number(self, folder: str, name: str) -> Number:
        """The number in a file; None where there is none, or "max"."""
        text = self.text(folder, name)
        if text is None or isinstance(text, Unknown):
            return text
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def counter(self, folder: str, name: str, *keys: str) -> Number:
        """The sum of the named lines ("oom_kill 3") of a file."""
        text = self.text(folder, name)
        if text is None or isinstance(text, Unknown):
            return text
        found = [int(value) for key in keys for value in re.findall(rf"^{key} (\d+)$", text, re.MULTILINE)]
        return sum(found) if found else None

    def tightest(self, name: str) -> tuple[Number, str]:
        """The smallest limit on the way up and the folder that sets it (our own if none does)."""
        best: int | None = None
        where = self.folders[0] if self.folders else ""
        for folder in self.folders:
            limit = self.number(folder, name)
            if isinstance(limit, Unknown):
                return limit, folder
            if limit is not None and 0 <= limit < NO_LIMIT and (best is None or limit < best):
                best, where = limit, folder
        return best, where

    def first(self, *names: str) -> Maybe[str | None]:
        """The first text that isn't empty, from our own cgroup upwards."""
        for folder in self.folders:
            for name in names:
                if text := self.text(folder, name):
                    return text
        return None


def probe(context: Context) -> Cgroup | Unknown:
    ours = context.read("/proc/self/cgroup")
    if isinstance(ours, Unknown):
        return ours
    mounts = read_mounts(context)
    if isinstance(mounts, Unknown):
        return mounts
    paths = dict(_paths(ours))

    def levels(controller: str) -> tuple[int, Levels]:
        if controller in paths:
            found = [mount for mount in mounts if mount.kind == "cgroup" and controller in mount.options.split(",")]
            return 1, Levels(context, _upwards(found[0], paths[controller]) if found else ())
        found = [mount for mount in mounts if mount.kind == "cgroup2"] if "" in paths else []
        return (2, Levels(context, _upwards(found[0], paths[""]))) if found else (0, Levels(context, ()))

    version, memory = levels("memory")
    limit_file, use_file, prefix, kills_file = _MEMORY_FILES[version or 2]
    memory_limit, memory_level = memory.tightest(limit_file)
    pids = levels("pids")[1]
    pids_limit, pids_level = pids.tightest("pids.max")
    return Cgroup(
        version=version,
        memory_limit=memory_limit,
        memory_used=memory.number(memory_level, use_file),
        memory_reclaimable=memory.counter(
            memory_level, "memory.stat", f"{prefix}active_file", f"{prefix}inactive_file"
        ),
        oom_kills=memory.counter(memory_level, kills_file, "oom_kill"),
        cpu_limit=_cpu_limit(levels("cpu")[1]),
        cpuset_cores=_cores(levels("cpuset")[1].first("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")),
        pids_limit=pids_limit,
        pids_used=pids.number(pids_level, "pids.current") if pids_level else None,
    )


def _cpu_limit(cpu: Levels) -> Maybe[float | None]:
    """Cores' worth of time: quota by period, the smallest on the way up."""
    best: float | None = None
    for folder in cpu.folders:
        text = cpu.text(folder, "cpu.max")
        if isinstance(text, Unknown):
            return text
        if text is None:
            quota = cpu.number(folder, "cpu.cfs_quota_us")
            period = cpu.number(folder, "cpu.cfs_period_us")
            if isinstance(quota, Unknown):
                return quota
            text = f"{quota} {period}"
        found = re.fullmatch(r"(\d+) ([1-9]\d*)", text)  # "max 100000", and -1 in version 1, mean no limit.
        if found:
            cores = int(found[1]) / int(found[2])
            best = cores if best is None else min(best, cores)
    return best


def _cores(text: Maybe[str | None]) -> Number:
    """Count the cores that "0-3,8" names."""
    if text is None or isinstance(text, Unknown):
        return text
    count = 0
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        count += int(last or first) - int(first) + 1
    return count


def _paths(text: str) -> Iterator[tuple[str, str]]:
    """Controller ("" for version 2) and our cgroup's path in its hierarchy."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                yield controller, parts[2]


def _upwards(mount: Mount, path: str) -> tuple[str, ...]:
    """The folders from that cgroup up to the mount. In a namespace of its own, a container's is the mount itself."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(root + "/"):
        return (mount.point,)
    parts = [part for part in path[len(root) :].split("/") if part]
    if ".." in parts:
        return (mount.point,)
    return tuple("/".join([mount.point, *parts[:count]]) for count in range(len(parts), -1, -1))
