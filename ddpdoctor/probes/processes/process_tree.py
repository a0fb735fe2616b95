"""Processes as they are seen at first, by their parents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.processes import RankPlace
from ddpdoctor.knowledge.launchers import Launch, launches, number
from ddpdoctor.probes.proc import Stat, variables
from ddpdoctor.probes.processes import command_lines as commands

GROUP_MARKS = ("pt_gloo", "gloo_", "pt_nccl", "NCCL", "nccl")
"""How the names of those threads begin that a process group starts."""
OTHER_MARKS = ("pt_tcpstore", "cuda")
STORE_MARKS = {"pt_tcpstore_uv", "pt_tcpstore"}
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


class SeenProcess:
    """What is known of one process before anybody says what it is.

    words: its command line, () where that can't be read. environ: as of its exec. marks: names of threads. computes: Python
    or torch is in it. in_group: it has a process group of torch's. meets: it has torch and a listening socket that its parent has not: what a rank needs to meet others.
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
        self.computes = self.python
        self.meets = False
        self.in_group = False

    def named(self, threads: Iterable[str]) -> None:
        """Takes note of the names of its threads, but for the first."""
        self.marks = tuple(sorted({legible(name) for name in threads if name.startswith(GROUP_MARKS + OTHER_MARKS)}))
        self.in_group = any(mark.startswith(GROUP_MARKS) for mark in self.marks)

    @cached_property
    def python(self) -> bool:
        """By its executable, or where that may not be read by its command."""
        if isinstance(self.executable, str) and self.executable:
            return commands.is_interpreter(self.executable)
        return bool(self.words) and commands.is_interpreter(self.words[0])

    @cached_property
    def launcher(self) -> bool:
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

    @cached_property
    def place(self) -> RankPlace | None:
        """By its settings, or where it has none and is in a process group by its arguments."""
        if self.has_rank_settings and (
            told := place_by_settings(self.variables, alone=bool(STORE_MARKS & {*self.marks}))
        ):
            return told
        return place_by_arguments(self.words) if self.in_group else None

    @cached_property
    def further_node(self) -> int:
        """The node rank of one that Lightning has started on a node behind the first; 0 of all others."""
        if (
            not self.has_rank_settings
            or self.place
            or not {"LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"} <= self.variables.keys()
        ):
            return 0
        if number(self.variables["LOCAL_RANK"]) is None or number(self.variables["WORLD_SIZE"]) is None:
            return 0
        return number(self.variables.get("NODE_RANK", "")) or 0

    @cached_property
    def by_multiprocessing(self) -> bool:
        """A Python started it without giving it settings of its own."""
        return self.stat.forked or commands.is_spawned(self.words)

    @property
    def forked_rank(self) -> bool:
        return self.in_group and self.by_multiprocessing


def place_by_settings(settings: Mapping[str, str], *, alone: bool = False) -> RankPlace | None:
    """Who the settings say that a process is: torchrun before MPI before RANK, which is what torch reads, before Slurm.

    Args:
        alone: it keeps a store for others, so that a LOCAL_RANK without a WORLD_SIZE makes it a rank, too.
    """
    told = [launch for launch in launches(settings) if launch.rank is not None]
    order = ("torchrun", "Open MPI", "MVAPICH", "Intel MPI", "PMI", "settings", "Slurm")
    if told:
        return _place(min(told, key=lambda one: order.index(one.launcher)))
    # Lightning sets no RANK. Of further nodes it can't be told: that takes how many ranks each node has.
    local, node = number(settings.get("LOCAL_RANK", "")), number(settings.get("NODE_RANK", "0"))
    if local is None or node != 0 or not ("WORLD_SIZE" in settings or alone):
        return None
    size = number(settings.get("WORLD_SIZE", ""))
    return RankPlace(rank=local, world_size=size, local_rank=local, node_rank=0, source="LOCAL_RANK")


def place_by_arguments(words: Sequence[str]) -> RankPlace | None:
    """For those who hand the rank to init_process_group themselves: train.py --rank 0 --world-size 2."""
    found: dict[str, int] = {}
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        told = number(value if equals else following)
        if told is not None and name.startswith("--"):
            found.setdefault(name[2:].replace("-", "_"), told)
    if "rank" not in found:
        return None
    return RankPlace(
        rank=found["rank"], world_size=found.get("world_size"), local_rank=found.get("local_rank"), source="--rank"
    )


def _place(launch: Launch) -> RankPlace:
    return RankPlace(
        rank=launch.rank or 0,
        world_size=launch.world_size,
        local_rank=launch.local_rank,
        local_world_size=launch.local_world_size,
        node_rank=launch.node_rank,
        source=_SOURCES.get(launch.launcher, "RANK"),
    )


class Family:
    """All processes by their parents."""

    def __init__(self, seen: dict[int, SeenProcess]) -> None:
        self.seen = seen
        self._children: dict[int, list[SeenProcess]] = {}
        for seen_process in seen.values():
            self._children.setdefault(seen_process.stat.parent, []).append(seen_process)

    def children(self, pid: int) -> list[SeenProcess]:
        """The oldest first."""
        return sorted(self._children.get(pid, ()), key=lambda one: (one.stat.start, one.stat.pid))

    def ancestors(self, one: SeenProcess) -> Iterator[SeenProcess]:
        """The parent first."""
        met = {one.stat.pid}
        parent = self.seen.get(one.stat.parent)
        while parent and parent.stat.pid not in met:
            yield parent
            met.add(parent.stat.pid)
            parent = self.seen.get(parent.stat.parent)

    def relatives(self, pids: Iterable[int]) -> set[int]:
        """The descendants of all these, and the ancestors of those; each is gone through once, however deep they are."""
        found = {pid for pid in pids if pid in self.seen}
        waiting = list(found)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child.stat.pid not in found:
                    found.add(child.stat.pid)
                    waiting.append(child.stat.pid)
        for pid in list(found):
            parent = self.seen[pid].stat.parent
            while parent in self.seen and parent not in found:
                found.add(parent)
                parent = self.seen[parent].stat.parent
        return found

    def descendants(self, pid: int) -> Iterator[SeenProcess]:
        left, met = [pid], {pid}
        while left:
            for child in self._children.get(left.pop(), ()):
                if child.stat.pid not in met:
                    met.add(child.stat.pid)
                    left.append(child.stat.pid)
                    yield child
