"""The report of `jobs` as JSON: what the checks say, and each job rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.processes import Process
from ddpdoctor.processes.gpu_holders import HeldGpu, of_process
from ddpdoctor.processes.job_words import Remark, of_pid
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.overview import Overview
from ddpdoctor.report.contract import Report, build_report
from ddpdoctor.report.reported_jobs import ReportedGpu, ReportedJob, ReportedProcess, ReportedRank, ReportedRemark

T = TypeVar("T")


def jobs_report(overview: Overview, *, with_facts: bool = False) -> Report:
    """The findings are those of the chosen job alone, if one is."""
    processes = overview.examination.snapshot.processes
    problems = [f"the processes could not be seen: {processes.reason}"] if isinstance(processes, Unknown) else []
    report = build_report("jobs", [overview.examination], problems, with_facts=with_facts, of_all=overview.verdict)
    jobs = tuple(reported_job(view.job, view.remarks, overview.held) for view in overview.views)
    return msgspec.structs.replace(report, jobs=jobs)


def reported_job(job: TrainingJob, remarks: Sequence[Remark], held: Sequence[HeldGpu]) -> ReportedJob:
    """held: what all processes hold on the GPUs."""
    return ReportedJob(
        name=job.name,
        launchers=tuple(map(_process, job.launchers)),
        world_size=job.world_size,
        expected=job.expected,
        missing=job.missing,
        ranks=tuple(_rank(rank, job, remarks, held) for rank in job.ranks),
        remarks=tuple(
            ReportedRemark(remark.oddity.value, remark.severity, remark.text, remark.ranks, remark.pids)
            for remark in remarks
        ),
    )


def _rank(one: Process, job: TrainingJob, remarks: Sequence[Remark], held: Sequence[HeldGpu]) -> ReportedRank:
    place = one.place
    return ReportedRank(
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        source=place.source if place else "",
        process=_process(one),
        gpus=tuple(
            ReportedGpu(held_gpu.gpu.index, _or_none(held_gpu.holder.memory), held_gpu.holder.mig_uuid)
            for held_gpu in of_process(one, held)
        ),
        workers=tuple(map(_process, job.workers_of(one))),
        remarks=tuple(remark.oddity.value for remark in of_pid(remarks, one.pid)),
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
