"""What stands out among the ranks of a running job: missing, doubled, dead, stopped, orphaned, or not where they belong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN
from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.processes.job_words import ENDED, Oddity, Remark, places, who
from ddpdoctor.processes.jobs import TrainingJob, asked_for, by_hand, lone_setting, perhaps_of_several_runs
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.ranks_on_gpus import gpu_remarks
from ddpdoctor.report.reported_leftovers import LeftoverKind

STOPPED = "T"
HELD_BY_A_DEBUGGER = "t"

SETTLED_SECONDS = 10.0
"""A job whose youngest rank is younger may still be starting the others."""


def remarks_on(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> tuple[Remark, ...]:
    """What stands out, worst first; () where all is as it should be as far as this user can see."""
    found = [*_not_running(job), *_orphaned(job, processes, gpus), *gpu_remarks(job, processes, gpus)]
    return tuple(sorted(found, key=lambda one: one.severity.rank))


def _not_running(job: TrainingJob) -> Iterator[Remark]:
    yield from _missing(job)
    yield from _alone(job)
    yield from _beyond(job)
    yield from _fewer(job)
    yield from _doubled(job)
    yield from _ended(job)
    yield from _stopped(job)


def _missing(job: TrainingJob) -> Iterator[Remark]:
    if job.missing and min(rank.age for rank in job.ranks) >= SETTLED_SECONDS:
        be = "is" if len(job.missing) == 1 else "are"
        yield Remark(
            Oddity.MISSING,
            WARN,
            ranks=job.missing,
            text=f"{ranks_named(job.missing)} {be} missing: {len(job.expected)} ranks belong on this host, and no process "
            f"that this user can see is {'it' if len(job.missing) == 1 else 'one of them'}",
        )


def _alone(job: TrainingJob) -> Iterator[Remark]:
    """One that keeps a store for others, and has been started as if a launcher had started these."""
    first = job.ranks[0]
    waits = len(job.ranks) == 1 and job.world_size is None and not job.launchers
    left = lone_setting(first)
    if waits and left and first.age >= SETTLED_SECONDS and first.state not in ENDED:
        yield Remark(
            Oddity.ALONE,
            WARN,
            ranks=places([first]),
            pids=(first.pid,),
            text=f"{who([first])} is alone, and keeps a store for others: {left} was set where it was started, and no launcher "
            "set it, so Lightning starts no other ranks and waits for them",
        )


def _beyond(job: TrainingJob) -> Iterator[Remark]:
    """Ranks that count on from a node before theirs, where the world has no room for that node's."""
    alive = [rank for rank in job.ranks if rank.state not in ENDED and rank.place and (rank.place.node_rank or 0) > 0]
    beyond = [
        process
        for process in alive
        if process.place and process.place.world_size and process.place.rank >= process.place.world_size
    ]
    if beyond and beyond[0].place:
        node = beyond[0].place.node_rank
        yield Remark(
            Oddity.BEYOND,
            WARN,
            ranks=places(beyond),
            pids=tuple(process.pid for process in alive),
            text=f"{who(beyond)}: there is no such rank among {job.world_size}, so that they wait for ever; node rank {node} "
            "(NODE_RANK or GROUP_RANK) was left in the shell where they were started, it seems",
        )


def _fewer(job: TrainingJob) -> Iterator[Remark]:
    """accelerate heeds --num_processes on several GPUs alone: with --cpu it starts one process, without a word."""
    asked = asked_for(job.launcher)
    if asked and job.world_size and asked.processes > job.world_size and not job.missing:
        yield Remark(
            Oddity.FEWER,
            WARN,
            ranks=places(job.ranks),
            pids=tuple(rank.pid for rank in job.ranks),
            text=f"{plural(asked.processes, 'process', 'processes')} were asked for ({asked.source}), and accelerate started "
            f"{job.world_size}, {who(job.ranks)}: it starts several on GPUs alone",
        )


