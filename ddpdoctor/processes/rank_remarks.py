"""What stands out among the ranks of a running job: missing, doubled, dead, stopped, orphaned, or not on the GPU where they belong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.knowledge.gpu_assignment import own_gpu
from ddpdoctor.processes.gpu_holders import HeldGpu, extra_contexts, holdings, of_process, shared_gpus
from ddpdoctor.processes.job_words import Oddity, Remark, places, who
from ddpdoctor.processes.jobs import TrainingJob, asked_for, is_started_by_hand, lone_setting, perhaps_of_several_runs
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.report.reported_leftovers import LeftoverKind

STOPPED = "T"
HELD_BY_A_DEBUGGER = "t"

SETTLED_SECONDS = 10.0
"""A job whose youngest rank is younger may still be starting the others."""
STARTED_SECONDS = 60.0
"""A rank that is younger may be about to use its GPU: the import of torch takes long on a shared file system."""


def remarks_on(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> tuple[Remark, ...]:
    """List what stands out, worst first; () where all is as it should be as far as this user can see."""
    found = [*_on_states(job), *_on_orphans(job, processes, gpus), *_on_gpus(job, processes, gpus)]
    return tuple(sorted(found, key=lambda remark: remark.severity.rank))


def _remark(oddity: Oddity, severity: Severity, processes: Sequence[Process], text: str) -> Remark:
    pids = tuple(process.pid for process in processes)
    return Remark(oddity, severity, ranks=places(processes), pids=pids, text=text)


# --- ranks that don't run, or too many that do ------------------------------------------------------------------------------


def _on_states(job: TrainingJob) -> Iterator[Remark]:
    alive = [rank for rank in job.ranks if not rank.has_ended]
    yield from _on_missing(job)
    yield from _on_lone_rank(job)
    yield from _on_ranks_beyond_the_world(job, alive)
    yield from _on_fewer_than_asked(job)
    yield from _on_doubled(job, alive)
    yield from _on_ended(job)
    yield from _on_stopped(job, alive)


def _on_missing(job: TrainingJob) -> Iterator[Remark]:
    if job.missing and min(rank.age for rank in job.ranks) >= SETTLED_SECONDS:
        be, them = ("is", "it") if len(job.missing) == 1 else ("are", "one of them")
        yield Remark(
            Oddity.MISSING,
            WARN,
            ranks=job.missing,
            text=f"{ranks_named(job.missing)} {be} missing: {len(job.expected)} ranks belong on this host, and no process "
            f"that this user can see is {them}",
        )


def _on_lone_rank(job: TrainingJob) -> Iterator[Remark]:
    """Remark on one that keeps a store for others, and has been started as if a launcher had started these."""
    first = job.ranks[0]
    waits = len(job.ranks) == 1 and job.world_size is None and not job.launchers
    setting = lone_setting(first)
    if waits and setting and first.age >= SETTLED_SECONDS and not first.has_ended:
        text = (
            f"{who([first])} is alone, and keeps a store for others: {setting} was set where it was started, and no launcher "
            "set it, so Lightning starts no other ranks and waits for them"
        )
        yield _remark(Oddity.ALONE, WARN, [first], text)


def _on_ranks_beyond_the_world(job: TrainingJob, alive: Sequence[Process]) -> Iterator[Remark]:
    """Remark on ranks that count on from a node before theirs, where the world has no room for that node's."""
    of_later_nodes = [rank for rank in alive if rank.place and (rank.place.node_rank or 0) > 0]
    beyond = [
        rank
        for rank in of_later_nodes
        if rank.place and rank.place.world_size and rank.place.rank >= rank.place.world_size
    ]
    if beyond and beyond[0].place:
        yield Remark(
            Oddity.BEYOND,
            WARN,
            ranks=places(beyond),
            pids=tuple(rank.pid for rank in of_later_nodes),
            text=f"{who(beyond)}: there is no such rank among {job.world_size}, so that they wait for ever; node rank "
            f"{beyond[0].place.node_rank} (NODE_RANK or GROUP_RANK) was left in the shell where they were started, it seems",
        )


