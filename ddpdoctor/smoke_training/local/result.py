"""From what a host's run came to, the facts."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.facts.smoke import ELASTIC, Leftovers, Smoke
from ddpdoctor.smoke_training.local.rank_runner import HostRun
from ddpdoctor.smoke_training.plan import SmokePlan
from ddpdoctor.smoke_training.training_order import TrainingOrder


def smoke_facts(order: TrainingOrder, plan: SmokePlan, ran: HostRun, *, python: str, seconds: float) -> Smoke:
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


def left_by(runs: Iterable[Leftovers]) -> Leftovers:
    """What several runs left behind, each thing once."""
    left = tuple(runs)
    return Leftovers(
        processes=tuple(dict.fromkeys(process for run in left for process in run.processes)),
        ports=tuple(dict.fromkeys(port for run in left for port in run.ports)),
        shared_memory=tuple(dict.fromkeys(one for run in left for one in run.shared_memory)),
        unclaimed=tuple(dict.fromkeys(one for run in left for one in run.unclaimed)),
        files=tuple(dict.fromkeys(file for run in left for file in run.files)),
    )
