"""From what a host's run came to, the facts."""

from __future__ import annotations

from ddpdoctor.facts.smoke import ELASTIC, Smoke
from ddpdoctor.smoke.orders import Order
from ddpdoctor.smoke.plan import SmokePlan
from ddpdoctor.smoke.running import Ran


def smoke_facts(order: Order, plan: SmokePlan, ran: Ran, *, python: str, seconds: float) -> Smoke:
    """ran: on the only host. seconds: from the first thing that was done to the last."""
    return Smoke(
        ranks=tuple(sorted(ran.runs, key=lambda run: run.rank)),
        world_size=order.world_size,
        nnodes=order.nnodes,
        backend=order.backend,
        chosen=plan.chosen,
        gpus_passed_over=plan.gpus_passed_over,
        engine=ELASTIC,
        stages=order.stages,
        deadline=order.seconds,
        import_seconds=order.import_seconds,
        seconds=round(seconds, 3),
        problem=ran.problem,
        torch=ran.torch,
        python=python,
        folder=ran.folder.told if ran.folder else "",
        leftovers=ran.leftovers,
    )