def _on_fewer_than_asked(job: TrainingJob) -> Iterator[Remark]:
    """Remark on accelerate, which heeds --num_processes on several GPUs alone: with --cpu it starts one process, without a word."""
    asked = asked_for(job.launcher)
    if asked and job.world_size and asked.processes > job.world_size and not job.missing:
        text = (
            f"{plural(asked.processes, 'process', 'processes')} were asked for ({asked.source}), and accelerate started "
            f"{job.world_size}, {who(job.ranks)}: it starts several on GPUs alone"
        )
        yield _remark(Oddity.FEWER, WARN, job.ranks, text)


def _on_doubled(job: TrainingJob, alive: Sequence[Process]) -> Iterator[Remark]:
    unclear = perhaps_of_several_runs(job)
    for rank in job.doubled:
        alike = [process for process in alive if process.place and process.place.rank == rank]
        if len(alike) < 2 or any(process.forked for process in alike):
            continue
        pids = listed(process.pid for process in alike)
        if rank in unclear:
            text = (
                f"pids {pids} are each rank {rank}: perhaps of several runs that were started together; where they meet "
                "can't be seen, so which ranks are one job can't be told"
            )
            yield _remark(Oddity.SEVERAL_RUNS, INFO, alike, text)
        else:
            times = "twice" if len(alike) == 2 else f"{len(alike)} times"
            yield _remark(
                Oddity.DOUBLED, FAIL, alike, f"rank {rank} is there {times}: pids {pids} say that they are it"
            )


def _on_ended(job: TrainingJob) -> Iterator[Remark]:
    if zombies := [rank for rank in job.ranks if rank.has_ended]:
        parents = listed(sorted({zombie.parent for zombie in zombies}))
        text = f"{who(zombies)}: ended, state Z, and pid {parents} that started it has not taken note"
        yield _remark(Oddity.DEAD, WARN, zombies, text)
    if ending := [rank for rank in job.ranks if rank.ended_threads and not rank.has_ended]:
        waits = sorted({f"others wait in {rank.waits_in}" for rank in ending if rank.waits_in})
        text = f"{who(ending)}: being taken down; the main thread has ended and {listed(waits) or 'others go on'}"
        yield _remark(Oddity.ENDING, WARN, ending, text)


def _on_stopped(job: TrainingJob, alive: Sequence[Process]) -> Iterator[Remark]:
    if stopped := [rank for rank in alive if rank.state == STOPPED]:
        rest = len(alive) - len(stopped)
        still_there = f"{plural(rest, 'other')} {'is' if rest == 1 else 'are'}n't stopped"
        others = still_there if rest else "all ranks of the job on this host"
        text = f"{who(stopped)}: stopped by a signal (SIGSTOP or Ctrl-Z), state T; {others}"
        # A scheduler that suspends a job stops all of it, and continues it.
        yield _remark(Oddity.STOPPED, FAIL if rest else WARN, stopped, text)
    elif halted := [launcher for launcher in job.launchers if launcher.state == STOPPED]:
        pids = listed(launcher.pid for launcher in halted)
        text = f"the launcher, pid {pids}, is stopped, state T: it notices no rank that fails"
        yield Remark(Oddity.STOPPED, WARN, pids=tuple(launcher.pid for launcher in halted), text=text)
    traced = [rank for rank in alive if rank.state != STOPPED and (rank.tracer or rank.state == HELD_BY_A_DEBUGGER)]
    if traced:
        held = any(rank.state == HELD_BY_A_DEBUGGER for rank in traced)
        tracers = listed(sorted({rank.tracer for rank in traced if rank.tracer})) or "that is not told"
        text = f"{who(traced)}: {'held' if held else 'watched'} by a debugger, pid {tracers}"
        yield _remark(Oddity.TRACED, WARN if held else INFO, traced, text)


