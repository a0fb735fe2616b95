"""Contexts that a running job has on GPUs where it needs none, told apart by who holds them and how much. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, ProcessRole
from ddpdoctor.processes.gpu_holders import BARE_CONTEXT, HeldGpu, main_gpu, of_process, shared_gpus
from ddpdoctor.processes.jobs import TrainingJob


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
    return tuple(_extra(job, held, gpus))


def _extra(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> Iterator[Extra]:
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
