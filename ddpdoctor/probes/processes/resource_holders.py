"""Finds who holds what a job needs: a GPU, a segment of shared memory, the port of a store."""

from __future__ import annotations

import os
import threading

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.knowledge.launchers import master_port, number
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.description import Describer
from ddpdoctor.probes.processes.open_files import DEVICE, SHARED_MEMORY, OpenFiles, read_open_files
from ddpdoctor.probes.processes.process_tree import ObservedTree
from ddpdoctor.probes.processes.reading_limits import OVER_LIMIT, UserLimits, read_each

STORE_PORTS = (29400, 29500)
"""Where torch's store listens unless told otherwise."""
HANGS = Unknown("it does not answer: the process hangs in the kernel")
SEGMENTS = (f"{SHARED_MEMORY}torch_", f"{SHARED_MEMORY}nccl-")
"""Beginnings of the paths of torch's and NCCL's segments."""


class ResourceHolders:
    """Open files of processes. files: of those that were looked at so far."""

    def __init__(self, context: Context, proc: Proc, describer: Describer, limits: UserLimits) -> None:
        self._context = context
        self._proc = proc
        self._limits = limits
        self._describer = describer
        self.files: dict[int, OpenFiles] = {}
        self._without_maps: set[int] = set()
        self._store_sockets: frozenset[int] = frozenset()
        self._listed_by_nvml: set[int] = set()
        self._asking_nvml = threading.Thread(target=self._ask_nvml, daemon=True)
        self._asking_nvml.start()

    def files_of(self, pid: int) -> OpenFiles:
        """All that it has open and mapped."""
        if pid not in self.files or pid in self._without_maps:
            self._without_maps.discard(pid)
            self.files[pid] = self._read(pid, maps=True)
        return self.files[pid]

    def _read(self, pid: int, *, maps: bool) -> OpenFiles:
        unread = OpenFiles.unknown(OVER_LIMIT)
        return self._limits.read(pid, lambda: read_open_files(self._proc, pid, maps=maps), unread)

    def mark_as_hanging(self, pid: int) -> None:
        """Note that it hangs, and is not to be looked into again."""
        self.files[pid] = OpenFiles.unknown(HANGS)

    def look_into_the_rest(self, tree: ObservedTree) -> None:
        """Look at all those that were not looked at yet, where one of them may hold something."""
        names = self._context.names
        segments = any(f"{SHARED_MEMORY}{name}".startswith(SEGMENTS) for name in names(SHARED_MEMORY))
        devices = any(DEVICE.match(f"/dev/{name}") for name in names("/dev"))
        self._store_sockets = self._sockets_of_stores(tree)
        known = {inode for file in self.files.values() if isinstance(file.sockets, frozenset) for inode in file.sockets}
        if segments or devices or self._store_sockets - known:
            rest = [
                pid for pid, process in tree.by_pid.items() if pid not in self.files and not process.stat.kernel_thread
            ]
            found = read_each(rest, lambda pid: self._read(pid, maps=segments))
            self._without_maps = set() if segments else set(rest)
            self.files |= {pid: found.get(pid, OpenFiles.unknown(HANGS)) for pid in rest}

    def pids(self, nvml_seconds: float) -> set[int]:
        """The processes that hold something. NVML is waited for only so long: it may hang with the driver."""
        self._asking_nvml.join(nvml_seconds)
        return {pid for pid, opened in self.files.items() if self._holds(opened)} | self._listed_by_nvml

    def _holds(self, opened: OpenFiles) -> bool:
        if isinstance(opened.devices, tuple) and opened.devices:
            return True
        if isinstance(opened.sockets, frozenset) and opened.sockets & self._store_sockets:
            return True
        shared = opened.shared_memory
        return isinstance(shared, tuple) and any(path.startswith(SEGMENTS) for path in shared)

    def _sockets_of_stores(self, tree: ObservedTree) -> frozenset[int]:
        """Those that listen where a job's store is, or a new job's would be."""
        ports = {*STORE_PORTS, master_port(self._context.environ)}
        ports |= {number(process.variables.get("MASTER_PORT", "")) for process in tree.by_pid.values() if process.place}
        listening = self._describer.ports_of(os.getpid())
        return frozenset(inode for inode, port in listening.items() if port in ports)

    def _ask_nvml(self) -> None:
        gpus = self._context.facts(Gpus)
        for gpu in () if isinstance(gpus, Unknown) else gpus.devices:
            holders = () if isinstance(gpu.holders, Unknown) else gpu.holders
            self._listed_by_nvml |= {holder.pid for holder in holders}
