"""A smoke training on this host alone: from the options and the plan to its facts, and to a clean end when a signal comes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import msgspec

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import ELASTIC, RankEnding, Scaling, Smoke
from ddpdoctor.smoke_training.local.leftovers import merge_leftovers
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import HostRun, run_ranks
from ddpdoctor.smoke_training.local.scaling import measure_speeds
from ddpdoctor.smoke_training.plan import SmokePlan
from ddpdoctor.smoke_training.stages import STAGE_SECONDS, STAGES, import_seconds
from ddpdoctor.smoke_training.training_order import Fault, TrainingOrder


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for; None where they say nothing. timeout: seconds a stage may take."""

    python: str
    nproc: int | None = None
    backend: str = "auto"
    timeout: float | None = None
    stages: tuple[str, ...] = STAGES
    nnodes: int | None = None
    node_rank: int | None = None
    master: str | None = None
    port: int | None = None
    scaling: bool = False
    fault: Fault | None = None


def train(options: SmokeOptions, plan: SmokePlan, on_progress: Callable[[RankMonitor], None]) -> Smoke:
    """Run the ranks of this host to their end. StoppedBySignal comes through, and all ranks have ended by then.

    Args:
        options: what the user asks for.
        plan: how many ranks, over which backend.
        on_progress: as for `run_ranks`.
    """
    order = _order(options, plan)
    began = time.monotonic()
    ran = asyncio.run(
        until_stopped(run_ranks(order, python=options.python, environ=os.environ, on_progress=on_progress), _stopped)
    )
    facts = _facts(order, plan, ran, python=options.python, seconds=time.monotonic() - began)
    return redact_facts(facts)


def measure_scaling(
    options: SmokeOptions, plan: SmokePlan, facts: Smoke, on_progress: Callable[[RankMonitor], None]
) -> Smoke:
    """Measure how a training scales, where it has passed. StoppedBySignal comes through, and all ranks have ended by then.

    Args:
        options: what the user asks for.
        plan: how many ranks, over which backend.
        facts: of the training.
        on_progress: as for `run_ranks`.

    Returns:
        The facts, with the scaling.
    """
    if not all(rank.ending is RankEnding.FINISHED for rank in facts.ranks):
        return msgspec.structs.replace(facts, scaling=Scaling(problem="the training itself has not passed"))
    work = measure_speeds(_order(options, plan), python=options.python, environ=os.environ, on_progress=on_progress)
    measured = asyncio.run(until_stopped(work, _stopped))
    left = merge_leftovers([facts.leftovers, measured.leftovers])
    return redact_facts(msgspec.structs.replace(facts, scaling=measured.scaling, leftovers=left))


def without_scaling(facts: Smoke) -> Smoke:
    """The facts of a training that was stopped before it was measured how it scales."""
    return msgspec.structs.replace(facts, scaling=Scaling(problem="stopped before it was measured"))


def _order(options: SmokeOptions, plan: SmokePlan) -> TrainingOrder:
    return TrainingOrder(
        nproc=plan.nproc,
        world_size=plan.nproc,
        backend=plan.backend,
        stages=options.stages,
        seconds=options.timeout or STAGE_SECONDS,
        import_seconds=import_seconds(options.timeout),
        fault=options.fault,
    )


def _stopped() -> str:
    return "Stopped. The ranks were ended; nothing is left running."


def _facts(order: TrainingOrder, plan: SmokePlan, ran: HostRun, *, python: str, seconds: float) -> Smoke:
    return msgspec.structs.replace(
        order.facts(),
        ranks=tuple(sorted(ran.runs, key=lambda run: run.rank)),
        chosen=plan.chosen,
        gpus_passed_over=plan.gpus_passed_over,
        engine=ELASTIC,
        seconds=round(seconds, 3),
        problem=ran.problem,
        torch=ran.torch,
        python=python,
        folder=ran.folder.told if ran.folder else "",
        leftovers=ran.leftovers,
    )
