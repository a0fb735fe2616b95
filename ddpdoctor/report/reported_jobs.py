"""A running job as JSON tells it. Memory in bytes, times in seconds; null is what could not be learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.processes import Process
from ddpdoctor.processes.gpu_holders import Held, of_process
from ddpdoctor.processes.job_words import Remark, of_pid
from ddpdoctor.processes.jobs import Job

T = TypeVar("T")


class ReportedGpu(msgspec.Struct, frozen=True):
    """What a rank holds on one GPU, as NVML tells. gpu: its index."""

    gpu: int
    memory: int | None
    mig_uuid: str = ""


class ReportedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher, a rank or a DataLoader worker. pid_inside: in its own container, 0 where it is the same; state: the
    kernel's letter; cpu: cores that it used while it was watched; memory: resident."""

    pid: int
    pid_inside: int
    user: str
    command: str
    age: float
    state: str
    cpu: float | None
    memory: int
    waits_in: str


class ReportedRank(msgspec.Struct, frozen=True, kw_only=True):
    """rank: null where nobody says which it is; source: who says so. gpus: most memory first. remarks: words for what stands
    out."""

    rank: int | None
    local_rank: int | None
    source: str
    process: ReportedProcess
    gpus: tuple[ReportedGpu, ...]
    workers: tuple[ReportedProcess, ...]
    remarks: tuple[str, ...]


class ReportedRemark(msgspec.Struct, frozen=True):
    """What stands out. ranks: which; pids: empty where a rank is missing."""

    remark: str
    severity: Severity
    text: str
    ranks: tuple[int, ...]
    pids: tuple[int, ...]


class ReportedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job on this host. name: what `ddpdoctor jobs NAME` takes; expected: the ranks that should be here, as far
    as their settings say so; launchers: several where each container has one."""

    name: str
    launchers: tuple[ReportedProcess, ...]
    world_size: int | None
    expected: tuple[int, ...]
    missing: tuple[int, ...]
    ranks: tuple[ReportedRank, ...]
    remarks: tuple[ReportedRemark, ...]


def reported_job(job: Job, remarks: Sequence[Remark], held: Sequence[Held]) -> ReportedJob:
    """held: what all processes hold on the GPUs."""
    return ReportedJob(
        name=job.name,
        launchers=tuple(map(_process, job.launchers)),
        world_size=job.world_size,
        expected=job.expected,
        missing=job.missing,
        ranks=tuple(_rank(one, job, remarks, held) for one in job.ranks),
        remarks=tuple(ReportedRemark(one.oddity.value, one.severity, one.text, one.ranks, one.pids) for one in remarks),
    )


def _rank(one: Process, job: Job, remarks: Sequence[Remark], held: Sequence[Held]) -> ReportedRank:
    place = one.place
    return ReportedRank(
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        source=place.source if place else "",
        process=_process(one),
        gpus=tuple(
            ReportedGpu(each.gpu.index, _or_none(each.holder.memory), each.holder.mig_uuid)
            for each in of_process(one, held)
        ),
        workers=tuple(map(_process, job.workers_of(one))),
        remarks=tuple(each.oddity.value for each in of_pid(remarks, one.pid)),
    )


def _process(one: Process) -> ReportedProcess:
    return ReportedProcess(
        pid=one.pid,
        pid_inside=one.pid_inside,
        user=one.user,
        command=one.command,
        age=one.age,
        state=one.state,
        cpu=_or_none(one.recent_cpu),
        memory=one.memory,
        waits_in=one.waits_in,
    )


def _or_none(value: Maybe[T]) -> T | None:
    return None if isinstance(value, Unknown) else value
