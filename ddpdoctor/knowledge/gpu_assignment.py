"""Which GPU belongs to a rank, by its local rank and what its settings show it. Pure."""

from __future__ import annotations

from ddpdoctor.base.unknown import NotKnown, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process
from ddpdoctor.facts.visible import needs_certain_order, visible_gpus


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
