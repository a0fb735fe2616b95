"""Which ranks of a job are not on the GPU where they belong, or not alone on it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.knowledge.gpu_assignment import own_gpu
from ddpdoctor.processes.gpu_holders import BARE_CONTEXT, HeldGpu, holdings, main_gpu, of_process, shared_gpus
from ddpdoctor.processes.job_words import ENDED, Oddity, Remark, places, who
from ddpdoctor.processes.jobs import TrainingJob

STARTED_SECONDS = 60.0
"""A rank that is younger may be about to use its GPU: the import of torch takes long on a shared file system."""


def gpu_remarks(job: TrainingJob, processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Remark]:
    """Ranks that share a GPU, that are on another one than their own, or on none."""
    if isinstance(gpus, Unknown) or not gpus.answering:
        return
    alive = [rank for rank in job.ranks if rank.state not in ENDED]
    held = holdings(gpus, processes)
    by_pid = {process.pid: of_process(process, held) for process in alive}
    yield from _shared(job, held, gpus)
    yield from _extra(job, held, gpus)
    yield from _elsewhere(alive, by_pid, gpus)
    yield from _on_the_cpu(alive, by_pid, gpus)


def _shared(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> Iterator[Remark]:
    for shared_gpu in shared_gpus(job, held, gpus):
        yield Remark(
            Oddity.SHARED_GPU,
            FAIL,
            ranks=places(shared_gpu.ranks),
            pids=tuple(rank.pid for rank in shared_gpu.ranks),
            text=f"{who(shared_gpu.ranks)} share GPU {shared_gpu.gpu.index}",
        )


def _extra(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> Iterator[Remark]:
    pids = {extra_context.process.pid for extra_context in extra_contexts(job, held, gpus)}
    extra = [rank for rank in job.ranks if rank.pid in pids]
    if extra:
        have = "has a context on a GPU that isn't its own"
        if len(extra) > 1:
            have = "have contexts on GPUs that aren't their own"
        yield Remark(
            Oddity.EXTRA_CONTEXT,
            WARN,
            ranks=places(extra),
            pids=tuple(process.pid for process in extra),
            text=f"{who(extra)} {have}",
        )


def _elsewhere(alive: Sequence[Process], by_pid: Mapping[int, Sequence[HeldGpu]], gpus: Gpus) -> Iterator[Remark]:
    """Of ranks that hold a single GPU: with several, a model is split over them, and any order may be meant."""
    away: list[tuple[Process, int, int]] = []
    for process in alive:
        own, there = own_gpu(process, gpus), {held_gpu.gpu.index for held_gpu in by_pid[process.pid]}
        if own is not None and len(there) == 1 and own not in there:
            away.append((process, there.pop(), own))
    if away:
        said = listed((f"rank {one.place.rank} is on GPU {at}, not {own}" for one, at, own in away if one.place), 4)
        yield Remark(
            Oddity.OTHER_GPU,
            INFO,
            ranks=places(one for one, _, _ in away),
            pids=tuple(one.pid for one, _, _ in away),
            text=f"not on the GPU of the local rank: {said}",
        )


def _on_the_cpu(alive: Sequence[Process], by_pid: Mapping[int, Sequence[HeldGpu]], gpus: Gpus) -> Iterator[Remark]:
    idle = [
        process
        for process in alive
        if not by_pid[process.pid] and process.age >= STARTED_SECONDS and _no_device(process, gpus)
    ]
    if idle:
        there = f"{len(gpus.answering)} GPUs" if len(gpus.answering) > 1 else "a GPU"
        yield Remark(
            Oddity.ON_CPU,
            INFO,
            ranks=places(idle),
            pids=tuple(process.pid for process in idle),
            text=f"{who(idle)}: on the CPU, while this host has {there}",
        )


def _no_device(rank: Process, gpus: Gpus) -> bool:
    """It has no GPU's device file open; where that can't be seen, NVML must know all who hold one."""
    if gpus.vendor not in ("nvidia", None):
        return False
    if not isinstance(rank.devices, Unknown):
        return not rank.devices
    return all(
        not isinstance(gpu.holders, Unknown) and all(holder.pid for holder in gpu.holders) for gpu in gpus.answering
    )


# --- contexts on GPUs where the job needs none -----------------------------------------------------------------------------


class ExtraKind(str, Enum):
    """What put it there."""

    BARE = "a context without tensors"
    TENSORS = "tensors"
    WORKER = "a DataLoader worker"


class Extra(msgspec.Struct, frozen=True):
    """process has a context on a GPU on which another rank of its job works. main: the GPU on which itself, or the worker's
    rank, works."""

    process: Process
    held: HeldGpu
    main: int
    kind: ExtraKind


def extra_contexts(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> tuple[Extra, ...]:
    """Those of one job. A GPU on which no other rank works belongs to a model that is split over several."""
    if any(shared_gpu.unset for shared_gpu in shared_gpus(job, held, gpus)):
        return ()  # Then it is missing-set-device that speaks.
    return tuple(_extra_of_job(job, held, gpus))


def _extra_of_job(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> Iterator[Extra]:
    main = {one.pid: at for one in job.ranks if (at := main_gpu(one, held, gpus)) is not None}
    for rank in job.ranks:
        others = {at for pid, at in main.items() if pid != rank.pid}
        if rank.pid not in main:
            continue
        for held_gpu in of_process(rank, held):
            if held_gpu.gpu.index != main[rank.pid] and held_gpu.gpu.index in others:
                yield Extra(rank, held_gpu, main[rank.pid], _kind(held_gpu))
        for worker in job.others:
            if worker.parent == rank.pid and worker.role is ProcessRole.WORKER:
                for held_gpu in of_process(worker, held):
                    if held_gpu.gpu.index != main[rank.pid]:
                        yield Extra(worker, held_gpu, main[rank.pid], ExtraKind.WORKER)


def _kind(one: HeldGpu) -> ExtraKind:
    """Where NVML doesn't tell how much, it is what is seen most."""
    bare = isinstance(one.holder.memory, Unknown) or one.memory < BARE_CONTEXT
    return ExtraKind.BARE if bare else ExtraKind.TENSORS
