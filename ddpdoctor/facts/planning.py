"""How many ranks are planned, when the user didn't say."""

from __future__ import annotations

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot


def plan_for(snapshot: Snapshot, nproc: int | None = None) -> Plan:
    """`--nproc`, else what a launcher says of this host, else a rank a GPU (a MIG slice counts as one), else one rank."""
    if nproc is not None:
        return Plan(nproc, "--nproc")
    if not isinstance(snapshot.environment, Unknown):
        local = snapshot.environment.get("LOCAL_WORLD_SIZE", "")
        if local.isdecimal() and int(local) > 0:
            return Plan(int(local), "LOCAL_WORLD_SIZE")
    if not isinstance(snapshot.gpus, Unknown) and snapshot.gpus.devices:
        count = sum(max(1, len(one.mig_instances)) for one in snapshot.gpus.devices)
        return Plan(count, "the number of GPUs")
    return Plan(1, "no GPU was found, so one rank")
