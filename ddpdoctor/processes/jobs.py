"""Groups processes into the training jobs of this host. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import AskedFor, Process, Processes, ProcessRole
from ddpdoctor.processes.same_facts import remembered

ELASTIC_RUN = "TORCHELASTIC_RUN_ID"
MAX_RANKS_ON_A_HOST = 4096
"""Where settings tell of more, they are wrong."""
STARTED_TOGETHER_SECONDS = 60.0
"""Time between the first and the last of a run's ranks, on however slow a host."""


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job on this host, with what started them."""

    name: str
    """For `ddpdoctor jobs NAME`: the launcher's pid, or that of the first rank where there is none, or it has started several jobs."""
    launcher: Process | None = None
    """The oldest where several started parts of it: one in each container."""
    launchers: tuple[Process, ...] = ()
    """All of these."""
    ranks: tuple[Process, ...] = ()
    """By rank; those without a place last."""
    others: tuple[Process, ...] = ()
    """DataLoader workers and helpers, those of a fork server as well."""
    world_size: int | None = None
    expected: tuple[int, ...] = ()
    """The ranks that should be on this host, where the ranks' own settings say so."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The expected ranks that no process is."""
        there = {rank.place.rank for rank in self.ranks if rank.place}
        return tuple(rank for rank in self.expected if rank not in there)

    @property
    def doubled(self) -> tuple[int, ...]:
        """Ranks that several processes say they are."""
        numbers = Counter(rank.place.rank for rank in self.ranks if rank.place)
        return tuple(sorted(number for number, times in numbers.items() if times > 1))

    def workers_of(self, rank: Process) -> tuple[Process, ...]:
        """List the DataLoader workers of that rank, those of its helpers as well."""
        helpers = (process for process in self.others if process.role is ProcessRole.HELPER)
        parents = {rank.pid, *(helper.pid for helper in helpers if helper.parent == rank.pid)}
        workers = (process for process in self.others if process.role is ProcessRole.WORKER)
        return tuple(worker for worker in workers if worker.parent in parents)


def setting(process: Process, name: str) -> str:
    """Read a variable of a process's environment; "" where it has none or can't be looked into."""
    if isinstance(process.settings, Unknown):
        return ""
    return next((variable.value for variable in process.settings if variable.name == name), "")


SOURCES_BY_LIGHTNING = ("LOCAL_RANK", "its children's LOCAL_RANK")
"""Sources of a place that Lightning gave, whose first rank starts the others."""

_SOURCES_BY_HAND = ("RANK", "--rank", "its children's LOCAL_RANK")
"""Sources of a place that a user may have set without any launcher."""


def is_started_by_hand(rank: Process) -> bool:
    """Whether nothing in a rank's settings tells that a launcher, or a script that starts ranks, has started it: with nohup, say."""
    if isinstance(rank.settings, Unknown) or setting(rank, ELASTIC_RUN):
        return False
    return rank.place is None or rank.place.source in _SOURCES_BY_HAND


_NUM_PROCESSES = re.compile(r"\baccelerate\b.* --num[_-]processes[= ]'?(\d{1,6})'?(?!\S)")


def asked_for(launcher: Process | None) -> AskedFor | None:
    """Read the number of ranks that accelerate's command line asks for, or its configuration file, on all its machines; None where
    neither says."""
    if launcher is None:
        return None
    found = _NUM_PROCESSES.search(launcher.command)
    return AskedFor(processes=int(found[1]), source="--num_processes") if found else launcher.asked_for


_SETTINGS_OF_A_LAUNCH = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "SLURM_PROCID",
    ELASTIC_RUN,
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)


def lone_setting(rank: Process) -> str:
    """Return "LOCAL_RANK=0" where a rank was started with that and nothing else that a launch sets: left in the shell, as it seems.
    Lightning then takes it that somebody else starts the other ranks."""
    value = setting(rank, "LOCAL_RANK")
    alone = bool(value) and not rank.forked and not any(setting(rank, name) for name in _SETTINGS_OF_A_LAUNCH)
    return f"LOCAL_RANK={value}" if alone else ""


def ancestors(process: Process, processes: Processes) -> Iterator[Process]:
    """Yield its parent, that one's, and so on, as far as they are listed."""
    seen = {process.pid}
    parent = processes.get(process.parent)
    while parent and parent.pid not in seen:
        yield parent
        seen.add(parent.pid)
        parent = processes.get(parent.parent)


@remembered
def jobs_of(processes: Processes) -> tuple[TrainingJob, ...]:
    """Group the processes of this host into jobs, the oldest first."""
    siblings = _siblings(processes)
    ranks = [process for process in processes.listed if process.role is ProcessRole.RANK]
    started = {rank.pid: _started_by(rank, processes) for rank in ranks}
    starters = {first.pid for pid, (_, first) in started.items() if first.pid != pid}

    def find_origin(rank: Process) -> tuple[object, ...]:
        launcher, first = started[rank.pid]
        if launcher or first.pid in starters:
            return ((launcher or first).identity,)
        return _meeting_point(siblings.get(first.pid, first))

    parts = [_Part(started[members[0].pid][0], members) for members in grouped(ranks, find_origin).values()]
    jobs = [_job(pieces, processes) for pieces in _joined([run for part in parts for run in part.runs()])]
    return tuple(sorted(jobs, key=lambda job: (min(rank.start for rank in job.ranks), job.name)))


