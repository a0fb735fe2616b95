"""What each process is to a training job, and which rank: judged from commands, settings, parents and names of threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.processes import Place, Role
from ddpdoctor.knowledge.launchers import Launch, launches
from ddpdoctor.probes import process_commands as commands
from ddpdoctor.probes.proc import Stat, variables

GROUP_MARKS = ("pt_gloo", "gloo_", "pt_nccl", "NCCL", "nccl")
"""How the names of those threads begin that a process group starts."""
OTHER_MARKS = ("pt_tcpstore", "cuda")
DATA_WORKER = "pt_data_worker"

BY_ORDER = "the order in which its parent started them"
_RANK_SETTINGS = (b"RANK=", b"SLURM_PROCID=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"MV2_COMM_WORLD_RANK=")
_SOURCES = {
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "MVAPICH": "MV2_COMM_WORLD_RANK",
    "Intel MPI": "PMI_RANK",
    "PMI": "PMI_RANK",
    "Slurm": "SLURM_PROCID",
}


class Seen:
    """What is known of one process before anybody says what it is.

    words: its command line. environ: as of its exec. marks: names of threads. computes: Python or torch is in it.
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

    @cached_property
    def place(self) -> Place | None:
        """By its settings."""
        return place_by_settings(self.variables) if self.has_rank_settings else None

    @property
    def in_group(self) -> bool:
        """It has a process group of torch's."""
        return any(mark.startswith(GROUP_MARKS) for mark in self.marks)

    @property
    def forked_rank(self) -> bool:
        """It has a process group, and a Python started it without giving it settings of its own."""
        return self.in_group and (self.stat.forked or commands.is_spawned(self.words))


def place_by_settings(settings: Mapping[str, str]) -> Place | None:
    """Who the settings say that a process is: torchrun before MPI before RANK, which is what torch reads, before Slurm."""
    told = [one for one in launches(settings) if one.rank is not None]
    order = ("torchrun", "Open MPI", "MVAPICH", "Intel MPI", "PMI", "settings", "Slurm")
    return _place(min(told, key=lambda one: order.index(one.launcher))) if told else None


def _place(launch: Launch) -> Place:
    return Place(
        rank=launch.rank or 0,
        world_size=launch.world_size,
        local_rank=launch.local_rank,
        local_world_size=launch.local_world_size,
        node_rank=launch.node_rank,
        source=_SOURCES.get(launch.launcher, "RANK"),
    )


class Family:
    """All processes by their parents."""

    def __init__(self, seen: Mapping[int, Seen]) -> None:
        self.seen = seen
        self._children: dict[int, list[Seen]] = {}
        for one in seen.values():
            self._children.setdefault(one.stat.parent, []).append(one)

    def children(self, pid: int) -> list[Seen]:
        """The oldest first."""
        return sorted(self._children.get(pid, ()), key=lambda one: (one.stat.start, one.stat.pid))

    def ancestors(self, one: Seen) -> Iterator[Seen]:
        """The parent first."""
        met = {one.stat.pid}
        parent = self.seen.get(one.stat.parent)
        while parent and parent.stat.pid not in met:
            yield parent
            met.add(parent.stat.pid)
            parent = self.seen.get(parent.stat.parent)

    def descendants(self, pid: int) -> Iterator[Seen]:
        left, met = [pid], {pid}
        while left:
            for child in self._children.get(left.pop(), ()):
                if child.stat.pid not in met:
                    met.add(child.stat.pid)
                    left.append(child.stat.pid)
                    yield child


Roles = dict[int, tuple[Role, "Place | None"]]


def roles(family: Family) -> Roles:
    """Role and place of each process that has one; all others are `Role.OTHER`."""
    found: Roles = {}
    for one in family.seen.values():
        if one.launcher:
            found[one.stat.pid] = Role.LAUNCHER, None
        elif one.python and commands.is_helper(one.words):
            found[one.stat.pid] = Role.HELPER, None
        elif one.stat.name == DATA_WORKER:
            found[one.stat.pid] = Role.WORKER, None
    _forked_ranks(family, found)
    _ranks_by_settings(family, found)
    _workers(family, found)
    return found


def _forked_ranks(family: Family, found: Roles) -> None:
    for parent in list(family.seen.values()):
        if not parent.python or parent.in_group or parent.launcher:
            continue
        children = family.children(parent.stat.pid)
        if not any(one.forked_rank for one in children):
            continue
        ranks = [one for one in children if one.stat.pid not in found and _alike(one, children)]
        first, count = _node(parent.place)
        for number_, one in enumerate(ranks):
            place = Place(
                rank=first * len(ranks) + number_,
                world_size=count * len(ranks),
                local_rank=number_,
                local_world_size=len(ranks),
                source=BY_ORDER,
            )
            found[one.stat.pid] = Role.RANK, place
        starter = parent
        if commands.is_fork_server(parent.words):
            starter = family.seen.get(parent.stat.parent, parent)
        if found.get(starter.stat.pid, (Role.OTHER, None))[0] is Role.OTHER:
            found[starter.stat.pid] = Role.LAUNCHER, None


def _node(place: Place | None) -> tuple[int, int]:
    """Which node this is, of how many: a PyTorchJob counts pods, and a script forks a pod's ranks."""
    return (place.rank, place.world_size) if place and place.world_size else (0, 1)


def _alike(one: Seen, siblings: list[Seen]) -> bool:
    """Whether it was started as those were that have a process group: one may be late, or have died."""
    if one.forked_rank:
        return True
    ranks = [other for other in siblings if other.forked_rank]
    if one.stat.state == "Z":
        return one.stat.name in {other.stat.name for other in ranks}
    spawned = commands.is_spawned(one.words)
    return one.python and any(
        commands.is_spawned(other.words) == spawned and (spawned or other.words == one.words) for other in ranks
    )


def _ranks_by_settings(family: Family, found: Roles) -> None:
    chosen: dict[int, list[Seen]] = {}
    for one in family.seen.values():
        if one.place and one.computes and one.stat.pid not in found:
            outermost = one
            for up in family.ancestors(one):
                if up.stat.pid in found and found[up.stat.pid][0] is not Role.HELPER:
                    break
                if up.computes and up.place == one.place:
                    outermost = up
            chosen.setdefault(outermost.stat.pid, []).append(one)
    for pid, chain in chosen.items():
        # A Python that only wraps another doesn't train; one that was forked, or holds no group where its parent does, isn't a rank.
        grouped = [one for one in chain if one.in_group]
        rank = min(grouped, key=lambda one: one.stat.start) if grouped else family.seen[pid]
        if rank.stat.forked and not rank.in_group:
            found[pid] = Role.WORKER, None
            continue
        found[rank.stat.pid] = Role.RANK, rank.place


def _workers(family: Family, found: Roles) -> None:
    """What a rank forks is a DataLoader's, as a rule; so is what was left over when the rank went."""
    for pid in [pid for pid, (role, _) in found.items() if role is Role.RANK]:
        children = family.children(pid)
        servers = [one for one in children if commands.is_fork_server(one.words)]
        for child in [*children, *(one for server in servers for one in family.children(server.stat.pid))]:
            if child.stat.pid not in found and child.python and (child.stat.forked or commands.is_spawned(child.words)):
                found[child.stat.pid] = Role.WORKER, None
