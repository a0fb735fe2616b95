"""GPUs of ranks: which one belongs to a rank, by its local rank and what its settings show it; when ranks share one, and could use NCCL
there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.processes import Process
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.facts.torch import Torch
from ddpdoctor.facts.visible import VisibleGpu, needs_certain_order, visible_gpus


def own_gpu(rank: Process, gpus: Gpus) -> int | None:
    """The GPU of its local rank among those that its settings show it; None where that can't be told."""
    if rank.place is None or rank.place.local_rank is None or isinstance(rank.settings, Unknown):
        return None
    environment = Environment(settings=rank.settings)
    if len({device.name for device in gpus.devices}) > 1:
        try:
            needs_certain_order(gpus, environment)
        except NotKnown:
            return None
    seen = visible_gpus(gpus, environment)
    if any(visible_gpu.slice for visible_gpu in seen):
        return None
    if len(seen) == 1:
        return seen[0].gpu.index
    return seen[rank.place.local_rank].gpu.index if rank.place.local_rank < len(seen) else None


def on_the_cpu(smoke: Maybe[Smoke]) -> bool:
    """Whether the planned ranks are those of a smoke training over gloo."""
    return not isinstance(smoke, Unknown) and smoke.backend == "gloo"


def on_the_gpus(smoke: Maybe[Smoke]) -> bool:
    """Whether they are those of one over NCCL."""
    return not isinstance(smoke, Unknown) and smoke.backend == "nccl"


def lacks_nccl(torch: Maybe[Torch]) -> bool:
    """Whether it is known to have been built for GPUs, and without NCCL."""
    return isinstance(torch, Torch) and torch.nccl_available is False and not torch.cpu_only


def one_gpu_each(environment: Maybe[Environment]) -> bool:
    """Whether Slurm shows each task a GPU of its own, so that seeing one is as it should be."""
    if isinstance(environment, Unknown) or "SLURM_PROCID" not in environment:
        return False
    own = "SLURM_GPUS_PER_TASK" in environment or "SLURM_GPU_BIND" in environment
    step = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")
    return own or len(step.split(",")) > 1


def one_gpu_for_all(seen: Sequence[VisibleGpu], plan: Plan) -> bool:
    """Whether several ranks are planned where each can see one and the same whole GPU."""
    return len(seen) == 1 and seen[0].slice is None and plan.nproc > 1