class _Part(msgspec.Struct, frozen=True):
    """Ranks that one launcher has started, or that meet at one point."""

    launcher: Process | None
    ranks: Sequence[Process]
    named_by_launcher: bool = True

    @property
    def places(self) -> frozenset[int]:
        return frozenset(rank.place.rank for rank in self.ranks if rank.place)

    @property
    def world_size(self) -> int | None:
        return max((rank.place.world_size or 0 for rank in self.ranks if rank.place), default=0) or None

    def runs(self) -> Sequence[_Part]:
        """Split it where sockets or ports tell ranks apart, or several runs met at the same point one after the other:
        each has all the ranks that the others have, began when the one before it was complete, and began at once. Else,
        doubled or not, it is one."""
        for apart in (self._by_sockets(), self._by_port() if self.launcher else self._by_time()):
            if len(apart) > 1:
                return apart
        return [self]

    def _piece(self, ranks: Sequence[Process]) -> _Part:
        return _Part(self.launcher, ranks, named_by_launcher=False)

    def _by_sockets(self) -> Sequence[_Part]:
        """Split it into ranks that are connected with each other, where else ranks would be doubled, or nobody says which they are."""
        placed = [rank for rank in self.ranks if rank.place]
        if placed and len(self.places) == len(placed):
            return [self]
        parts = [self._piece(circle) for circle in connected_ranks(self.ranks)]
        complete = all(len(part.places) == sum(rank.place is not None for rank in part.ranks) for part in parts)
        return parts if complete and all(len(part.ranks) > 1 for part in parts) else [self]

    def _by_time(self) -> Sequence[_Part]:
        """Split it into runs that met one after the other at the same point."""
        runs: list[list[Process]] = []
        for rank in sorted(self.ranks, key=lambda rank: (rank.start, rank.pid)):
            if rank.place is None or not runs or rank.place.rank in self._piece(runs[-1]).places:
                runs.append([])
            runs[-1].append(rank)
        parts = [_Part(None, run) for run in runs]
        several = len(parts[0].places) > 1 or self.world_size == 1
        ages = ([rank.age for rank in run] for run in runs)
        at_once = all(max(of_run) - min(of_run) < STARTED_TOGETHER_SECONDS for of_run in ages)
        return parts if several and at_once and len({part.places for part in parts}) == 1 else [self]

    def _by_port(self) -> Sequence[_Part]:
        """Split it into jobs that one step of Slurm, a shell in it, has started by hand: each rank is there twice, but for
        each port once."""
        by_port = grouped(self.ranks, lambda rank: setting(rank, "MASTER_PORT"))
        parts = [self._piece(ranks) for ranks in by_port.values()]
        once = all(len(part.places) == len(part.ranks) for part in parts)
        return parts if once and len(self.places) < len(self.ranks) else [self]


def _started_by(rank: Process, processes: Processes) -> tuple[Process | None, Process]:
    """Find the rank's launcher, and the rank whose settings tell of the job: with Lightning the first has started the others."""
    first = rank
    for ancestor in ancestors(rank, processes):
        if ancestor.role is ProcessRole.LAUNCHER:
            return ancestor, first
        if ancestor.role is ProcessRole.RANK:
            if first is rank and _by_lightning(rank, "LOCAL_RANK") and _by_lightning(ancestor, *SOURCES_BY_LIGHTNING):
                first = ancestor
            elif _meeting_point(ancestor) != _meeting_point(rank):
                # A notebook or a test that has a process group of its own, say.
                break
    return None, first


def _by_lightning(rank: Process, *sources: str) -> bool:
    return rank.place is not None and rank.place.source in sources


def _siblings(processes: Processes) -> Mapping[int, Process]:
    """Map each rank that has ended, and so has no settings any more, to another that the same parent has started."""
    ranks = [process for process in processes.listed if process.role is ProcessRole.RANK and process.parent > 1]
    readable = {rank.parent: rank for rank in ranks if not isinstance(rank.settings, Unknown)}
    return {rank.pid: readable[rank.parent] for rank in ranks if rank.has_ended and rank.parent in readable}


def connected_ranks(ranks: Sequence[Process]) -> list[list[Process]]:
    """Group ranks that are connected with each other, through others as well, or were started by one of them."""
    circles: list[list[Process]] = []
    for rank in ranks:
        met = [circle for circle in circles if any(_met(rank, process) for process in circle)]
        circles = [circle for circle in circles if circle not in met]
        circles.append([*(process for circle in met for process in circle), rank])
    return sorted(circles, key=lambda circle: min((process.start, process.pid) for process in circle))


