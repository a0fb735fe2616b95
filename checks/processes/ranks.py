"""Ranks of running jobs that have lost their launcher, or differ from each other in their settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import capital, clip_middle, human, listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.processes.gpu_holders import left_on_gpus, own_jobs, own_jobs_of_several, require_known_settings, works
from ddpdoctor.processes.gpu_holders_words import end_leftovers, may_be_started_by_hand, why_left
from ddpdoctor.processes.job_settings import Difference, comparable, differences
from ddpdoctor.processes.job_words import Oddity, age, who
from ddpdoctor.processes.jobs import TrainingJob, jobs_of, perhaps_of_several_runs
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.report.reported_leftovers import LeftoverKind


@check(
    "orphaned-rank",
    severity=WARN,
    owner=Owner.USER,
    stands_for=(Oddity.ORPHANED, Oddity.BY_HAND, LeftoverKind.RANK, LeftoverKind.WORKER, LeftoverKind.HELPER),
)
def orphaned_rank(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """A rank still runs although its launcher is gone.

    ## What breaks
    It waits for ranks that will never come, and keeps its memory, its GPU and its port: the next run fails with "Address
    already in use" or out of memory.

    ## Why
    torchrun was killed by SIGKILL (the OOM killer, a scheduler, `kill -9`), or the container's first process ended, and nobody
    told its ranks. torchrun that ends in an orderly way ends them as well. Ranks that were started by hand (nohup, setsid)
    never had a launcher: of them it is only good to know.

    ## Fix
    `ddpdoctor zombies` lists them with what each holds, and ends those that are proven to be left over.
    """
    told = set()
    if isinstance(gpus, Gpus):
        told = {leftover.identity for left in left_on_gpus(gpus, processes) for leftover in left.leftovers}
    orphans = [
        leftover
        for leftover in left_by_processes(processes, gpus)
        if leftover.kind in (LeftoverKind.RANK, LeftoverKind.WORKER) and leftover.identity not in told
    ]
    hands = {orphan.identity for orphan in orphans if may_be_started_by_hand([orphan], processes)}
    launched = [orphan for orphan in orphans if orphan.identity not in hands]
    for group in grouped(launched, lambda orphan: orphan.group_key).values():
        yield _orphans(group, processes)
    for job in jobs_of(processes):
        if ranks := [rank for rank in job.ranks if rank.identity in hands]:
            yield _by_hand(job, ranks)
    if not orphans and not told and processes.closed and processes.count == processes.closed:
        leave_untested("this user may not look into any process")
    require_known_settings(own_jobs(processes))


def _orphans(group: Sequence[Leftover], processes: Processes) -> Finding:
    first, one = group[0], len(group) == 1
    some = [process for left in group if (process := processes.get(left.pid))]
    named = f"{'DataLoader workers: ' if first.kind is LeftoverKind.WORKER else ''}{who(some)}"
    if any(works(left, processes) for left in group):
        state = "may still be at work"
    else:
        state = ("is left over" if one else "are left over") if first.proven else "may be left over"
    owner = "a launcher" if first.kind is LeftoverKind.RANK else "its rank" if one else "their rank"
    ports = sorted({port for left in group for port in left.ports})
    held = human(sum(left.memory for left in group))
    word = "port" if len(ports) == 1 else "ports"
    keeps = f"{'holds' if one else 'hold'} {held}{f' and {word} {listed(ports, 3)}' if ports else ''}"
    return Finding.of(
        f"{capital(named)} {state} without {owner}, and {keeps}",
        (
            Evidence(f"{left.what[:200]}; {age(left.age or 0.0)} old, of {left.owner}{_but(left)}", "/proc")
            for left in group[:8]
        ),
        end_leftovers(group),
        cause=why_left(first),
        severity=FAIL if any(left.fails for left in group) else WARN,
    )


def _but(left: Leftover) -> str:
    """Why it isn't certain: the parent, say, that may have started it."""
    return f"; but {left.doubts[0]}" if left.doubts else ""


def _by_hand(job: TrainingJob, ranks: Sequence[Process]) -> Finding:
    one, pids = len(ranks) == 1, [str(rank.pid) for rank in ranks]
    return Finding.of(
        f"{capital(who(ranks))} {'runs' if one else 'run'} without a launcher, as if started by hand, and "
        f"{'holds' if one else 'hold'} {human(sum(rank.memory for rank in ranks))}",
        (
            Evidence(f"pid {rank.pid}: {rank.command[:200]}; {age(rank.age)} old, of {rank.user or rank.uid}", "/proc")
            for rank in ranks[:8]
        ),
        Fix(
            "Nothing, if you started that; else see whether it goes on, and what speaks against ending it",
            (f"ddpdoctor jobs --hang {shlex.quote(job.name)}", f"ddpdoctor zombies {' '.join(pids)}"),
        ),
        cause=f"Whoever started {'it' if one else 'them'} is gone, as after nohup or setsid, and nothing in the settings tells of "
        "a launcher that would be missing. Whether the run is over, only you can tell.",
        severity=INFO,
    )


@check("job-settings-differ", severity=WARN, owner=Owner.USER)
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
    jobs = own_jobs_of_several(processes)
    closed: list[Process] = []
    compared = False
    for job in jobs:
        if perhaps_of_several_runs(job):
            continue
        seen = comparable(job.ranks)
        compared |= len(seen) > 1
        closed += [rank for rank in job.ranks if isinstance(rank.settings, Unknown) and not rank.has_ended]
        if len(seen) > 1 and (found := differences(seen)):
            yield _differ(job, found)
    if closed:
        leave_untested(f"the settings of {who(closed[:4])} can't be read")
    requires(compared, "the ranks set for themselves, or were forked with, what can't be seen from outside")


def _differ(job: TrainingJob, found: Sequence[Difference]) -> Finding:
    fatal = [difference for difference in found if difference.fatal]
    first = (fatal or list(found))[0]
    names = listed((difference.name for difference in found), 4)
    one_of = f"{first.name}={_shown(first.value)} on {ranks_named(first.ranks)}, {_shown(first.usual)} on the others"
    summary = f"Job {job.name}: {one_of}" if len(found) == 1 else f"Job {job.name}: its ranks differ in {names}"
    return Finding.of(
        summary if len(summary) <= 160 else f"Job {job.name}: its ranks differ in {plural(len(found), 'setting')}",
        (Evidence(f"{difference.name}: {_values(difference.values)}", "/proc/PID/environ") for difference in found[:8]),
        Fix(
            "Set the same for all ranks before the launcher is started, as most have it, if that is right",
            tuple(_line(difference) for difference in found if difference.is_settable),
        ),
        cause=" ".join(dict.fromkeys(f"{difference.name}: {difference.why}." for difference in (fatal or found))),
        severity=FAIL if fatal else WARN,
    )


def _shown(value: str | None) -> str:
    return "not set" if value is None else clip_middle(value, 40)


def _values(values: Mapping[str | None, tuple[int, ...]]) -> str:
    return "; ".join(f"{_shown(value)} on {ranks_named(ranks)}" for value, ranks in values.items())


def _line(difference: Difference) -> str:
    return (
        f"unset {shlex.quote(difference.name)}"
        if difference.usual is None
        else f"export {shlex.quote(difference.name)}={shlex.quote(difference.usual)}"
    )
