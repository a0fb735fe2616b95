"""Ranks of a running job that do not run: missing, doubled, dead, stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.processes import Processes
from ddpdoctor.findings import WARN, Evidence, Finding, Fix
from ddpdoctor.knowledge.gpu_holders import own_jobs
from ddpdoctor.knowledge.job_remarks import remarks_on
from ddpdoctor.knowledge.job_words import NOT_RUNNING, Oddity, Remark
from ddpdoctor.knowledge.jobs import Job
from ddpdoctor.registry import check, requires
from ddpdoctor.wording import listed, ranks_named

NO_GPUS = Unknown("they don't matter here")


@check("rank-not-running", severity=WARN)
def rank_not_running(processes: Processes) -> Iterator[Finding]:
    """A rank of a running job is missing, doubled, dead or stopped.

    ## What breaks
    The others wait for it in their next collective, at full load on the GPU and without a word, until the watchdog or the
    timeout of the process group ends them: ten minutes with NCCL, thirty with gloo. A rank that is there twice joins instead
    of another one, and both read the same part of the data.

    ## Why
    A rank that was killed (the kernel's OOM killer, a scheduler, a colleague) says nothing, and not every launcher notices. One
    that ended before the others may have had fewer batches, or have returned early. A stopped one got SIGSTOP, or Ctrl-Z in its
    terminal. Doubled ranks come from two launches on one port, or from a loop that exports the same RANK twice.

    ## Fix
    `ddpdoctor jobs --hang PID` says where the others wait. `kill -CONT PID` continues a stopped rank, if nobody stopped it on
    purpose. A job that lost a rank can't go on: end it, and start it again from its last checkpoint.
    """
    jobs = own_jobs(processes)
    requires(jobs, "no training job of this user runs on this host")
    for job in jobs:
        remarks = [one for one in remarks_on(job, processes, NO_GPUS) if one.oddity in NOT_RUNNING]
        if remarks:
            yield _found(job, remarks)


def _found(job: Job, remarks: Sequence[Remark]) -> Finding:
    said = [f"{_subject(one)} {one.oddity.value}" for one in remarks]
    summary = f"Job {job.name}: {listed(said, 4)}"
    fixes = {fix.commands: fix for one in remarks for fix in _fixes(job, one)}
    return Finding(
        summary if len(summary) <= 160 else f"{summary[:157]}...",
        evidence=tuple(Evidence(one.text, "/proc") for one in remarks),
        fixes=tuple(fixes.values()),
        severity=remarks[0].severity,
    )


def _subject(remark: Remark) -> str:
    if remark.ranks:
        return ranks_named(remark.ranks)
    return f"pid{'' if len(remark.pids) == 1 else 's'} {listed(remark.pids, 3)}"


def _fixes(job: Job, remark: Remark) -> Iterator[Fix]:
    pids = " ".join(map(str, remark.pids))
    see = f"ps -o pid,ppid,user,lstart,args -p {pids}"
    if remark.oddity is Oddity.STOPPED:
        yield Fix("Continue it, if nobody stopped it on purpose", (f"kill -CONT {pids}",))
    elif remark.oddity is Oddity.TRACED:
        yield Fix("Nothing, if you debug it; else see who does", (see,))
    elif remark.oddity is Oddity.DOUBLED:
        yield Fix("See which of them belongs to this run, and end the other", (see,))
    else:
        text = "See where the others wait: the job can't go on without it, unless it has done all its work"
        yield Fix(text, (f"ddpdoctor jobs --hang {job.name}",))
