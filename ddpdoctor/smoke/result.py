"""From what the hosts' runs came to, the facts."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.smoke import Leftovers, Smoke
from ddpdoctor.smoke.orders import Order
from ddpdoctor.smoke.plan import SmokePlan
from ddpdoctor.smoke.running import Ran


def smoke_facts(order: Order, plan: SmokePlan, ran: Sequence[Ran], *, python: str, seconds: float) -> Smoke:
    """ran: each host's, in their order."""
    return Smoke(
        ranks=tuple(sorted((run for one in ran for run in one.runs), key=lambda run: run.rank)),
        world_size=order.world_size,
        nnodes=order.nnodes,
        backend=order.backend,
        chosen=plan.chosen,
        engine="torch.distributed.elastic",
        stages=order.stages,
        deadline=order.seconds,
        seconds=round(seconds, 3),
        problem=next((one.problem for one in ran if one.problem), ""),
        torch=next((one.torch for one in ran if one.torch), ""),
        python=python,
        leftovers=Leftovers(
            processes=tuple(one for host in ran for one in host.leftovers.processes),
            ports=tuple(one for host in ran for one in host.leftovers.ports),
            shared_memory=tuple(one for host in ran for one in host.leftovers.shared_memory),
            files=tuple(one for host in ran for one in host.leftovers.files),
        ),
    )
