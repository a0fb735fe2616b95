"""Joins what NVML lists on each GPU with the processes of this host: who holds it, and which rank works on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import human
from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown, known
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.gpu_assignment import own_gpu
from ddpdoctor.processes.jobs import ELASTIC_RUN, TrainingJob, jobs_of, setting
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.signs_of_life import signs_of_life
from ddpdoctor.report.reported_leftovers import LeftoverKind

BARE_CONTEXT_BYTES = 1 << 30
"""A context without any tensor takes 300 to 700 MB, by GPU and by the kernels that were loaded."""

RESERVED_BYTES = 1 << 30
"""So much the driver, and what its processes share, may take without an owner: some 600 MB were seen on an idle H100."""

RESERVED_SHARE = 0.02
"""The same, as a share of the GPU's memory, where that is more: page tables and ECC grow with it."""

NO_OWN_JOB = "no training job of this user runs on this host"

SETTINGS_OF_A_JOB = ("SLURM_JOB_ID", ELASTIC_RUN)


class HeldGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has on one GPU."""

    gpu: Gpu
    holder: GpuHolder
    process: Process | None = None
    """None where this user can't see it."""

    @property
    def memory(self) -> int:
        """In bytes; 0 where NVML doesn't tell."""
        return 0 if isinstance(self.holder.memory, Unknown) else self.holder.memory

    @property
    def amount(self) -> str:
        """In words: "31.2 GiB"."""
        return "an unknown amount" if isinstance(self.holder.memory, Unknown) else human(self.memory)


def holdings(gpus: Gpus, processes: Processes) -> tuple[HeldGpu, ...]:
    """List everything that is held on the GPUs that answer, as far as NVML tells."""
    return tuple(
        HeldGpu(gpu=gpu, holder=holder, process=process_of(holder, processes))
        for gpu in gpus.answering
        if not isinstance(gpu.holders, Unknown)
        for holder in gpu.holders
    )


def held_by_nobody(gpus: Gpus, processes: Processes) -> tuple[HeldGpu, ...]:
    """List what NVML says that processes hold which this host doesn't have: the driver could not take it back, or they are just ending.
    Empty where not all processes can be seen."""
    if processes.unseen:
        return ()
    return tuple(
        holding
        for holding in holdings(gpus, processes)
        if holding.holder.pid and not holding.process and holding.memory >= RESERVED_BYTES
    )


def process_of(holder: GpuHolder, processes: Processes) -> Process | None:
    """Find the process of that holder; None where it can't be seen.

    In a container NVML may tell pids of the host: a process that happens to have the same one here is another.
    """
    found = processes.get(holder.pid) if holder.pid else None
    if found is None or not processes.unseen or found.has_ended:
        return found
    touches = isinstance(found.devices, Unknown) or found.devices or found.marks or found.role is not ProcessRole.OTHER
    return found if touches else None


def require_known_holders(gpus: Iterable[Gpu]) -> None:
    """Make sure that it is known who holds these GPUs, before a check says that nobody does wrongly.

    Raises:
        NotKnown: NVML doesn't tell who holds one of them.
    """
    for gpu in gpus:
        if not gpu.lost and isinstance(gpu.holders, Unknown):
            raise NotKnown(f"who holds GPU {gpu.index} is not known: {gpu.holders.reason}")


def unowned(gpu: Gpu) -> Maybe[int]:
    """Count the bytes in use that nobody who is listed holds; 0 where it is no more than what the driver keeps for itself."""
    if gpu.lost:
        return Unknown(f"GPU {gpu.index} doesn't answer")
    if gpu.integrated:
        return Unknown("its memory is the host's")
    used, total, holders = gpu.memory_used, gpu.memory_total, gpu.holders
    if isinstance(used, Unknown):
        return used
    if isinstance(total, Unknown):
        return total
    if isinstance(holders, Unknown):
        return holders
    if gpu.mig_enabled is True:
        return Unknown(f"GPU {gpu.index} is in MIG mode, and who is on its slices may be told to root alone")
    if gpu.virtualization in ("host-vgpu", "host-vsga"):
        return Unknown(f"GPU {gpu.index} is lent to virtual machines, whose memory has no process here")
    if any(isinstance(holder.memory, Unknown) for holder in holders):
        return Unknown(f"the driver doesn't tell how much each process holds on GPU {gpu.index}")
    rest = used - sum(holder.memory for holder in holders if not isinstance(holder.memory, Unknown))
    return rest if rest > max(RESERVED_BYTES, RESERVED_SHARE * total) else 0