def _on_orphans(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Remark]:
    left = {leftover.identity for leftover in left_by_processes(processes, gpus) if leftover.kind is LeftoverKind.RANK}
    found = [rank for rank in job.ranks if rank.identity in left]
    if orphans := [rank for rank in found if not is_started_by_hand(rank)]:
        text = f"{who(orphans)}: orphaned; what started {'it' if len(orphans) == 1 else 'them'} is gone"
        yield _remark(Oddity.ORPHANED, WARN, orphans, text)
    if alone := [rank for rank in found if is_started_by_hand(rank)]:
        them = "it" if len(alone) == 1 else "them"
        text = f"{who(alone)}: started by hand, by all that the settings tell; no launcher looks after {them}"
        yield _remark(Oddity.BY_HAND, INFO, alone, text)


# --- ranks and GPUs ---------------------------------------------------------------------------------------------------------


def _on_gpus(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Remark]:
    """Remark on ranks that share a GPU, that are on another one than their own, or on none."""
    if isinstance(gpus, Unknown) or not gpus.answering:
        return
    alive = [rank for rank in job.ranks if not rank.has_ended]
    held = holdings(gpus, processes)
    held_by = {rank.pid: of_process(rank, held) for rank in alive}
    for shared in shared_gpus(job, held, gpus):
        yield _remark(Oddity.SHARED_GPU, FAIL, shared.ranks, f"{who(shared.ranks)} share GPU {shared.gpu.index}")
    pids = {context.process.pid for context in extra_contexts(job, held, gpus)}
    if extra := [rank for rank in job.ranks if rank.pid in pids]:
        have = "has a context on a GPU that isn't its own"
        if len(extra) > 1:
            have = "have contexts on GPUs that aren't their own"
        yield _remark(Oddity.EXTRA_CONTEXT, WARN, extra, f"{who(extra)} {have}")
    yield from _on_other_gpus(alive, held_by, gpus)
    yield from _on_the_cpu(alive, held_by, gpus)


def _on_other_gpus(alive: Sequence[Process], held_by: Mapping[int, Sequence[HeldGpu]], gpus: Gpus) -> Iterator[Remark]:
    """Remark on ranks that hold a single GPU, and not their own: with several, a model is split over them, and any order may be
    meant."""
    away: list[Process] = []
    words: list[str] = []
    for rank in alive:
        own, held = own_gpu(rank, gpus), {held_gpu.gpu.index for held_gpu in held_by[rank.pid]}
        if own is not None and len(held) == 1 and own not in held:
            away.append(rank)
            if rank.place:
                words.append(f"rank {rank.place.rank} is on GPU {held.pop()}, not {own}")
    if away:
        yield _remark(Oddity.OTHER_GPU, INFO, away, f"not on the GPU of the local rank: {listed(words, 4)}")


def _on_the_cpu(alive: Sequence[Process], held_by: Mapping[int, Sequence[HeldGpu]], gpus: Gpus) -> Iterator[Remark]:
    idle = [
        rank for rank in alive if not held_by[rank.pid] and rank.age >= STARTED_SECONDS and _has_no_device(rank, gpus)
    ]
    if idle:
        there = f"{len(gpus.answering)} GPUs" if len(gpus.answering) > 1 else "a GPU"
        yield _remark(Oddity.ON_CPU, INFO, idle, f"{who(idle)}: on the CPU, while this host has {there}")


def _has_no_device(rank: Process, gpus: Gpus) -> bool:
    """Whether it has no GPU's device file open; where that can't be seen, NVML must know all who hold one."""
    if gpus.vendor not in ("nvidia", None):
        return False
    if not isinstance(rank.devices, Unknown):
        return not rank.devices
    return all(
        not isinstance(gpu.holders, Unknown) and all(holder.pid for holder in gpu.holders) for gpu in gpus.answering
    )
