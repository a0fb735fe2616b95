"""Who holds a GPU: what NVML lists on it, joined with the processes of this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ddpdoctor.base.text import human
from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown
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

ENDED = ("Z", "X")

BARE_CONTEXT = 1 << 30
"""Bytes. A context without any tensor takes 300 to 700 MB, by GPU and by the kernels that were loaded."""

RESERVE = 1 << 30
"""Bytes that the driver, and what its processes share, may take without an owner: some 600 MB were seen on an idle H100."""

RESERVED_SHARE = 0.02
"""The same, as a share of the GPU's memory, where that is more: page tables and ECC grow with it."""

SAME_JOB = ("SLURM_JOB_ID", ELASTIC_RUN)


class HeldGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has on one GPU. process: None where this user can't see it."""

    gpu: Gpu
    holder: GpuHolder
    process: Process | None = None

    @property
    def memory(self) -> int:
        """Bytes, 0 where NVML doesn't tell."""
        return 0 if isinstance(self.holder.memory, Unknown) else self.holder.memory

    @property
    def amount(self) -> str:
        """ "31.2 GiB"."""
        return "an unknown amount" if isinstance(self.holder.memory, Unknown) else human(self.memory)


def holdings(gpus: Gpus, processes: Processes) -> tuple[HeldGpu, ...]:
    """Everything that is held on the GPUs that answer, as far as NVML tells."""
    return tuple(
        HeldGpu(gpu=gpu, holder=holder, process=process_of(holder, processes))
        for gpu in gpus.answering
        if not isinstance(gpu.holders, Unknown)
        for holder in gpu.holders
    )


def held_by_nobody(gpus: Gpus, processes: Processes) -> tuple[HeldGpu, ...]:
    """What NVML says that processes hold which this host doesn't have: the driver could not take it back, or they are just ending.
    Empty where not all processes can be seen."""
    if processes.unseen:
        return ()
    return tuple(
        holding
        for holding in holdings(gpus, processes)
        if holding.holder.pid and not holding.process and holding.memory >= RESERVE
    )


def process_of(holder: GpuHolder, processes: Processes) -> Process | None:
    """The process of that holder, None where it can't be seen.

    In a container NVML may tell pids of the host: a process that happens to have the same one here is another.
    """
    found = processes.get(holder.pid) if holder.pid else None
    if found is None or not processes.unseen or found.state in ENDED:
        return found
    touches = isinstance(found.devices, Unknown) or found.devices or found.marks or found.role is not ProcessRole.OTHER
    return found if touches else None


def all_told(gpus: Iterable[Gpu]) -> None:
    """Before a check says that nobody holds these GPUs wrongly.

    Raises:
        NotKnown: NVML doesn't tell who holds one of them.
    """
    for gpu in gpus:
        if not gpu.lost and isinstance(gpu.holders, Unknown):
            raise NotKnown(f"who holds GPU {gpu.index} is not known: {gpu.holders.reason}")


def unowned(gpu: Gpu) -> Maybe[int]:
    """Bytes in use that nobody who is listed holds; 0 where it is no more than what the driver keeps for itself."""
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
    return rest if rest > max(RESERVE, RESERVED_SHARE * total) else 0


def told_by_holder(gpu: Gpu) -> bool:
    """Whether it is known of all its memory who holds it, or that nobody does."""
    return not isinstance(unowned(gpu), Unknown)


def in_this_job(process: Process, processes: Processes, environment: Maybe[Environment]) -> bool:
    """It is ddpdoctor's own, or belongs to the very job in which ddpdoctor was started."""
    if process.ours:
        return True
    if isinstance(environment, Unknown) or process.uid != processes.uid:
        return False
    return any((own := environment.get(name)) and own != "none" and own == setting(process, name) for name in SAME_JOB)


def for_this_job(gpus: Gpus, environment: Maybe[Environment]) -> tuple[Gpu, ...]:
    """The GPUs that a job started here would get as a whole: MIG slices, and what shares the host's memory, are left out."""
    return tuple(
        visible_gpu.gpu
        for visible_gpu in visible_gpus(gpus, environment)
        if visible_gpu.slice is None and visible_gpu.gpu.mig_enabled is not True and not visible_gpu.gpu.integrated
    )


def own_jobs(processes: Processes) -> tuple[TrainingJob, ...]:
    """The running jobs of this user, root's being all: those whose faults are ours to find."""
    return tuple(
        job for job in jobs_of(processes) if processes.uid == 0 or any(rank.uid == processes.uid for rank in job.ranks)
    )


