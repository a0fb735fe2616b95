"""A smoke training on this host alone: from the options and the plan to its facts, and to a clean end when a signal comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import RankEnding, Scaling, Smoke
from ddpdoctor.knowledge.nccl_diagnosis import SETTINGS
from ddpdoctor.smoke_training.local.leftovers import merge_leftovers
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.local.scaling import measure_speeds
from ddpdoctor.smoke_training.plan import SmokePlan
from ddpdoctor.smoke_training.training_order import SmokeOptions, TrainingOrder


class Trained(NamedTuple):
    """What a training came to. stopped_by: the number of the signal that has ended its burn-in; 0: none has."""

    facts: Smoke
    stopped_by: int = 0


def train(options: SmokeOptions, plan: SmokePlan, on_progress: Callable[[RankMonitor], None]) -> Trained:
    """Run the ranks of this host to their end. StoppedBySignal comes through, and all ranks have ended by then; but a signal ends a
    burn-in as if its time were up."""

    signals: list[int] = []

    async def run() -> Smoke:
        runner = RankRunner(_order(options, plan), options.python, settings_of_ranks(plan, os.environ), on_progress)

        def end_early(number: int) -> bool:
            signals.append(number)
            return runner.end_early(number)

        return await until_stopped(runner.run(), _stopped, ends_early=end_early)

    facts = asyncio.run(run())
    told = msgspec.structs.replace(
        facts,
        chosen=plan.chosen,
        gpus_passed_over=plan.gpus_passed_over,
        nccl_diagnosis=plan.nccl_diagnosis,
        engine=options.engine,
    )
    return Trained(redact_facts(told), next(iter(signals), 0))


def settings_of_ranks(plan: SmokePlan, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that training would inherit, with NCCL's own diagnosis switched on where that is planned."""
    return {**environ, **(SETTINGS if plan.diagnoses else {})}


def measure_scaling(
    options: SmokeOptions, plan: SmokePlan, facts: Smoke, on_progress: Callable[[RankMonitor], None]
) -> Smoke:
    """Add to the facts how the training scales, where it has passed. StoppedBySignal comes through, and all ranks have ended by then."""
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
        seconds=options.seconds,
        import_seconds=options.import_seconds,
        fault=options.fault,
        duration=options.duration,
    )


def _stopped() -> str:
    return "Stopped. The ranks were ended; nothing is left running."
