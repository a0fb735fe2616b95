"""Who holds what a job needs: a GPU, a segment of shared memory, the port of a store."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.knowledge.launchers import master_port, number
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.processes.description import Describer
from ddpdoctor.probes.processes.open_files import DEVICE, SHARED, Files
from ddpdoctor.probes.processes.process_tree import Family
from ddpdoctor.probes.processes.reading_limits import SPARED, Shares, of_each

STORE_PORTS = (29400, 29500)
"""Where torch's store listens unless told otherwise."""
HANGS = Unknown("it does not answer: the process hangs in the kernel")
SEGMENTS = (f"{SHARED}torch_", f"{SHARED}nccl-")
"""How the paths of torch's and NCCL's segments begin."""


class Holders:
    """What processes have open. files: of those that were looked at so far."""

    def __init__(self, context: Context, describer: Describer, shares: Shares) -> None:
        self._context = context
        self._shares = shares
        self._describer = describer
        self.files: dict[int, Files] = {}
        self._without_maps: set[int] = set()
        self._sockets: frozenset[int] = frozenset()
        self._listed_by_nvml: set[int] = set()
        self._asking = threading.Thread(target=self._ask_nvml, daemon=True)
        self._asking.start()

    def of(self, pid: int) -> Files:
        """All that it has open and mapped."""
        if pid not in self.files or pid in self._without_maps:
            self._without_maps.discard(pid)
            self.files[pid] = self._files(pid, maps=True)
        return self.files[pid]

    def _files(self, pid: int, *, maps: bool) -> Files:
        spared = Files(SPARED, SPARED, SPARED, SPARED)
        return self._shares.look(pid, lambda: self._describer.files(pid, maps=maps), spared)

    def mark_as_hanging(self, pid: int) -> None:
        """It is not to be looked into again."""
        self.files[pid] = Files(HANGS, HANGS, HANGS, HANGS)

    def look_into_the_rest(self, family: Family) -> None:
        """All those that were not looked at yet, where it may be they."""
        segments = any(path.startswith(SEGMENTS) for path in self._paths(SHARED))
        devices = any(DEVICE.match(path) for path in self._paths("/dev/"))
        self._sockets = self._sockets_of_stores(family)
        had = {inode for file in self.files.values() if isinstance(file.sockets, frozenset) for inode in file.sockets}
        if segments or devices or self._sockets - had:
            rest = [pid for pid, one in family.seen.items() if pid not in self.files and not one.stat.kernel_thread]
            found = of_each(rest, lambda pid: self._files(pid, maps=segments))
            self._without_maps = set() if segments else set(rest)
            self.files |= {pid: found.get(pid, Files(HANGS, HANGS, HANGS, HANGS)) for pid in rest}

    def pids(self, seconds: float) -> set[int]:
        """Of those that hold something. NVML is waited for that long: it may hang with the driver."""
        self._asking.join(seconds)
        return {pid for pid, opened in self.files.items() if self._holds(opened)} | self._listed_by_nvml

    def _holds(self, opened: Files) -> bool:
        if isinstance(opened.devices, tuple) and opened.devices:
            return True
        if isinstance(opened.sockets, frozenset) and opened.sockets & self._sockets:
            return True
        shared = opened.shared_memory
        return isinstance(shared, tuple) and any(path.startswith(SEGMENTS) for path in shared)

    def _sockets_of_stores(self, family: Family) -> frozenset[int]:
        """Those that listen where a job's store is, or a new job's would be."""
        ports = {*STORE_PORTS, master_port(self._context.environ)}
        ports |= {
            number(seen_process.variables.get("MASTER_PORT", ""))
            for seen_process in family.seen.values()
            if seen_process.place
        }
        listening = self._describer.ports_of(os.getpid())
        return frozenset(inode for inode, port in listening.items() if port in ports)

    def _ask_nvml(self) -> None:
        gpus = self._context.facts(Gpus)
        for gpu in () if isinstance(gpus, Unknown) else gpus.devices:
            held = () if isinstance(gpu.holders, Unknown) else gpu.holders
            self._listed_by_nvml |= {holder.pid for holder in held}

    def _paths(self, folder: str) -> list[str]:
        with suppress(OSError):
            return [folder + name for name in os.listdir(self._context.path(folder))]  # noqa: PTH208
        return []
