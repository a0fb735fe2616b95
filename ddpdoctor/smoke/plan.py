"""How many ranks are run on this host, over which backend, and who says so."""

from __future__ import annotations

from typing import Final

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.visible import visible_gpus

GROUPS: Final = ("gpus", "environment")
"""The facts that a plan needs."""

CPU_RANKS: Final = 2


class SmokePlan(msgspec.Struct, frozen=True, kw_only=True):
    """chosen: why so many ranks and that backend, in words for the report."""

    nproc: int
    backend: str
    chosen: str


def smoke_plan(snapshot: Snapshot, nproc: int | None, backend: str) -> SmokePlan:
    """backend: "nccl", "gloo" or "auto": NCCL where there are GPUs. nproc None: a rank a visible GPU, two without any."""
    gpus = _visible(snapshot)
    number = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "no GPU"
    over = ("nccl" if gpus else "gloo") if backend == "auto" else backend
    ranks = nproc if nproc is not None else (gpus if gpus and over == "nccl" else CPU_RANKS)
    who = "--nproc" if nproc is not None else number
    device = "GPU" if over == "nccl" else "CPU"
    return SmokePlan(nproc=ranks, backend=over, chosen=f"{ranks} ranks on {device} over {over} ({who})")


def _visible(snapshot: Snapshot) -> int:
    if not isinstance(snapshot.gpus, Gpus) or not snapshot.gpus.devices:
        return 0
    environment = snapshot.environment if isinstance(snapshot.environment, Environment) else Unknown("not looked at")
    return len(visible_gpus(snapshot.gpus, environment))
