"""Decides how many ranks are run on this host, over which backend, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.smoke import SWITCHED_ON
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.facts.visible import VisibleGpu, selector, visible_gpus
from ddpdoctor.knowledge.gpu_assignment import lacks_nccl
from ddpdoctor.knowledge.nccl_diagnosis import why_not_switched_on

GROUPS: Final = ("gpus", "environment")
"""Groups of facts that a plan needs. It is better with torch's, which take an import."""

CPU_RANKS: Final = 2
NO_GPU: Final = "no GPU"


class SmokePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one host."""

    nproc: int
    backend: str
    chosen: str
    """So many ranks and that backend, and why, in words for the report."""
    gpus_passed_over: str = ""
    """See `facts.smoke.Smoke`."""
    nccl_diagnosis: str = ""
    """See `facts.smoke.Smoke`."""

    @property
    def diagnoses(self) -> bool:
        """Whether NCCL's own diagnosis is switched on."""
        return self.nccl_diagnosis == SWITCHED_ON


def plan_training(snapshot: Snapshot, nproc: int | None, backend: str) -> SmokePlan:
    """Plan the training of one host.

    Args:
        snapshot: the host's facts, of GROUPS at least.
        nproc: ranks; None: one for each visible GPU, two without any.
        backend: "nccl", "gloo" or "auto": NCCL where there are GPUs, and torch isn't known to lack it.
    """
    gpus, lacking, number = _usable(snapshot)
    without = lacks_nccl(snapshot.torch)
    if gpus and without:
        lacking = _without_nccl(snapshot.torch)
    over = ("nccl" if gpus and not without else "gloo") if backend == "auto" else backend
    ranks = nproc if nproc is not None else (gpus if gpus and over == "nccl" else CPU_RANKS)
    passed_over = "" if backend == "gloo" else lacking
    chosen_cpu = backend == "gloo" and (gpus or lacking)
    who = "--nproc" if nproc is not None else "--backend gloo" if chosen_cpu else "" if passed_over else number
    device = "GPU" if over == "nccl" else "CPU"
    why = "; ".join(filter(None, (who, passed_over)))
    return SmokePlan(
        nproc=ranks,
        backend=over,
        chosen=f"{plural(ranks, 'rank')} on {device} over {over} ({why})",
        gpus_passed_over=passed_over,
        nccl_diagnosis=(why_not_switched_on(snapshot.nccl, snapshot.environment) or SWITCHED_ON)
        if over == "nccl"
        else "",
    )


def _usable(snapshot: Snapshot) -> tuple[int, str, str]:
    """The number of GPUs that ranks may use; why that isn't all that are there, or may be, "" where it is; and the number in words."""
    gpus = snapshot.gpus
    if isinstance(gpus, Unknown):
        return 0, f"the GPUs could not be asked: {gpus.reason}", NO_GPU
    if not gpus.devices:
        there = gpus.vendor == "nvidia"
        return 0, "the GPUs could not be asked: one is on the PCI bus, and NVML lists none" if there else "", NO_GPU
    environment = snapshot.environment if isinstance(snapshot.environment, Environment) else Unknown("not looked at")
    seen = visible_gpus(gpus, environment)
    visible, number = _for_ranks(seen)
    all_of_them = "the only GPU" if len(gpus.devices) == 1 else f"all {len(gpus.devices)} GPUs"
    hidden = "" if visible else f"{selector(gpus, environment)} hides {all_of_them}"
    lost = _lost(gpus)
    over = lost if lost and (visible or not gpus.answering) else ", and ".join(filter(None, (hidden, lost)))
    return visible, over, number


def _for_ranks(seen: Sequence[VisibleGpu]) -> tuple[int, str]:
    """The number of GPUs that ranks can use together, also in words. A process sees one MIG slice, and none where it sees a whole GPU;
    NCCL doesn't connect slices."""
    whole = sum(visible_gpu.slice is None and visible_gpu.gpu.mig_enabled is not True for visible_gpu in seen)
    if whole or not seen:
        return whole, plural(whole, "GPU") if whole else NO_GPU
    return 1, "1 GPU" if len(seen) == 1 else f"{len(seen)} MIG slices, of which a process sees one"


def _without_nccl(torch: Maybe[Torch]) -> str:
    version = torch.version if isinstance(torch, Torch) else None
    return f"torch {version or ''}".strip() + " is built without NCCL"


def _lost(gpus: Gpus) -> str:
    """ "7 of 8 GPUs answer"; "" where all do."""
    answering, there = len(gpus.answering), len(gpus.devices)
    if answering == there:
        return ""
    return f"{answering or 'none'} of {plural(there, 'GPU')} {'answers' if answering < 2 else 'answer'}"
