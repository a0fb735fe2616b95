"""Reads the limits of our cgroup and of those above it, in version 1, version 2 and the mixture of both."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.probes.context import Context

NO_LIMIT_V1 = 1 << 60
"""Version 1 writes "no limit" as the largest number of pages: 0x7ffffffffffff000 bytes."""

Number = Maybe[int | None]


class CgroupMount(msgspec.Struct, frozen=True):
    point: str
    root: str
    """The cgroup that is mounted there: not "/" in a container that has no cgroup namespace."""
    controllers: frozenset[str]
    """Empty for version 2."""


class Levels:
    """The folders of one controller from our own cgroup up to the topmost that we can see."""

    def __init__(self, context: Context, folders: tuple[str, ...]) -> None:
        self._context = context
        self.folders = folders

    def text(self, folder: str, name: str) -> Maybe[str | None]:
        """None where there is no such file: the controller is off there, or it is the root."""
        try:
            return self._context.path(f"{folder}/{name}").read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unknown(f"{folder}/{name}: {error.strerror}")

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

    def tightest(self, name: str, no_limit: int = 1 << 62) -> tuple[Number, str]:
        """The smallest limit on the way up and the folder that sets it (our own if none does)."""
        best: int | None = None
        where = self.folders[0] if self.folders else ""
        for folder in self.folders:
            limit = self.number(folder, name)
            if isinstance(limit, Unknown):
                return limit, folder
            if limit is not None and 0 <= limit < no_limit and (best is None or limit < best):
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
    table = context.read("/proc/self/mountinfo")
    if isinstance(table, Unknown):
        return table
    mounts = list(_mounts(table))
    paths = dict(_paths(ours))

    def levels(controller: str) -> tuple[int, Levels]:
        if controller in paths:
            for mount in mounts:
                if controller in mount.controllers:
                    return 1, Levels(context, _upwards(mount, paths[controller]))
            return 1, Levels(context, ())
        for mount in mounts:
            if not mount.controllers and "" in paths:
                return 2, Levels(context, _upwards(mount, paths[""]))
        return 0, Levels(context, ())

    version, memory = levels("memory")
    facts = _memory_v1(memory) if version == 1 else _memory_v2(memory)
    pids = levels("pids")[1]
    pids_limit, where = pids.tightest("pids.max")
    return Cgroup(
        version=version,
        cpu_limit=_cpu_limit(levels("cpu")[1]),
        cpuset_cores=_cores(levels("cpuset")[1].first("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")),
        pids_limit=pids_limit,
        pids_used=pids.number(where, "pids.current") if where else None,
        **facts,
    )


def _memory_v2(memory: Levels) -> dict[str, Number]:
    limit, where = memory.tightest("memory.max")
    return {
        "memory_limit": limit,
        "memory_used": memory.number(where, "memory.current"),
        "memory_reclaimable": memory.counter(where, "memory.stat", "active_file", "inactive_file"),
        "oom_kills": memory.counter(where, "memory.events", "oom_kill"),
    }


def _memory_v1(memory: Levels) -> dict[str, Number]:
    limit, where = memory.tightest("memory.limit_in_bytes", NO_LIMIT_V1)
    return {
        "memory_limit": limit,
        "memory_used": memory.number(where, "memory.usage_in_bytes"),
        "memory_reclaimable": memory.counter(where, "memory.stat", "total_active_file", "total_inactive_file"),
        # The kernel counts the kills there since 4.13.
        "oom_kills": memory.counter(where, "memory.oom_control", "oom_kill"),
    }


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


def _mounts(text: str) -> Iterator[CgroupMount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or len(rest) < 3:
            continue
        if rest[0] == "cgroup2":
            yield CgroupMount(fields[4], fields[3], frozenset())
        elif rest[0] == "cgroup":
            yield CgroupMount(fields[4], fields[3], frozenset(rest[2].split(",")))


def _upwards(mount: CgroupMount, path: str) -> tuple[str, ...]:
    """The folders from that cgroup up to the mount. In a namespace of its own, a container's is the mount itself."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(root + "/"):
        return (mount.point,)
    parts = [part for part in path[len(root) :].split("/") if part]
    if ".." in parts:
        return (mount.point,)
    return tuple("/".join([mount.point, *parts[:count]]) for count in range(len(parts), -1, -1))