def is_all_owned(gpu: Gpu) -> bool:
    """Whether it is known of all its memory who holds it, or that nobody does."""
    return not isinstance(unowned(gpu), Unknown)


def is_in_this_job(process: Process, processes: Processes, environment: Maybe[Environment]) -> bool:
    """Whether it is ddpdoctor's own, or belongs to the very job in which ddpdoctor was started."""
    if process.ours:
        return True
    if isinstance(environment, Unknown) or process.uid != processes.uid:
        return False
    return any(
        (own := environment.get(name)) and own != "none" and own == setting(process, name) for name in SETTINGS_OF_A_JOB
    )


def for_this_job(gpus: Gpus, environment: Maybe[Environment]) -> tuple[Gpu, ...]:
    """List the GPUs that a job started here would get as a whole: MIG slices, and what shares the host's memory, are left out."""
    return tuple(
        visible_gpu.gpu
        for visible_gpu in visible_gpus(gpus, environment)
        if visible_gpu.slice is None and visible_gpu.gpu.mig_enabled is not True and not visible_gpu.gpu.integrated
    )


def own_jobs(processes: Processes) -> tuple[TrainingJob, ...]:
    """List the running jobs of this user, root's being all: those whose faults are ours to find."""
    return tuple(
        job for job in jobs_of(processes) if processes.uid == 0 or any(rank.uid == processes.uid for rank in job.ranks)
    )


def require_known_settings(jobs: Iterable[TrainingJob]) -> None:
    """Raises:
    NotKnown: the settings of a rank that runs could not be read.
    """
    for job in jobs:
        for rank in job.ranks:
            if not rank.has_ended:
                known(rank.settings)


def own_jobs_of_several(processes: Processes) -> tuple[TrainingJob, ...]:
    """List those of them that have several ranks.

    Raises:
        NotApplicable: there is none.
    """
    jobs = tuple(job for job in own_jobs(processes) if len(job.ranks) > 1)
    requires(jobs, "no training job of several ranks runs on this host")
    return jobs


def of_process(process: Process, held: Iterable[HeldGpu]) -> tuple[HeldGpu, ...]:
    """List what a process has on which GPUs, the most first; without displays."""
    own = [held_gpu for held_gpu in held if held_gpu.process and held_gpu.process.identity == process.identity]
    contexts = (held_gpu for held_gpu in own if held_gpu.holder.kind != "graphics")
    return tuple(sorted(contexts, key=lambda context: -context.memory))


def main_gpu(rank: Process, held: Iterable[HeldGpu], gpus: Gpus) -> int | None:
    """Tell the GPU on which a rank works: where it holds the most. None where it holds none, or how much isn't told."""
    contexts = of_process(rank, held)
    if len(contexts) < 2:
        return contexts[0].gpu.index if contexts else None
    if any(isinstance(context.holder.memory, Unknown) for context in contexts):
        own = own_gpu(rank, gpus)
        return own if any(context.gpu.index == own for context in contexts) else None
    return contexts[0].gpu.index


def first_gpu(rank: Process, gpus: Gpus) -> int | None:
    """Tell what a rank calls cuda:0, by its settings; None where that can't be told."""
    if isinstance(rank.settings, Unknown):
        return None
    visible = visible_gpus(gpus, Environment(settings=rank.settings))
    return visible[0].gpu.index if visible and visible[0].slice is None else None


class SharedGpu(msgspec.Struct, frozen=True):
    """Ranks of one job that work on the same GPU."""

    gpu: Gpu
    ranks: tuple[Process, ...]
    unset: bool
    """Each of them has a GPU of its own by its local rank, and those whose it isn't are on what they call cuda:0."""


