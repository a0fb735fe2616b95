"""`ddpdoctor smoke --scaling`: the same training at 1, 2, 4 ... ranks of this host, and with nn.DataParallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ddpdoctor.facts.smoke import Bandwidth, Ending, Scaling, Speed
from ddpdoctor.smoke.orders import Order
from ddpdoctor.smoke.running import Ran, run
from ddpdoctor.smoke.watching import Watch

BEGINNING: Final = ("import", "device", "rendezvous", "process group")
SPEED, DATA_PARALLEL, BANDWIDTH, END = "scaling", "data parallel", "bandwidth", "shutdown"
"""Stages that a run has only here: `smoke/patient/ddpdoctor_smoke/stages/scaling.py`."""

Heard = Callable[[Watch], None]


async def measure(order: Order, *, python: str, environ: Mapping[str, str], heard: Heard) -> Scaling:
    """order: the one that has passed; its ranks are the most. python, environ, heard: as for `running.run`.

    Where a run fails there are no larger ones: their figures would say nothing.
    """
    if order.nnodes > 1 or order.launched is not None:
        return Scaling(problem="it is measured on one host, and where ddpdoctor itself starts the ranks")
    speeds: list[Speed] = []
    bandwidths: tuple[Bandwidth, ...] = ()
    batch = 0
    for ranks in numbers_of_ranks(order.nproc):
        last = ranks == order.nproc
        stages = (*BEGINNING, SPEED, *([BANDWIDTH] if last and ranks > 1 else []), END)
        ran = await run(_alone(order, ranks, stages), python=python, environ=environ, heard=heard)
        speed = _speed(ran, ranks, "DDP")
        speeds.append(speed)
        bandwidths = _bandwidths(ran.figures)
        batch = batch or _batch(ran.figures)
        if speed.problem:
            break
    speeds.append(await _data_parallel(order, python=python, environ=environ, heard=heard))
    return Scaling(speeds=tuple(speeds), bandwidths=bandwidths, batch=batch, cores=len(os.sched_getaffinity(0)))


def numbers_of_ranks(most: int) -> list[int]:
    """1, 2, 4 ... and the most itself."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*powers, most]


async def _data_parallel(order: Order, *, python: str, environ: Mapping[str, str], heard: Heard) -> Speed:
    if order.backend != "nccl":
        return Speed(ranks=order.nproc, way="DataParallel", problem="nn.DataParallel works on GPUs only")
    if order.nproc < 2:
        return Speed(ranks=order.nproc, way="DataParallel", problem="needs 2 GPUs")
    alone = _alone(order, 1, (*BEGINNING, DATA_PARALLEL, END), gpus=order.nproc)
    ran = await run(alone, python=python, environ=environ, heard=heard)
    return _speed(ran, order.nproc, "DataParallel")


def _alone(order: Order, ranks: int, stages: tuple[str, ...], gpus: int = 0) -> Order:
    return msgspec.structs.replace(order, nproc=ranks, world_size=ranks, stages=stages, gpus=gpus, fault=None)


def _speed(ran: Ran, ranks: int, way: str) -> Speed:
    for figures in ran.figures:
        samples, memory = figures.get("samples_per_second"), figures.get("memory")
        if isinstance(samples, (int, float)) and samples > 0:
            held = memory if isinstance(memory, int) else 0
            return Speed(ranks=ranks, way=way, samples_per_second=float(samples), memory=held)
    return Speed(ranks=ranks, way=way, problem=_why_not(ran))


def _why_not(ran: Ran) -> str:
    if ran.problem:
        return ran.problem
    for one in ran.runs:
        untested = next((stage.words for stage in one.stages if stage.state == "not tested"), "")
        if untested:
            return untested
    # The first that ended by itself: others may have failed because of it.
    failed = [one for one in ran.runs if one.ending not in (Ending.FINISHED, Ending.ENDED)]
    if not failed:
        return "the run ended before it was measured"
    first = min(failed, key=lambda one: one.ended_after)
    where = f" in {first.last.name}" if first.last else ""
    return f"rank {first.rank} {first.ending.value}{where}" + (f": {first.words}" if first.words else "")


def _bandwidths(figures: Sequence[Mapping[str, Any]]) -> tuple[Bandwidth, ...]:
    found = ((one.get("size"), one.get("bus")) for one in figures)
    return tuple(
        Bandwidth(size=size, bus=float(bus))
        for size, bus in found
        if isinstance(size, int) and isinstance(bus, (int, float))
    )


def _batch(figures: Sequence[Mapping[str, Any]]) -> int:
    return next((one["batch"] for one in figures if isinstance(one.get("batch"), int)), 0)
