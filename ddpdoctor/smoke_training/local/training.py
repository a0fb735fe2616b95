"""One smoke training as the user wishes it: from the plan to its facts, and to a clean end when a signal comes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import msgspec

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import RankEnding, Scaling, Smoke
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import run_ranks
from ddpdoctor.smoke_training.local.result import left_by, smoke_facts
from ddpdoctor.smoke_training.local.scaling import measure_speeds
from ddpdoctor.smoke_training.plan import SmokePlan
from ddpdoctor.smoke_training.stages import STAGE_SECONDS, STAGES, import_seconds
from ddpdoctor.smoke_training.training_order import Fault, TrainingOrder


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for; None where it says nothing. timeout: seconds a stage may take."""

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


def train(wishes: SmokeOptions, plan: SmokePlan, heard: Callable[[RankMonitor], None]) -> Smoke:
    """Runs the ranks of one host to their end. heard: as for `running.run`.

    Raises:
        Stopped: by a signal; all ranks have ended by then.
    """
    order = _order(wishes, plan)
    began = time.monotonic()
    ran = asyncio.run(until_stopped(run_ranks(order, python=wishes.python, environ=os.environ, heard=heard), _stopped))
    facts = smoke_facts(order, plan, ran, python=wishes.python, seconds=time.monotonic() - began)
    return redact_facts(facts)


def measure_scaling(wishes: SmokeOptions, plan: SmokePlan, facts: Smoke, heard: Callable[[RankMonitor], None]) -> Smoke:
    """The facts of a training, with how it scales where it has passed.

    Raises:
        Stopped: by a signal; all ranks have ended by then.
    """
    if not all(rank.ending is RankEnding.FINISHED for rank in facts.ranks):
        return msgspec.structs.replace(facts, scaling=Scaling(problem="the training itself has not passed"))
    work = measure_speeds(_order(wishes, plan), python=wishes.python, environ=os.environ, heard=heard)
    measured = asyncio.run(until_stopped(work, _stopped))
    left = left_by([facts.leftovers, measured.leftovers])
    return redact_facts(msgspec.structs.replace(facts, scaling=measured.scaling, leftovers=left))


def without_scaling(facts: Smoke) -> Smoke:
    """The facts where we were stopped before it was known how it scales."""
    return msgspec.structs.replace(facts, scaling=Scaling(problem="stopped before it was measured"))


def _order(wishes: SmokeOptions, plan: SmokePlan) -> TrainingOrder:
    return TrainingOrder(
        nproc=plan.nproc,
        world_size=plan.nproc,
        backend=plan.backend,
        stages=wishes.stages,
        seconds=wishes.timeout or STAGE_SECONDS,
        import_seconds=import_seconds(wishes.timeout),
        fault=wishes.fault,
    )


def _stopped() -> str:
    return "Stopped. The ranks were ended; nothing is left running."