def shared_gpus(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> tuple[SharedGpu, ...]:
    """List the GPUs on which several ranks of the job work. MIG slices and MPS, which share a GPU on purpose, are left out."""
    ranks_on = grouped(job.ranks, lambda rank: main_gpu(rank, held, gpus))
    found = []
    for gpu in gpus.answering:
        ranks = ranks_on.get(gpu.index, [])
        holders = () if isinstance(gpu.holders, Unknown) else gpu.holders
        by_mps = gpu.mps_server or any(holder.kind.startswith("mps") for holder in holders)
        if len(ranks) > 1 and gpu.mig_enabled is not True and not by_mps:
            owners = [own_gpu(rank, gpus) for rank in ranks]
            strays = [rank for rank, own in zip(ranks, owners, strict=True) if own != gpu.index]
            unset = (
                None not in owners
                and len(set(owners)) == len(owners)
                and all(first_gpu(stray, gpus) == gpu.index for stray in strays)
            )
            found.append(SharedGpu(gpu, tuple(ranks), unset))
    return tuple(found)


# --- contexts on GPUs where a job needs none ---------------------------------------------------------------------------------


class ExtraKind(str, Enum):
    """What put it there."""

    BARE = "a context without tensors"
    TENSORS = "tensors"
    WORKER = "a DataLoader worker"


class ExtraContext(msgspec.Struct, frozen=True):
    """A context that a process of a job has on a GPU on which another rank of it works."""

    process: Process
    held: HeldGpu
    main: int
    """The GPU on which the process itself, or the worker's rank, works."""
    kind: ExtraKind


def extra_contexts(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> tuple[ExtraContext, ...]:
    """Find the contexts that a job needs none of. A GPU on which no other rank works belongs to a model that is split over several."""
    if any(shared_gpu.unset for shared_gpu in shared_gpus(job, held, gpus)):
        return ()  # Then it is missing-set-device that speaks.
    return tuple(_extra_contexts(job, held, gpus))


def _extra_contexts(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> Iterator[ExtraContext]:
    main = {rank.pid: index for rank in job.ranks if (index := main_gpu(rank, held, gpus)) is not None}
    for rank in job.ranks:
        others = {index for pid, index in main.items() if pid != rank.pid}
        if rank.pid not in main:
            continue
        for held_gpu in of_process(rank, held):
            if held_gpu.gpu.index != main[rank.pid] and held_gpu.gpu.index in others:
                yield ExtraContext(rank, held_gpu, main[rank.pid], _kind(held_gpu))
        for worker in job.others:
            if worker.parent == rank.pid and worker.role is ProcessRole.WORKER:
                for held_gpu in of_process(worker, held):
                    if held_gpu.gpu.index != main[rank.pid]:
                        yield ExtraContext(worker, held_gpu, main[rank.pid], ExtraKind.WORKER)


def _kind(held_gpu: HeldGpu) -> ExtraKind:
    # Where NVML doesn't tell how much, a bare one is what is seen most.
    bare = isinstance(held_gpu.holder.memory, Unknown) or held_gpu.memory < BARE_CONTEXT_BYTES
    return ExtraKind.BARE if bare else ExtraKind.TENSORS


# --- leftovers on GPUs --------------------------------------------------------------------------------------------------------


class LeftOnGpus(msgspec.Struct, frozen=True):
    """Leftovers of one sort, the ranks of a run perhaps, and what they and their children hold."""

    leftovers: tuple[Leftover, ...]
    held: tuple[HeldGpu, ...]
    beside: bool
    """A rank of a running job of this user's works on GPUs of each of them."""


def left_on_gpus(gpus: Gpus, processes: Processes) -> tuple[LeftOnGpus, ...]:
    """List the leftovers that hold a GPU. Who still works, or may have been started to stay, is none."""
    held = holdings(gpus, processes)
    own: dict[Leftover, list[HeldGpu]] = {}
    for leftover in left_by_processes(processes, gpus):
        whole = {leftover.identity, *leftover.children}
        contexts = [held_gpu for held_gpu in held if held_gpu.process and held_gpu.process.identity in whole]
        if contexts and (
            leftover.proven or (leftover.kind is not LeftoverKind.HOLDER and not works(leftover, processes))
        ):
            own[leftover] = contexts
    dead = {held_gpu.holder.pid for contexts in own.values() for held_gpu in contexts}
    ranks = {rank.pid for job in own_jobs(processes) for rank in job.ranks} - dead
    busy = {held_gpu.gpu.index for held_gpu in held if held_gpu.holder.pid in ranks}

    def is_beside(leftover: Leftover) -> bool:
        return any(held_gpu.gpu.index in busy for held_gpu in own[leftover])

    return tuple(
        LeftOnGpus(tuple(group), tuple(held_gpu for leftover in group for held_gpu in own[leftover]), beside)
        for (beside, _), group in grouped(own, lambda leftover: (is_beside(leftover), leftover.group_key)).items()
    )


def works(leftover: Leftover, processes: Processes) -> bool:
    """Whether it, or one of its children, was seen to do anything."""
    whole = {leftover.identity, *leftover.children}
    return any(
        any(signs_of_life(process, processes.watched))
        for process in processes.listed
        if process.identity in whole and not process.has_ended
    )