def of_process(process: Process, held: Iterable[HeldGpu]) -> tuple[HeldGpu, ...]:
    """What it has on which GPUs, the most first; without displays."""
    own = [held_gpu for held_gpu in held if held_gpu.process and held_gpu.process.identity == process.identity]
    return tuple(
        sorted((held_gpu for held_gpu in own if held_gpu.holder.kind != "graphics"), key=lambda one: -one.memory)
    )


def main_gpu(rank: Process, held: Iterable[HeldGpu], gpus: Gpus) -> int | None:
    """The GPU on which it works: where it holds the most. None where it holds none, or how much isn't told."""
    contexts = of_process(rank, held)
    if len(contexts) < 2:
        return contexts[0].gpu.index if contexts else None
    if any(isinstance(context.holder.memory, Unknown) for context in contexts):
        own = own_gpu(rank, gpus)
        return own if any(context.gpu.index == own for context in contexts) else None
    return contexts[0].gpu.index


def first_gpu(rank: Process, gpus: Gpus) -> int | None:
    """What it calls cuda:0, by its settings; None where that can't be told."""
    if isinstance(rank.settings, Unknown):
        return None
    seen = visible_gpus(gpus, Environment(settings=rank.settings))
    return seen[0].gpu.index if seen and seen[0].slice is None else None


class SharedGpu(msgspec.Struct, frozen=True):
    """Ranks of one job that work on the same GPU. unset: each of them has a GPU of its own by its local rank, and those
    whose it isn't are on what they call cuda:0."""

    gpu: Gpu
    ranks: tuple[Process, ...]
    unset: bool


def shared_gpus(job: TrainingJob, held: Sequence[HeldGpu], gpus: Gpus) -> tuple[SharedGpu, ...]:
    """GPUs on which several ranks of the job work. MIG slices and MPS, which share a GPU on purpose, are left out."""
    on: dict[int, list[Process]] = {}
    for rank in job.ranks:
        if (main := main_gpu(rank, held, gpus)) is not None:
            on.setdefault(main, []).append(rank)
    found = []
    for gpu in gpus.answering:
        ranks = on.get(gpu.index, [])
        if len(ranks) > 1 and gpu.mig_enabled is not True and not _through_mps(gpu):
            owners = [own_gpu(one, gpus) for one in ranks]
            strays = [one for one, own in zip(ranks, owners, strict=True) if own != gpu.index]
            unset = (
                None not in owners
                and len(set(owners)) == len(owners)
                and all(first_gpu(stray, gpus) == gpu.index for stray in strays)
            )
            found.append(SharedGpu(gpu, tuple(ranks), unset))
    return tuple(found)


def _through_mps(gpu: Gpu) -> bool:
    holders = () if isinstance(gpu.holders, Unknown) else gpu.holders
    return gpu.mps_server or any(holder.kind.startswith("mps") for holder in holders)


class LeftOnGpus(msgspec.Struct, frozen=True):
    """A leftover, and what it and its children hold. beside: a rank of a running job of this user's works on one of these GPUs."""

    leftover: Leftover
    held: tuple[HeldGpu, ...]
    beside: bool


def left_on_gpus(gpus: Gpus, processes: Processes) -> tuple[LeftOnGpus, ...]:
    """The leftovers that hold a GPU. Who still works, or may have been started to stay, is none."""
    return tuple(_left_on_gpus(gpus, processes))


def _left_on_gpus(gpus: Gpus, processes: Processes) -> Iterator[LeftOnGpus]:
    held = holdings(gpus, processes)
    found = []
    for one in left_by_processes(processes, gpus):
        whole = {one.identity, *one.children}
        on = tuple(held_gpu for held_gpu in held if held_gpu.process and held_gpu.process.identity in whole)
        if on and (one.proven or (one.kind is not LeftoverKind.HOLDER and not works(one, processes))):
            found.append((one, on))
    dead = {held_gpu.holder.pid for _, on in found for held_gpu in on}
    ranks = {rank.pid for job in own_jobs(processes) for rank in job.ranks} - dead
    for one, on in found:
        numbers = {held_gpu.gpu.index for held_gpu in on}
        yield LeftOnGpus(
            one, on, any(held_gpu.holder.pid in ranks and held_gpu.gpu.index in numbers for held_gpu in held)
        )


def works(leftover: Leftover, processes: Processes) -> bool:
    """Whether it, or one of its children, was seen to do anything."""
    whole = {leftover.identity, *leftover.children}
    return any(
        any(signs_of_life(process, processes.watched))
        for process in processes.listed
        if process.identity in whole and process.state not in ENDED
    )
