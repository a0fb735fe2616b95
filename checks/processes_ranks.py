"""Ranks of running jobs that have lost their launcher, or differ from each other in their settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.base import Maybe, NotKnown, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.findings import FAIL, WARN, Evidence, Finding, Fix
from ddpdoctor.knowledge.gpu_holders import left_on_gpus, own_jobs, works
from ddpdoctor.knowledge.gpu_holders_words import age, end_leftover, why_left
from ddpdoctor.knowledge.job_settings import Difference, differences
from ddpdoctor.knowledge.job_words import places, who
from ddpdoctor.knowledge.jobs import Job
from ddpdoctor.knowledge.leftovers import Kind, Leftover, left_by_processes
from ddpdoctor.registry import check, requires
from ddpdoctor.wording import human, listed, plural, ranks_named


@check("orphaned-rank", severity=WARN)
def orphaned_rank(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """A rank still runs although its launcher is gone.

    ## What breaks
    It waits for ranks that will never come, and keeps its memory, its GPU and its port: the next run fails with "Address
    already in use" or out of memory.

    ## Why
    torchrun was killed by SIGKILL (the OOM killer, a scheduler, `kill -9`), or the container's first process ended, and nobody
    told its ranks. torchrun that ends in an orderly way ends them as well.

    ## Fix
    `ddpdoctor zombies` lists them with what each holds, and ends those that are proven to be left over.
    """
    told = {one.leftover.identity for one in left_on_gpus(gpus, processes)} if isinstance(gpus, Gpus) else set()
    orphans = [
        one
        for one in left_by_processes(processes, gpus)
        if one.kind in (Kind.RANK, Kind.WORKER) and one.identity not in told
    ]
    for one in orphans:
        yield _orphan(one, processes)
    if not orphans and not told and processes.closed and processes.count == processes.closed:
        raise NotKnown("this user may not look into any process")


def _orphan(left: Leftover, processes: Processes) -> Finding:
    process = processes.get(left.pid)
    named = who([process]) if process else f"pid {left.pid}"
    what = "DataLoader worker " if left.kind is Kind.WORKER else ""
    still = "still works" if works(left, processes) else "is left over" if left.proven else "may be left over"
    ports = f", and port{'' if len(left.ports) == 1 else 's'} {listed(left.ports, 3)}" if left.ports else ""
    since = f", {age(left.age)} old" if left.age else ""
    return Finding(
        summary=f"{what}{named} {still} without its launcher{since}: it holds {human(left.memory)}{ports}"[:160],
        cause=why_left(left),
        evidence=(
            Evidence(f"{left.what[:200]}; parent {process.parent if process else '?'}", "/proc"),
            *(Evidence(f"it listens on port {port}", "/proc/net/tcp") for port in left.ports[:4]),
        ),
        fixes=(end_leftover(left),),
        severity=FAIL if left.proven else WARN,
    )


@check("job-settings-differ", severity=WARN)
def job_settings_differ(processes: Processes) -> Iterator[Finding]:
    """A setting differs between the ranks of one running job, where all must have the same.

    ## What breaks
    Ranks with another NCCL_ALGO or NCCL_PROTO hang in the first collective; with another WORLD_SIZE or MASTER_PORT they wait
    for each other at different places until the timeout.

    ## Why
    The script sets variables only `if rank == 0`, a wrapper sets them by host or by local rank, or ranks were started by hand
    from two shells.

    ## Fix
    Set it once, where the launcher is started: all its ranks inherit it.
    """
    jobs = [job for job in own_jobs(processes) if len(job.ranks) > 1]
    requires(jobs, "no training job of several ranks runs on this host")
    closed: list[Process] = []
    for job in jobs:
        seen = [one for one in job.ranks if not isinstance(one.settings, Unknown) and not one.forked]
        closed += [one for one in job.ranks if isinstance(one.settings, Unknown) and one.state != "Z"]
        # What forked ranks set after the fork, nobody can see: all show their parent's.
        if len(seen) > 1 and (found := differences(seen)):
            yield _differ(job, seen, found)
    if closed:
        raise NotKnown(f"the settings of {who(closed[:4])} can't be read")
    requires(
        any(not one.forked for job in jobs for one in job.ranks),
        "the ranks were forked, and show their parent's settings",
    )


def _differ(job: Job, ranks: Sequence[Process], found: Sequence[Difference]) -> Finding:
    fatal = [one for one in found if one.fatal]
    first = (fatal or list(found))[0]
    names = listed((one.name for one in found), 4)
    one_of = f"{first.name}={_shown(first.value)} on {ranks_named(first.ranks)}, {_shown(first.usual)} on the others"
    summary = f"Job {job.name}: {one_of}" if len(found) == 1 else f"The ranks of job {job.name} differ in {names}"
    return Finding(
        summary=summary
        if len(summary) <= 160
        else f"The ranks of job {job.name} differ in {plural(len(found), 'setting')}",
        cause=" ".join(dict.fromkeys(f"{one.name}: {one.why}." for one in (fatal or found))),
        evidence=tuple(Evidence(f"{one.name}: {_values(one.values)}", "/proc/PID/environ") for one in found[:8]),
        fixes=(
            Fix(
                f"Set the same for all ranks before the launcher is started, if what {ranks_named(places(ranks)[:1])} and most "
                "have is right",
                tuple(_line(one) for one in found if one.settable),
            ),
        ),
        severity=FAIL if fatal else WARN,
    )


def _shown(value: str | None) -> str:
    return "not set" if value is None else value if len(value) <= 40 else f"{value[:37]}..."


def _values(values: Mapping[str | None, tuple[int, ...]]) -> str:
    return "; ".join(f"{_shown(value)} on {ranks_named(ranks)}" for value, ranks in values.items())


def _line(one: Difference) -> str:
    return f"unset {one.name}" if one.usual is None else f"export {one.name}={shlex.quote(one.usual)}"
