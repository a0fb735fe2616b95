"""Measures for `ddpdoctor smoke --scaling` the same training at 1, 2, 4 ... ranks of this host, and with nn.DataParallel."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ddpdoctor.facts.smoke import Bandwidth, Leftovers, RankEnding, RankRun, Scaling, Speed, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
from ddpdoctor.smoke_training.analysis.failure_wording import describe_ending
from ddpdoctor.smoke_training.local.leftovers import merge_leftovers
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import HostRun, run_ranks
from ddpdoctor.smoke_training.training_order import TrainingOrder

FIRST_STAGES: Final = ("import", "device", "rendezvous", "process group")
SPEED, DATA_PARALLEL, BANDWIDTH, END = "scaling", "data parallel", "bandwidth", "shutdown"
"""Stages of these runs alone: `smoke_training/trainer/ddpdoctor_smoke/stages/scaling.py`."""

OnProgress = Callable[[RankMonitor], None]


class MeasuredScaling(NamedTuple):
    """The figures, and what their runs left behind."""

    scaling: Scaling
    leftovers: Leftovers = Leftovers()


async def measure_speeds(
    order: TrainingOrder, *, python: str, environ: Mapping[str, str], on_progress: OnProgress
) -> MeasuredScaling:
    """Train with ever more ranks, and measure their speed. After a run that fails there are no larger ones: their figures would say
    nothing.

    Args:
        order: of the training that has passed; no run has more ranks.
        python: as for `run_ranks`.
        environ: as for `run_ranks`.
        on_progress: as for `run_ranks`.
    """
    if order.nnodes > 1 or order.launched is not None:
        return MeasuredScaling(
            Scaling(problem="it is measured on one host, and where ddpdoctor itself starts the ranks")
        )
    all_ran: list[HostRun] = []

    async def run_order(order: TrainingOrder) -> HostRun:
        all_ran.append(await run_ranks(order, python=python, environ=environ, on_progress=on_progress))
        return all_ran[-1]

    speeds: list[Speed] = []
    bandwidths: tuple[Bandwidth, ...] = ()
    larger = ""
    batch = 0
    for ranks in numbers_of_ranks(order.nproc):
        last = ranks == order.nproc
        stages = (*FIRST_STAGES, SPEED, *([BANDWIDTH] if last and ranks > 1 else []), END)
        ran = await run_order(_order_for(order, ranks, stages))
        speed = speed_of(ran, ranks, "DDP")
        speeds.append(speed)
        batch = batch or _batch(ran.figures)
        if speed.problem:
            break
        bandwidths, larger = _bandwidths(ran.figures), _larger(ran.figures)
    speeds.append(await _data_parallel(order, run_order))
    cores = len(os.sched_getaffinity(0))
    return MeasuredScaling(
        Scaling(speeds=tuple(speeds), bandwidths=bandwidths, larger=larger, batch=batch, cores=cores),
        merge_leftovers([ran.leftovers for ran in all_ran]),
    )


def numbers_of_ranks(largest: int) -> list[int]:
    """1, 2, 4 ... and the largest itself."""
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return [*powers, largest]


async def _data_parallel(order: TrainingOrder, run_order: Callable[[TrainingOrder], Awaitable[HostRun]]) -> Speed:
    if order.backend != "nccl":
        return Speed(ranks=order.nproc, way="DataParallel", problem="nn.DataParallel works on GPUs only")
    if order.nproc < 2:
        return Speed(ranks=order.nproc, way="DataParallel", problem="needs 2 GPUs")
    alone = _order_for(order, 1, (*FIRST_STAGES, DATA_PARALLEL, END), gpus=order.nproc)
    return speed_of(await run_order(alone), order.nproc, "DataParallel")


def _order_for(order: TrainingOrder, ranks: int, stages: tuple[str, ...], gpus: int = 0) -> TrainingOrder:
    return msgspec.structs.replace(order, nproc=ranks, world_size=ranks, stages=stages, gpus=gpus, fault=None)


def speed_of(ran: HostRun, ranks: int, way: str) -> Speed:
    """The speed of a run; of one that didn't come to its end no figure counts, even where one came before."""
    failure = _failure(ran)
    if failure:
        return Speed(ranks=ranks, way=way, problem=failure, failed=True)
    for figures in ran.figures:
        samples, memory = figures.get("samples_per_second"), figures.get("memory")
        if isinstance(samples, (int, float)) and samples > 0:
            held = memory if isinstance(memory, int) else 0
            return Speed(ranks=ranks, way=way, samples_per_second=float(samples), memory=held)
    untested = [stage.words for run in ran.runs for stage in run.stages if stage.state is StageState.NOT_TESTED]
    if untested:
        return Speed(ranks=ranks, way=way, problem=untested[0])
    return Speed(ranks=ranks, way=way, problem="the run ended without a figure", failed=True)


def _failure(ran: HostRun) -> str:
    """ "rank 1 on node07 was killed by SIGKILL in scaling; its last line: ...", "" where all came to their end."""
    if ran.problem:
        return ran.problem
    found = attribute_failure(ran.runs)
    first = found.first if found else next((run for run in ran.runs if run.ending is not RankEnding.FINISHED), None)
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