def _met(rank: Process, other: Process) -> bool:
    return (
        (not isinstance(rank.connected, Unknown) and other.pid in rank.connected)
        or (not isinstance(other.connected, Unknown) and rank.pid in other.connected)
        or rank.pid == other.parent != 1
        or other.pid == rank.parent != 1
    )


def perhaps_of_several_runs(job: TrainingJob) -> tuple[int, ...]:
    """List the doubled ranks that are neither connected nor were told to meet at one place: which of them belong together can't be
    told."""
    unclear = []
    circles = connected_ranks(job.ranks) if job.doubled else []
    for rank in job.doubled:
        alike = [process for process in job.ranks if process.place and process.place.rank == rank]
        connected = any(all(process in circle for process in alike) for circle in circles)
        if not connected and not all(setting(process, "MASTER_PORT") for process in alike):
            unclear.append(rank)
    return tuple(unclear)


_MEETING_SETTINGS = ("MASTER_ADDR", "MASTER_PORT", ELASTIC_RUN, "SLURM_JOB_ID", "SLURM_STEP_ID", "WORLD_SIZE")


def _meeting_point(rank: Process) -> tuple[object, ...]:
    if not setting(rank, "MASTER_PORT"):
        # Nobody says where they meet: those that one process has started belong together.
        return (rank.uid, rank.pid_namespace, rank.parent if rank.parent > 1 else rank.session)
    return (rank.uid, rank.pid_namespace, rank.network_namespace, *(setting(rank, name) for name in _MEETING_SETTINGS))


def _joined(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Group the parts of each job: they meet at the same point and have different ranks of the same world."""
    jobs: list[list[_Part]] = []
    by_world: dict[tuple[object, ...], list[list[_Part]]] = {}
    for part in parts:
        of_world = by_world.setdefault(_world(part), [])
        for job in of_world:
            if all(_may_be_one_job(part, other) for other in job):
                job.append(part)
                break
        else:
            of_world.append([part])
            jobs.append(of_world[-1])
    return jobs


def _world(part: _Part) -> tuple[object, ...]:
    """Return what parts have in common that may be of one job; of one that meets nowhere something of its own."""
    rank = part.ranks[0]
    values = tuple(setting(rank, name) for name in _WORLD_SETTINGS)
    return (rank.uid, part.world_size, *values) if all(values[:2]) else (rank.identity,)


_WORLD_SETTINGS = ("MASTER_ADDR", "MASTER_PORT", ELASTIC_RUN, "WORLD_SIZE")


def _may_be_one_job(part: _Part, other: _Part) -> bool:
    first, second = part.ranks[0], other.ranks[0]
    master = setting(first, "MASTER_ADDR")
    if not master or not setting(first, "MASTER_PORT") or part.places & other.places:
        return False
    # Another network namespace has a loopback of its own.
    return len(part.places | other.places) <= (part.world_size or 0) and (
        not _is_loopback(master) or first.network_namespace == second.network_namespace
    )


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address.lower() in ("localhost", "::1", "[::1]")


def _job(parts: Sequence[_Part], processes: Processes) -> TrainingJob:
    members = [rank for part in parts for rank in part.ranks]
    ranks = sorted(
        members, key=lambda member: (member.place.rank if member.place else 1 << 30, member.start, member.pid)
    )
    started = {part.launcher.pid: part.launcher for part in parts if part.launcher}
    launchers = sorted(started.values(), key=lambda launcher: (launcher.start, launcher.pid))
    by_launcher = launchers and all(part.named_by_launcher for part in parts)
    return TrainingJob(
        name=str((launchers if by_launcher else ranks)[0].pid),
        launcher=launchers[0] if launchers else None,
        launchers=tuple(launchers),
        ranks=tuple(ranks),
        others=_others(ranks, processes),
        world_size=max((part.world_size or 0 for part in parts), default=0) or None,
        expected=tuple(sorted({rank for part in parts for rank in _expected(part)})),
    )


def _others(ranks: Sequence[Process], processes: Processes) -> tuple[Process, ...]:
    helping = [process for process in processes.listed if process.role in (ProcessRole.WORKER, ProcessRole.HELPER)]
    parents = {rank.pid for rank in ranks}
    parents |= {process.pid for process in helping if process.role is ProcessRole.HELPER and process.parent in parents}
    return tuple(process for process in helping if process.parent in parents)


def _expected(part: _Part) -> tuple[int, ...]:
    """List the ranks that should be on this host. By LOCAL_WORLD_SIZE: a rank that is missing here is none of another host's. By WORLD_SIZE where all meet on loopback."""
    size = part.world_size
    if size and size <= MAX_RANKS_ON_A_HOST and _is_loopback(setting(part.ranks[0], "MASTER_ADDR")):
        return tuple(range(size))
    found: set[int] = set()
    for rank in part.ranks:
        place = rank.place
        if place and place.local_world_size and place.local_rank is not None:
            first = place.rank - place.local_rank
            found.update(range(first, first + min(place.local_world_size, MAX_RANKS_ON_A_HOST)))
    return tuple(sorted(found))
