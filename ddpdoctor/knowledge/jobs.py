"""Which processes make up one training job on this host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.processes import Process, Processes, Role

ELASTIC_RUN = "TORCHELASTIC_RUN_ID"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job on this host, with what started them.

    name: what `ddpdoctor jobs NAME` takes: the launcher's pid, or that of the first rank where there is none.
    """

    name: str
    launcher: Process | None = None
    ranks: tuple[Process, ...] = ()
    """By rank; those without a place last."""
    others: tuple[Process, ...] = ()
    """DataLoader workers and helpers."""
    world_size: int | None = None
    expected: tuple[int, ...] = ()
    """The ranks that should be on this host, where the ranks' own settings say so."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Those of the expected that no process is."""
        there = {one.place.rank for one in self.ranks if one.place}
        return tuple(rank for rank in self.expected if rank not in there)

    @property
    def doubled(self) -> tuple[int, ...]:
        """Ranks that several processes say they are."""
        said = [one.place.rank for one in self.ranks if one.place]
        return tuple(sorted({rank for rank in said if said.count(rank) > 1}))

    def workers_of(self, rank: Process) -> tuple[Process, ...]:
        """The DataLoader workers of that rank."""
        return tuple(one for one in self.others if one.role is Role.WORKER and one.parent == rank.pid)


def setting(process: Process, name: str) -> str:
    """That variable of its environment, "" where it has none or can't be looked into."""
    if isinstance(process.settings, Unknown):
        return ""
    return next((one.value for one in process.settings if one.name == name), "")


def ancestors(process: Process, processes: Processes) -> Iterator[Process]:
    """Its parent, that one's, and so on, as far as they are listed."""
    seen = {process.pid}
    parent = processes.get(process.parent)
    while parent and parent.pid not in seen:
        yield parent
        seen.add(parent.pid)
        parent = processes.get(parent.parent)


def jobs_of(processes: Processes) -> tuple[Job, ...]:
    """The jobs of this host, the oldest first."""
    ranks = [one for one in processes.listed if one.role is Role.RANK]
    by_key: dict[tuple[str, ...], list[Process]] = {}
    launchers: dict[tuple[str, ...], Process | None] = {}
    for one in ranks:
        launcher = next((up for up in ancestors(one, processes) if up.role is Role.LAUNCHER), None)
        key = (str(launcher.pid),) if launcher else _meeting_point(one)
        by_key.setdefault(key, []).append(one)
        launchers[key] = launcher
    jobs = [_job(members, launchers[key], processes) for key, members in by_key.items()]
    return tuple(sorted(jobs, key=lambda job: min(one.start for one in job.ranks)))


def _meeting_point(rank: Process) -> tuple[str, ...]:
    names = ("MASTER_ADDR", "MASTER_PORT", ELASTIC_RUN, "SLURM_JOB_ID", "SLURM_STEP_ID", "WORLD_SIZE")
    return ("", rank.pid_namespace, rank.network_namespace, *(setting(rank, name) for name in names))


def _job(members: Sequence[Process], launcher: Process | None, processes: Processes) -> Job:
    ranks = sorted(members, key=lambda one: (one.place.rank if one.place else 1 << 30, one.start, one.pid))
    pids = {one.pid for one in ranks}
    others = tuple(one for one in processes.listed if one.role in (Role.WORKER, Role.HELPER) and one.parent in pids)
    sizes = {one.place.world_size for one in ranks if one.place and one.place.world_size}
    return Job(
        name=str(launcher.pid if launcher else ranks[0].pid),
        launcher=launcher,
        ranks=tuple(ranks),
        others=others,
        world_size=max(sizes) if sizes else None,
        expected=_expected(ranks),
    )


def _expected(ranks: Sequence[Process]) -> tuple[int, ...]:
    """By LOCAL_WORLD_SIZE: a rank that is missing here is none of another host's."""
    for one in ranks:
        place = one.place
        if place and place.local_world_size and place.local_rank is not None:
            first = place.rank - place.local_rank
            return tuple(range(first, first + place.local_world_size))
    return ()
