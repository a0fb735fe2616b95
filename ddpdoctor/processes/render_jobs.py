"""The report of `jobs`: a table a job, what stands out, what the checks find, what was not seen; and the same for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.base.text import listed, one_line, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.processes import Process
from ddpdoctor.processes.gpu_holders import HeldGpu, of_process
from ddpdoctor.processes.job_words import Remark, age, of_pid
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.overview import NO_JOB, JobView, Overview
from ddpdoctor.processes.rank_table import rank_table
from ddpdoctor.report.check_results import (
    finding_lines,
    finding_sections,
    idle_reasons,
    not_tested_sections,
    passed_section,
    problems_and_warnings,
    unknown_reasons,
)
from ddpdoctor.report.contract import Report, build_report, mirror
from ddpdoctor.report.document import Block, Document, Paragraph, Section, StyledText, severity_span
from ddpdoctor.report.reported_jobs import ReportedGpu, ReportedJob, ReportedProcess, ReportedRank, ReportedRemark
from ddpdoctor.report.summary import summary

LOOKED_FOR = (
    "A rank is known by its settings (RANK, LOCAL_RANK, a launcher's), by its parent (torchrun, mp.spawn), and by threads "
    "of torch's process groups."
)

T = TypeVar("T")


def jobs_document(overview: Overview, *, verbose: bool = False, quiet: bool = False) -> Document:
    """The report for people. verbose: a row for every rank, and what was not tested. quiet: a line a finding, and the verdict."""
    examination = overview.examination
    found = examination.findings
    document = Document(
        verdict=overview.verdict,
        lines=finding_lines(found) if quiet else (),
        outcome=outcome(overview),
        counts=f"{plural(overview.others, 'finding')} on other processes left out: ddpdoctor jobs"
        if overview.others
        else "",
        hints=tuple(_hints(overview)),
    )
    if quiet:
        return document
    # What had nothing to look at is told with -v alone: most hosts have no job.
    idle = idle_reasons(examination.results) if verbose else {}
    return msgspec.structs.replace(
        document,
        rows=tuple(_rows(examination)),
        sections=(
            *(_job_section(view, overview.held, verbose=verbose) for view in overview.views),
            *(
                ()
                if overview.views
                else (Section((Paragraph(StyledText(LOOKED_FOR, "dim")),), _nothing_here(examination)),)
            ),
            *finding_sections(found),
            *not_tested_sections(unknown_reasons(examination.results), idle, verbose=verbose),
            passed_section(examination.passed if verbose else ()),
        ),
    )


def _job_section(view: JobView, held: Sequence[HeldGpu], *, verbose: bool) -> Section:
    process = view.job.launcher or view.job.ranks[0]
    command = one_line(process.command or process.name) or "a process without a name"
    blocks: list[Block] = [
        Paragraph(StyledText(described(view.job), "dim"), indent=2),
        rank_table(view, held, fold=not verbose),
        *(Paragraph(one_line(remark.text), severity_span(remark.severity), 6, 2) for remark in view.untold),
    ]
    return Section(tuple(blocks), f"Job {view.job.name}  {command}")


def described(job: TrainingJob) -> str:
    """ "alice, 2.1 h, 8 ranks here (0-7) of 16, launcher pid 4711, 16 DataLoader workers"."""
    numbers = {rank.place.rank for rank in job.ranks if rank.place}
    here = plural(len(job.ranks), "rank")
    if job.expected and len(numbers) != len(job.expected):
        here = f"{len(numbers)} of {len(job.expected)} ranks"
    if job.world_size is not None and job.world_size > len(numbers | set(job.missing)):
        here = f"{here} on this host of {job.world_size} in all"
    launchers = "no launcher here"
    if job.launchers:
        pids = listed((launcher.pid for launcher in job.launchers), 4)
        launchers = f"launcher{'' if len(job.launchers) == 1 else 's'} pid {pids}"
    workers = sum(len(job.workers_of(rank)) for rank in job.ranks)
    guessed = any(rank.forked for rank in job.ranks)
    containers = sorted({rank.container for rank in job.ranks if rank.container})
    parts = (
        listed(sorted({one_line(rank.user) or str(rank.uid) for rank in job.ranks}), 3),
        f"up {age(max(rank.age for rank in job.ranks))}",
        here,
        launchers,
        plural(workers, "DataLoader worker") if workers else "",
        "the order in which they were started is taken for their ranks" if guessed else "",
        f"in container {listed(containers, 3)}" if containers else "",
    )
    return ", ".join(filter(None, parts))


def _rows(examination: Examination) -> Iterator[tuple[str, str]]:
    """Yield (label, text): the host and its GPUs, and what of it was seen."""
    for label, text in summary(examination):
        if label in ("host", "GPUs"):
            yield label, one_line(text)
    yield "seen", _seen(examination)


def _seen(examination: Examination) -> str:
    """ "214 processes, all of them looked into; watched for 0.3 s"."""
    processes = examination.snapshot.processes
    if isinstance(processes, Unknown):
        return f"no process: {one_line(processes.reason)}"
    looked_into = f"{'not all' if processes.spared else 'all of them'} looked into"
    if processes.closed:
        why = ", being others': only root may" if processes.uid else ""
        looked_into = f"{processes.closed} of which can't be looked into{why}"
    parts = (
        f"{plural(processes.count, 'process', 'processes')}, {looked_into}",
        f"watched for {processes.watched:.1f} s" if processes.watched else "",
        f"there may be more: {one_line(processes.unseen)}" if processes.unseen else "",
        *(one_line(spared.words) for spared in processes.spared),
        _silent_gpus(examination),
    )
    return "; ".join(filter(None, parts))


def _silent_gpus(examination: Examination) -> str:
    gpus = examination.snapshot.gpus
    if isinstance(gpus, Unknown):
        return f"who is on which GPU is not known: {one_line(gpus.reason)}"
    reasons = {one_line(gpu.holders.reason): gpu.index for gpu in gpus.answering if isinstance(gpu.holders, Unknown)}
    return f"who is on which GPU is not known: {listed(reasons, 2)}" if reasons else ""


def _nothing_here(examination: Examination) -> str:
    """Say why there is no table."""
    processes = examination.snapshot.processes
    if isinstance(processes, Unknown):
        return f"Whether a training job runs here can't be told: {one_line(processes.reason)}"
    return NO_JOB


def _hints(overview: Overview) -> Iterator[str]:
    if overview.views:
        name = overview.views[0].job.name if len(overview.views) == 1 else "PID"
        yield f"Whether it goes on, and where each rank stands: ddpdoctor jobs --hang {name}"
    found = overview.examination.findings
    if found and overview.verdict is not Verdict.OK:
        yield f"More on the first: ddpdoctor explain {found[0][0].slug}"


def outcome(overview: Overview) -> str:
    """The verdict in words."""
    if isinstance(overview.examination.snapshot.processes, Unknown):
        return "No verdict: the processes of this host could not be seen"
    severities = [severity for _, severity, _ in overview.examination.findings]
    parts = problems_and_warnings(severities, "problem")
    jobs = plural(len(overview.views), "job") if overview.views else "No job"
    if not parts:
        notes = f"; {plural(len(severities), 'note')}" if severities else ""
        return f"{jobs}, and nothing wrong stands out{notes}"
    return f"{jobs}: {' and '.join(parts)}"


# --- for programs -----------------------------------------------------------------------------------------------------------


def jobs_report(overview: Overview, *, with_facts: bool = False) -> Report:
    """The findings are those of the chosen job alone, if one is."""
    processes = overview.examination.snapshot.processes
    problems = [f"the processes could not be seen: {processes.reason}"] if isinstance(processes, Unknown) else []
    report = build_report("jobs", [overview.examination], problems, with_facts=with_facts, of_all=overview.verdict)
    jobs = tuple(reported_job(view.job, view.remarks, overview.held) for view in overview.views)
    return msgspec.structs.replace(report, jobs=jobs)


def reported_job(job: TrainingJob, remarks: Sequence[Remark], held: Sequence[HeldGpu]) -> ReportedJob:
    """One job, rank by rank. held: what all processes hold on the GPUs."""
    return mirror(
        ReportedJob,
        job,
        launchers=tuple(map(_process, job.launchers)),
        ranks=tuple(_rank(rank, job, remarks, held) for rank in job.ranks),
        remarks=tuple(mirror(ReportedRemark, remark, remark=remark.oddity.value) for remark in remarks),
    )


def _rank(rank: Process, job: TrainingJob, remarks: Sequence[Remark], held: Sequence[HeldGpu]) -> ReportedRank:
    place = rank.place
    return ReportedRank(
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        source=place.source if place else "",
        process=_process(rank),
        gpus=tuple(
            ReportedGpu(held_gpu.gpu.index, _or_none(held_gpu.holder.memory), held_gpu.holder.mig_uuid)
            for held_gpu in of_process(rank, held)
        ),
        workers=tuple(map(_process, job.workers_of(rank))),
        remarks=tuple(remark.oddity.value for remark in of_pid(remarks, rank.pid)),
    )


def _process(process: Process) -> ReportedProcess:
    return mirror(ReportedProcess, process, cpu=_or_none(process.recent_cpu))


def _or_none(value: Maybe[T]) -> T | None:
    return None if isinstance(value, Unknown) else value
