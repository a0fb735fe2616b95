"""Ranks of a running job that do not run: missing, doubled, dead, stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.processes.gpu_holders import NO_OWN_JOB, left_on_gpus, own_jobs, require_known_settings
from ddpdoctor.processes.job_words import NOT_RUNNING, Oddity, Remark
from ddpdoctor.processes.jobs import TrainingJob, asked_for, jobs_of
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.rank_remarks import remarks_on
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

NO_GPUS = Unknown("they don't matter here")


@check("rank-not-running", severity=WARN, owner=Owner.USER, stands_for=(*NOT_RUNNING, LeftoverKind.ENDED))
def rank_not_running(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """A rank of a running job is missing, doubled, dead or stopped.

    ## What breaks
    The others wait for it in their next collective, at full load on the GPU and without a word, until the watchdog or the
    timeout of the process group ends them: ten minutes with NCCL, thirty with gloo. A rank that is there twice joins instead
    of another one, and both read the same part of the data.

    ## Why
    A rank that was killed (the kernel's OOM killer, a scheduler, a colleague) says nothing, and not every launcher notices. One
    that ended before the others may have had fewer batches, or have returned early. A stopped one got SIGSTOP, or Ctrl-Z in its
    terminal. Doubled ranks come from two launches on one port, or from a loop that exports the same RANK twice. Of a Python
    that has ended, and that its parent has not collected, it can't be told any more whether it was a rank: it is only named.
    Lightning starts no further ranks where it finds a LOCAL_RANK, and waits for those that somebody else is to start; where it
    finds a NODE_RANK, it starts those of a further node, and waits for the first.

    ## Fix
    `ddpdoctor jobs --hang PID` says where the others wait. `kill -CONT PID` continues a stopped rank, if nobody stopped it on
    purpose. A job that lost a rank can't go on: end it, and start it again from its last checkpoint. A rank that is alone because LOCAL_RANK was left in its shell: `unset LOCAL_RANK`, and start again.
    """
    jobs = own_jobs(processes)
    ended = list(_uncollected(processes, gpus))
    requires(jobs or ended, NO_OWN_JOB)
    for job in jobs:
        remarks = [remark for remark in remarks_on(job, processes, NO_GPUS) if remark.oddity in NOT_RUNNING]
        if remarks:
            yield _found(job, remarks)
    for pid in dict.fromkeys(process.parent for process in ended):
        yield _ended([process for process in ended if process.parent == pid], processes.get(pid))
    require_known_settings(jobs)


def _uncollected(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Process]:
    """Pythons of this user's that have ended, belong to no job any more, and hold nothing."""
    of_jobs = {rank.pid for job in jobs_of(processes) for rank in (*job.ranks, *job.others, *job.launchers)}
    told = set()
    if isinstance(gpus, Gpus):
        told = {leftover.pid for left in left_on_gpus(gpus, processes) for leftover in left.leftovers}
    for left in left_by_processes(processes, gpus):
        process = processes.get(left.pid)
        if left.kind is not LeftoverKind.ENDED or left.certainty is Certainty.NOT_OURS or process is None:
            continue
        if process.name.startswith(("python", "pypy", "pt_")) and not {process.pid, process.parent} & (of_jobs | told):
            yield process


def _ended(processes: Sequence[Process], parent: Process | None) -> Finding:
    one, pids = len(processes) == 1, [process.pid for process in processes]
    named = f"pid {parent.pid} ({parent.name})" if parent else "their parent"
    them = "it" if one else "them"
    return Finding.of(
        f"{plural(len(pids), 'Python')} (pid{'' if one else 's'} {listed(pids, 4)}) {'has' if one else 'have'} ended, and "
        f"{named}, which started {them}, has not taken note",
        (
            Evidence(f"pid {process.pid} ({process.name}): state Z, child of pid {process.parent}", "/proc")
            for process in processes[:8]
        ),
        Fix(
            f"See whether that still does anything; if it only waits for {them}, end it: then {'it goes' if one else 'they go'}, too",
            (f"ps -o pid,user,stat,lstart,args -p {processes[0].parent}",),
        ),
        cause=f"What {'it was' if one else 'they were'} for can't be told any more. Ranks end like this where a script of one's "
        "own has started them and does not ask how they are.",
        severity=INFO,
    )


def _found(job: TrainingJob, remarks: Sequence[Remark]) -> Finding:
    said = [f"{_subject(remark)} {remark.oddity.value}" for remark in remarks]
    summary = f"Job {job.name}: {listed(said, 4)}"
    fixes = {fix.commands: fix for remark in remarks for fix in _fixes(job, remark)}
    return Finding.of(
        summary, (Evidence(remark.text, "/proc") for remark in remarks), fixes.values(), severity=remarks[0].severity
    )


def _subject(remark: Remark) -> str:
    if remark.ranks:
        return ranks_named(remark.ranks)
    return f"pid{'' if len(remark.pids) == 1 else 's'} {listed(remark.pids, 3)}"


def _fixes(job: TrainingJob, remark: Remark) -> Iterator[Fix]:
    pids = " ".join(map(str, remark.pids))
    see = f"ps -o pid,ppid,user,lstart,args -p {pids}"
    if remark.oddity is Oddity.STOPPED:
        yield Fix("Continue it, if nobody stopped it on purpose", (f"kill -CONT {pids}",))
    elif remark.oddity is Oddity.TRACED:
        yield Fix("Nothing, if you debug it; else see who does", (see,))
    elif remark.oddity is Oddity.FEWER:
        asked = asked_for(job.launcher)
        yield Fix(
            "Start it with torch's own launcher, which heeds the number on CPUs, too; without the setting each of accelerate's "
            "processes would train alone there",
            (f"ACCELERATE_USE_CPU=true torchrun --nproc-per-node={asked.processes if asked else 2} train.py",),
        )
    elif remark.oddity is Oddity.ALONE:
        yield Fix("End it, and start it again from a shell without that setting", (f"kill {pids}", "unset LOCAL_RANK"))
    elif remark.oddity is Oddity.BEYOND:
        yield Fix(
            "End it, and start it again from a shell without that setting",
            (f"kill {pids}", "unset NODE_RANK GROUP_RANK"),
        )
    elif remark.oddity is Oddity.DOUBLED:
        yield Fix("See which of them belongs to this run, and end the other", (see,))
    else:
        text = "See where the others wait: the job can't go on without it, unless it has done all its work"
        yield Fix(text, (f"ddpdoctor jobs --hang {shlex.quote(job.name)}",))
