"""Works out how many ranks are planned, when the user didn't say."""

from __future__ import annotations

import re

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.visible import selector, visible_gpus


def plan_for(snapshot: Snapshot, nproc: int | None = None) -> Plan:
    """Take `--nproc`, else what a launcher says of this host, else a rank a visible GPU (a MIG slice counts as one), else one."""
    if nproc is not None:
        return Plan(nproc, "--nproc")
    environment = None if isinstance(snapshot.environment, Unknown) else snapshot.environment
    gpus = None if isinstance(snapshot.gpus, Unknown) else snapshot.gpus
    visible = _visible(gpus, environment)
    launched = _launched(environment) if environment else None
    # One Slurm task a node is how torchrun is started there: it says nothing of the ranks.
    if launched and (launched.nproc > 1 or not launched.source.startswith("SLURM_") or visible.nproc == 1):
        return launched
    return visible


def _launched(environment: Environment) -> Plan | None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if count := _number(environment.get(name)):
            return Plan(count, name)
    # Not SLURM_TASKS_PER_NODE: outside of a step that is a share of `-n`, which says how many cores were asked for.
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        if count := _tasks_on_node(environment.get(name), _number(environment.get("SLURM_NODEID")) or 0):
            return Plan(count, name)
    return None


def _tasks_on_node(value: str, node: int) -> int:
    """Slurm's "8(x2),4" means 8 tasks on each of two nodes and 4 on the third; 0 where it can't be read."""
    if not value:
        return 0
    for_every_node = _number(value)  # SLURM_NTASKS_PER_NODE
    if for_every_node is not None:
        return for_every_node
    for count, times in re.findall(r"(?<!\d)(\d{1,9})(?:\(x(\d{1,9})\))?(?!\d)", value):
        node -= int(times or 1)
        if node < 0:
            return int(count)
    return 0


def _number(value: str) -> int | None:
    """Read a number of nine digits at most: a host runs no more ranks, and nobody is to do sums with a thousand digits."""
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None


def _visible(gpus: Gpus | None, environment: Environment | None) -> Plan:
    """One rank for each GPU that CUDA (or HIP) will show."""
    if gpus is None or not gpus.devices:
        return Plan(1, "no GPU was found, so one rank")
    settings = environment or Unknown("not looked at")
    name = selector(gpus, settings)
    count = len(visible_gpus(gpus, settings))
    if count:
        return Plan(count, name or "the number of GPUs")
    return Plan(1, f"{name} hides every GPU, so one rank" if name else "no GPU answers, so one rank")
