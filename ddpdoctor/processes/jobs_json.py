"""The report of `jobs` as JSON: what the checks say, and each job rank by rank."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.processes.overview import Overview
from ddpdoctor.report.contract import Report, build_report
from ddpdoctor.report.reported_jobs import reported_job


def jobs_report(overview: Overview, *, with_facts: bool = False) -> Report:
    """The findings are those of the chosen job alone, if one is."""
    processes = overview.examination.snapshot.processes
    problems = [f"the processes could not be seen: {processes.reason}"] if isinstance(processes, Unknown) else []
    report = build_report("jobs", [overview.examination], problems, with_facts=with_facts, of_all=overview.verdict)
    jobs = tuple(reported_job(one.job, one.remarks, overview.held) for one in overview.views)
    return msgspec.structs.replace(report, jobs=jobs)


def refusal(host: str, problem: str) -> Report:
    """Where no job was judged, as none goes by that name, or the one that is meant must be told first."""
    return msgspec.structs.replace(build_report("jobs", [], [problem]), host=host)
