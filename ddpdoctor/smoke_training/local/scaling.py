"""`ddpdoctor smoke --scaling`: the same training at 1, 2, 4 ... ranks of this host, and with nn.DataParallel."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ddpdoctor.facts.smoke import Bandwidth, Leftovers, RankEnding, RankRun, Scaling, Speed, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
from ddpdoctor.smoke_training.analysis.failure_wording import describe_ending
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import HostRun, run_ranks
from ddpdoctor.smoke_training.local.result import left_by
from ddpdoctor.smoke_training.training_order import TrainingOrder

BEGINNING: Final = ("import", "device", "rendezvous", "process group")
SPEED, DATA_PARALLEL, BANDWIDTH, END = "scaling", "data parallel", "bandwidth", "shutdown"
"""Stages that a run has only here: `smoke_training/trainer/ddpdoctor_smoke/stages/scaling.py`."""

Heard = Callable[[RankMonitor], None]


class MeasuredScaling(NamedTuple):
    """The figures, and what their runs left behind."""

    scaling: Scaling
    leftovers: Leftovers = Leftovers()


async def measure_speeds(
    order: TrainingOrder, *, python: str, environ: Mapping[str, str], heard: Heard
) -> MeasuredScaling:
    """order: the one that has passed; its ranks are the most. python, environ, heard: as for `running.run`.

    Where a run fails there are no larger ones: their figures would say nothing.
    """
    if order.nnodes > 1 or order.launched is not None:
        return MeasuredScaling(
            Scaling(problem="it is measured on one host, and where ddpdoctor itself starts the ranks")
        )
    all_ran: list[HostRun] = []

    async def ran_by(one: TrainingOrder) -> HostRun:
        all_ran.append(await run_ranks(one, python=python, environ=environ, heard=heard))
        return all_ran[-1]

    speeds: list[Speed] = []
    bandwidths: tuple[Bandwidth, ...] = ()
    larger = ""
    batch = 0
    for ranks in numbers_of_ranks(order.nproc):
        last = ranks == order.nproc
        stages = (*BEGINNING, SPEED, *([BANDWIDTH] if last and ranks > 1 else []), END)
        ran = await ran_by(_alone(order, ranks, stages))
        speed = speed_of(ran, ranks, "DDP")
        speeds.append(speed)
        batch = batch or _batch(ran.figures)
        if speed.problem:
            break
        bandwidths, larger = _bandwidths(ran.figures), _larger(ran.figures)
    speeds.append(await _data_parallel(order, ran_by))
    cores = len(os.sched_getaffinity(0))
    return MeasuredScaling(
        Scaling(speeds=tuple(speeds), bandwidths=bandwidths, larger=larger, batch=batch, cores=cores),
        left_by(one.leftovers for one in all_ran),
    )


def numbers_of_ranks(most: int) -> list[int]:
    """1, 2, 4 ... and the most itself."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*powers, most]


async def _data_parallel(order: TrainingOrder, ran_by: Callable[[TrainingOrder], Awaitable[HostRun]]) -> Speed:
    if order.backend != "nccl":
        return Speed(ranks=order.nproc, way="DataParallel", problem="nn.DataParallel works on GPUs only")
    if order.nproc < 2:
        return Speed(ranks=order.nproc, way="DataParallel", problem="needs 2 GPUs")
    alone = _alone(order, 1, (*BEGINNING, DATA_PARALLEL, END), gpus=order.nproc)
    return speed_of(await ran_by(alone), order.nproc, "DataParallel")


def _alone(order: TrainingOrder, ranks: int, stages: tuple[str, ...], gpus: int = 0) -> TrainingOrder:
    return msgspec.structs.replace(order, nproc=ranks, world_size=ranks, stages=stages, gpus=gpus, fault=None)


def speed_of(ran: HostRun, ranks: int, way: str) -> Speed:
    """Of a run that didn't come to its end no figure counts, even where one came before."""
    failure = _failure(ran)
    if failure:
        return Speed(ranks=ranks, way=way, problem=failure, failed=True)
    for figures in ran.figures:
        samples, memory = figures.get("samples_per_second"), figures.get("memory")
        if isinstance(samples, (int, float)) and samples > 0:
            held = memory if isinstance(memory, int) else 0
            return Speed(ranks=ranks, way=way, samples_per_second=float(samples), memory=held)
    untested = [stage.words for one in ran.runs for stage in one.stages if stage.state is StageState.NOT_TESTED]
    if untested:
        return Speed(ranks=ranks, way=way, problem=untested[0])
    return Speed(ranks=ranks, way=way, problem="the run ended without a figure", failed=True)


def _failure(ran: HostRun) -> str:
    """ "rank 1 on node07 was killed by SIGKILL in scaling; its last line: ...", "" where all came to their end."""
    if ran.problem:
        return ran.problem
    found = attribute_failure(ran.runs)
    first = found.first if found else next((one for one in ran.runs if one.ending is not RankEnding.FINISHED), None)
    return _what_became_of(first) if first else ""


def _what_became_of(run: RankRun) -> str:
    said = f'; its last line: "{run.last_line}"' if run.last_line and run.last_line not in run.words else ""
    return f"rank {run.rank} on {run.host} {describe_ending(run)}{said}"


def _bandwidths(figures: Sequence[Mapping[str, Any]]) -> tuple[Bandwidth, ...]:
    found = ((figure.get("size"), figure.get("bus")) for figure in figures)
    return tuple(
        Bandwidth(size=size, bus=float(bus))
        for size, bus in found
        if isinstance(size, int) and isinstance(bus, (int, float))
    )


def _larger(figures: Sequence[Mapping[str, Any]]) -> str:
    return next((figure["larger"] for figure in figures if isinstance(figure.get("larger"), str)), "")


def _batch(figures: Sequence[Mapping[str, Any]]) -> int:
    return next((figure["batch"] for figure in figures if isinstance(figure.get("batch"), int)), 0)
