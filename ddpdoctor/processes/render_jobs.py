"""The report of `jobs`: a table a job, what stands out, what the checks find, what was not seen; and the same for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.base.text import one_line, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.processes import Process
from ddpdoctor.processes.gpu_holders import HeldGpu, of_process
from ddpdoctor.processes.job_words import Remark, of_pid
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.jobs_summary import described, heading, headline, in_words, looked_for, nothing_here
from ddpdoctor.processes.overview import JobView, Overview
from ddpdoctor.processes.rank_table import memory_heading, rows_of, table_of
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

T = TypeVar("T")


def jobs_document(overview: Overview, *, verbose: bool = False, quiet: bool = False) -> Document:
    """The report for people.

    Args:
        overview: the jobs, and what the checks say of them.
        verbose: a row for every rank, and what was not tested.
        quiet: a line a finding, and the verdict.
    """
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
        rows=tuple((label, one_line(text)) for label, text in heading(overview)),
        sections=(
            *(_job_section(view, overview.held, verbose=verbose) for view in overview.views),
            *(
                ()
                if overview.views
                else (Section((Paragraph(StyledText(looked_for(), "dim")),), nothing_here(overview)),)
            ),
            *finding_sections(found),
            *not_tested_sections(unknown_reasons(examination.results), idle, verbose=verbose),
            passed_section(examination.passed if verbose else ()),
        ),
    )


def _job_section(view: JobView, held: Sequence[HeldGpu], *, verbose: bool) -> Section:
    blocks: list[Block] = [
        Paragraph(StyledText(described(view.job), "dim"), indent=2),
        table_of(rows_of(view, held, fold=not verbose), memory_heading(held, view)),
        *(Paragraph(text, severity_span(severity), 6, 2) for severity, text in in_words(view.untold)),
    ]
    return Section(tuple(blocks), f"Job {view.job.name}  {headline(view)}")


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
    """One job, rank by rank.

    Args:
        job: it.
        remarks: what stands out in it.
        held: what all processes hold on the GPUs.
    """
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
