"""Processes as they are observed at first, and who started whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.processes import RankPlace
from ddpdoctor.knowledge.launchers import launches, number
from ddpdoctor.probes.proc import Stat, variables
from ddpdoctor.probes.processes import command_lines as commands

GROUP_THREADS = ("pt_gloo", "gloo_", "pt_nccl", "NCCL", "nccl")
"""Beginnings of the names of those threads that a process group starts."""
MARKING_THREADS = (*GROUP_THREADS, "pt_tcpstore", "cuda")
STORE_THREADS = {"pt_tcpstore_uv", "pt_tcpstore"}
"""Threads of one that keeps the store where ranks meet."""

_RANK_SETTINGS = (b"RANK=", b"SLURM_PROCID=")
"""In the names of all variables that give a rank."""
_SOURCES = {
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "MVAPICH": "MV2_COMM_WORLD_RANK",
    "Intel MPI": "PMI_RANK",
    "PMI": "PMI_RANK",
    "Slurm": "SLURM_PROCID",
}


class ObservedProcess:
    """One process as it was read, before anybody tells what it is.

    Attributes:
        marks: names of its threads that tell of a process group, a store or a GPU.
        computes: Python or torch is in it.
        awaits_others: it has torch and a listening socket that its parent has not: what a rank needs to meet others.
        in_group: it has a process group of torch's.
    """

    def __init__(
        self,
        stat: Stat,
        words: tuple[str, ...] = (),
        executable: str | Unknown = "",
        environ: bytes | Unknown = b"",
    ) -> None:
        self.stat = stat
        self.words = words
        self.executable = executable
        self.environ = environ
        self.marks: tuple[str, ...] = ()
        self.computes = self.is_python
        self.awaits_others = False
        self.in_group = False

    @property
    def pid(self) -> int:
        return self.stat.pid

    def age_order(self) -> tuple[int, int]:
        """Sort key that puts the oldest first."""
        return self.stat.start, self.pid

    def note_threads(self, names: Iterable[str]) -> None:
        """Take note of the names of its threads, but for the first."""
        self.marks = tuple(sorted({legible(name) for name in names if name.startswith(MARKING_THREADS)}))
        self.in_group = any(mark.startswith(GROUP_THREADS) for mark in self.marks)

    @cached_property
    def is_python(self) -> bool:
        """Whether it is a Python by its executable, or where that may not be read by its command."""
        if isinstance(self.executable, str) and self.executable:
            return commands.is_interpreter(self.executable)
        return bool(self.words) and commands.is_interpreter(self.words[0])

    @cached_property
    def is_launcher(self) -> bool:
        return commands.is_launcher(self.words)

    @cached_property
    def variables(self) -> Mapping[str, str]:
        return variables(self.environ) if isinstance(self.environ, bytes) else {}

    @property
    def has_rank_settings(self) -> bool:
        """One look at the bytes, for all the processes that have none."""
        environ = self.environ
        return isinstance(environ, bytes) and any(name in environ for name in _RANK_SETTINGS)

    @property
    def is_inquiry(self) -> bool:
        """Whether a ddpdoctor started it on its own account, also one of another node's or job's."""
        return isinstance(self.environ, bytes) and b"DDPDOCTOR_INQUIRY=" in self.environ

    @property
    def is_ddpdoctor(self) -> bool:
        """Whether it is a ddpdoctor, ours or another, or one of its inquiries."""
        return self.is_inquiry or commands.is_ddpdoctor(self.words)

    @cached_property
    def place(self) -> RankPlace | None:
        """Rank by its settings, or where it has none and is in a process group by its arguments."""
        if self.has_rank_settings:
            found = place_by_settings(self.variables, alone=bool(STORE_THREADS & {*self.marks}))
            if found:
                return found
        return place_by_arguments(self.words) if self.in_group else None

    @cached_property
    def further_node(self) -> int:
        """The node rank of one that Lightning has started on a node behind the first; 0 of all others."""
        if not self.has_rank_settings or self.place:
            return 0
        settings = self.variables
        if not {"LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"} <= settings.keys():
            return 0
        if number(settings["LOCAL_RANK"]) is None or number(settings["WORLD_SIZE"]) is None:
            return 0
        return number(settings.get("NODE_RANK", "")) or 0

    @cached_property
    def by_multiprocessing(self) -> bool:
        """Whether a Python started it without giving it settings of its own."""
        return self.stat.forked or commands.is_spawned(self.words)

    @property
    def is_forked_rank(self) -> bool:
        return self.in_group and self.by_multiprocessing


def place_by_settings(settings: Mapping[str, str], *, alone: bool = False) -> RankPlace | None:
    """Tell which rank the settings name: torchrun before MPI before RANK, which is what torch reads, before Slurm.

    alone: it keeps a store for others, so that a LOCAL_RANK without a WORLD_SIZE makes it a rank, too.
    """
    found = [launch for launch in launches(settings) if launch.rank is not None]
    order = ("torchrun", "Open MPI", "MVAPICH", "Intel MPI", "PMI", "settings", "Slurm")
    if found:
        first = msgspec.structs.asdict(min(found, key=lambda launch: order.index(launch.launcher)))
        return RankPlace(source=_SOURCES.get(first.pop("launcher"), "RANK"), **first)
    # Lightning sets no RANK. Of further nodes it can't be told: that takes how many ranks each node has.
    local_rank, node = number(settings.get("LOCAL_RANK", "")), number(settings.get("NODE_RANK", "0"))
    if local_rank is None or node != 0 or not ("WORLD_SIZE" in settings or alone):
        return None
    size = number(settings.get("WORLD_SIZE", ""))
    return RankPlace(rank=local_rank, world_size=size, local_rank=local_rank, node_rank=0, source="LOCAL_RANK")


def place_by_arguments(words: Sequence[str]) -> RankPlace | None:
    """Tell which rank the arguments of a script name that hands them to init_process_group: train.py --rank 0 --world-size 2."""
    found: dict[str, int] = {}
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        count = number(value if equals else following)
        if count is not None and name.startswith("--"):
            found.setdefault(name[2:].replace("-", "_"), count)
    if "rank" not in found:
        return None
    return RankPlace(
        rank=found["rank"], world_size=found.get("world_size"), local_rank=found.get("local_rank"), source="--rank"
    )


class ObservedTree:
    """All processes by their parents."""

    def __init__(self, by_pid: dict[int, ObservedProcess]) -> None:
        self.by_pid = by_pid
        self._children: dict[int, list[ObservedProcess]] = {}
        for process in by_pid.values():
            self._children.setdefault(process.stat.parent, []).append(process)

    def children(self, pid: int) -> list[ObservedProcess]:
        """The oldest first."""
        return sorted(self._children.get(pid, ()), key=ObservedProcess.age_order)

    def ancestors(self, process: ObservedProcess) -> Iterator[ObservedProcess]:
        """The parent first."""
        met = {process.pid}
        parent = self.by_pid.get(process.stat.parent)
        while parent and parent.pid not in met:
            yield parent
            met.add(parent.pid)
            parent = self.by_pid.get(parent.stat.parent)

    def descendants(self, pid: int) -> Iterator[ObservedProcess]:
        """Children, their children, and so on."""
        waiting, met = [pid], {pid}
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child.pid not in met:
                    met.add(child.pid)
                    waiting.append(child.pid)
                    yield child

    def relatives(self, pids: Iterable[int]) -> set[int]:
        """The descendants of all these, and the ancestors of those; each is gone through once, however deep they are."""
        found = {pid for pid in pids if pid in self.by_pid}
        waiting = list(found)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child.pid not in found:
                    found.add(child.pid)
                    waiting.append(child.pid)
        for pid in list(found):
            parent = self.by_pid[pid].stat.parent
            while parent in self.by_pid and parent not in found:
                found.add(parent)
                parent = self.by_pid[parent].stat.parent
        return found