def _doubled(job: TrainingJob) -> Iterator[Remark]:
    unclear = perhaps_of_several_runs(job)
    for rank in job.doubled:
        alike = [one for one in job.ranks if one.place and one.place.rank == rank and one.state not in ENDED]
        if len(alike) > 1 and not any(process.forked for process in alike):
            if rank in unclear:
                yield Remark(
                    Oddity.SEVERAL_RUNS,
                    INFO,
                    ranks=(rank,),
                    pids=tuple(process.pid for process in alike),
                    text=f"pids {listed(one.pid for one in alike)} are each rank {rank}: perhaps of several runs that were "
                    "started together; where they meet can't be seen, so which ranks are one job can't be told",
                )
                continue
            yield Remark(
                Oddity.DOUBLED,
                FAIL,
                ranks=(rank,),
                pids=tuple(process.pid for process in alike),
                text=f"rank {rank} is there {'twice' if len(alike) == 2 else f'{len(alike)} times'}: "
                f"pids {listed(one.pid for one in alike)} say that they are it",
            )


def _ended(job: TrainingJob) -> Iterator[Remark]:
    dead = [rank for rank in job.ranks if rank.state in ENDED or rank.ended_threads]
    zombies = [process for process in dead if process.state in ENDED]
    if zombies:
        parents = sorted({zombie.parent for zombie in zombies})
        yield Remark(
            Oddity.DEAD,
            WARN,
            ranks=places(zombies),
            pids=tuple(zombie.pid for zombie in zombies),
            text=f"{who(zombies)}: ended, state Z, and pid {listed(parents)} that started it has not taken note",
        )
    ending = [process for process in dead if process not in zombies]
    if ending:
        yield Remark(
            Oddity.ENDING,
            WARN,
            ranks=places(ending),
            pids=tuple(process.pid for process in ending),
            text=f"{who(ending)}: being taken down; the main thread has ended and {listed(_waits(ending)) or 'others go on'}",
        )


def _waits(processes: Sequence[Process]) -> list[str]:
    return sorted({f"others wait in {process.waits_in}" for process in processes if process.waits_in})


def _stopped(job: TrainingJob) -> Iterator[Remark]:
    alive = [rank for rank in job.ranks if rank.state not in ENDED]
    stopped = [process for process in alive if process.state == STOPPED]
    if stopped:
        whole = len(stopped) == len(alive)
        rest = len(alive) - len(stopped)
        still_there = f"{plural(rest, 'other')} {'is' if rest == 1 else 'are'}n't stopped"
        others = "all ranks of the job on this host" if whole else still_there
        yield Remark(
            Oddity.STOPPED,
            # A scheduler that suspends a job stops all of it, and continues it.
            WARN if whole else FAIL,
            ranks=places(stopped),
            pids=tuple(process.pid for process in stopped),
            text=f"{who(stopped)}: stopped by a signal (SIGSTOP or Ctrl-Z), state T; {others}",
        )
    halted = [launcher for launcher in job.launchers if launcher.state == STOPPED]
    if halted and not stopped:
        yield Remark(
            Oddity.STOPPED,
            WARN,
            pids=tuple(process.pid for process in halted),
            text=f"the launcher, pid {listed(one.pid for one in halted)}, is stopped, state T: it notices no rank that fails",
        )
    traced = [
        process
        for process in alive
        if process.state != STOPPED and (process.tracer or process.state == HELD_BY_A_DEBUGGER)
    ]
    if traced:
        held = any(process.state == HELD_BY_A_DEBUGGER for process in traced)
        tracers = listed(sorted({process.tracer for process in traced if process.tracer})) or "that is not told"
        yield Remark(
            Oddity.TRACED,
            WARN if held else INFO,
            ranks=places(traced),
            pids=tuple(process.pid for process in traced),
            text=f"{who(traced)}: {'held' if held else 'watched'} by a debugger, pid {tracers}",
        )


def _orphaned(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Remark]:
    left = {leftover.identity for leftover in left_by_processes(processes, gpus) if leftover.kind is LeftoverKind.RANK}
    found = [rank for rank in job.ranks if rank.identity in left]
    orphans = [process for process in found if not by_hand(process)]
    if orphans:
        yield Remark(
            Oddity.ORPHANED,
            WARN,
            ranks=places(orphans),
            pids=tuple(orphan.pid for orphan in orphans),
            text=f"{who(orphans)}: orphaned; what started {'it' if len(orphans) == 1 else 'them'} is gone",
        )
    alone = [process for process in found if by_hand(process)]
    if alone:
        yield Remark(
            Oddity.BY_HAND,
            INFO,
            ranks=places(alone),
            pids=tuple(process.pid for process in alone),
            text=f"{who(alone)}: started by hand, by all that the settings tell; no launcher looks after "
            f"{'it' if len(alone) == 1 else 'them'}",
        )
