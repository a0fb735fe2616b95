"""One smoke training as the user wishes it: from the plan to its facts, and to a clean end when a signal comes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from ddpdoctor.cli.stopping import SIGNALS, Stopped, ignore_signals, stop_on_signals
from ddpdoctor.facts.smoke import Ending, Scaling, Smoke
from ddpdoctor.redaction import redact_facts
from ddpdoctor.smoke.orders import IMPORT_SECONDS, STAGE_SECONDS, STAGES, Fault, Order
from ddpdoctor.smoke.plan import SmokePlan
from ddpdoctor.smoke.result import smoke_facts
from ddpdoctor.smoke.running import run
from ddpdoctor.smoke.scaling import measure
from ddpdoctor.smoke.watching import Watch

T = TypeVar("T")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
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


def train(wishes: Wishes, plan: SmokePlan, heard: Callable[[Watch], None]) -> Smoke:
    """Runs the ranks of one host to their end. heard: as for `running.run`.

    Raises:
        Stopped: by a signal; all ranks have ended by then.
    """
    order = Order(
        nproc=plan.nproc,
        world_size=plan.nproc,
        backend=plan.backend,
        stages=wishes.stages,
        seconds=wishes.timeout or STAGE_SECONDS,
        import_seconds=wishes.timeout or IMPORT_SECONDS,
        fault=wishes.fault,
    )
    began = time.monotonic()
    ran = asyncio.run(until_stopped(run(order, python=wishes.python, environ=os.environ, heard=heard)))
    facts = smoke_facts(order, plan, [ran], python=wishes.python, seconds=time.monotonic() - began)
    if wishes.scaling:
        facts = msgspec.structs.replace(facts, scaling=_scaling(wishes, order, facts, heard))
    return redact_facts(facts)


def _scaling(wishes: Wishes, order: Order, facts: Smoke, heard: Callable[[Watch], None]) -> Scaling:
    if not all(one.ending is Ending.FINISHED for one in facts.ranks):
        return Scaling(problem="the training itself has not passed")
    return asyncio.run(until_stopped(measure(order, python=wishes.python, environ=os.environ, heard=heard)))


async def until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Its result. On a signal it is cancelled, and what it then does to end is awaited: an exception that is raised out of
    a signal's handler would be swallowed by whatever task it meets.

    Raises:
        Stopped: when a signal has come.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        # A second one must not break into the clean end.
        if not received:
            task.cancel()
        received.append(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        result = await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise _stopped(received[0]) from None
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        (ignore_signals if received else stop_on_signals)()
    if received:
        # It was over already when the signal came.
        raise _stopped(received[0])
    return result


def _stopped(number: int) -> Stopped:
    stopped = Stopped(128 + number)
    stopped.text = "Stopped. The ranks were ended; nothing is left running."
    return stopped
