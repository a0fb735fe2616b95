"""Measures for `ddpdoctor smoke --scaling` the same training at 1, 2, 4 ... ranks of this host, and with nn.DataParallel."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ddpdoctor.facts.smoke import Bandwidth, Leftovers, Scaling, Smoke, Speed, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
from ddpdoctor.smoke_training.analysis.failure_wording import describe_ending
from ddpdoctor.smoke_training.local.leftovers import merge_leftovers
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.training_order import TrainingOrder

FIRST_STAGES: Final = ("import", "device", "rendezvous", "process group")
SPEED, DATA_PARALLEL, BANDWIDTH, END = "scaling", "data parallel", "bandwidth", "shutdown"
"""Stages of these runs alone: `smoke_training/trainer/ddpdoctor_smoke/stages/scaling.py`."""

OnProgress = Callable[[RankMonitor], None]


class MeasuredScaling(NamedTuple):
    """The figures, and what their runs left behind."""

    scaling: Scaling
    leftovers: Leftovers = Leftovers()


class MeasuredRun(NamedTuple):
    """A run, and the figures that its ranks told."""

    facts: Smoke
    figures: Sequence[Mapping[str, Any]]

    def figures_of(self, name: str, kinds: type | tuple[type, ...]) -> Iterator[Any]:
        """The values by that name which are of those kinds."""
        return (figures[name] for figures in self.figures if isinstance(figures.get(name), kinds))


async def measure_speeds(
    order: TrainingOrder, *, python: str, environ: Mapping[str, str], on_progress: OnProgress
) -> MeasuredScaling:
    """Train with ever more ranks, up to those of a training that has passed, and measure their speed. After a run that fails there are no
    larger ones: their figures would say nothing. The arguments are those of `RankRunner`."""
    if order.nnodes > 1 or order.launched is not None:
        return MeasuredScaling(
            Scaling(problem="it is measured on one host, and where ddpdoctor itself starts the ranks")
        )
    leftovers: list[Leftovers] = []

    async def run_order(order: TrainingOrder) -> MeasuredRun:
        runner = RankRunner(order, python, environ, on_progress)
        facts = await runner.run()
        leftovers.append(facts.leftovers)
        return MeasuredRun(facts, runner.monitor.figures)

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
        batch = batch or next(ran.figures_of("batch", int), 0)
        if speed.problem:
            break
        bandwidths = tuple(
            Bandwidth(size=figures["size"], bus=float(figures["bus"]))
            for figures in ran.figures
            if isinstance(figures.get("size"), int) and isinstance(figures.get("bus"), (int, float))
        )
        larger = next(ran.figures_of("larger", str), "")
    speeds.append(await _data_parallel(order, run_order))
    cores = len(os.sched_getaffinity(0))
    return MeasuredScaling(
        Scaling(speeds=tuple(speeds), bandwidths=bandwidths, larger=larger, batch=batch, cores=cores),
        merge_leftovers(leftovers),
    )


def numbers_of_ranks(largest: int) -> list[int]:
    """1, 2, 4 ... and the largest itself."""
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return [*powers, largest]


async def _data_parallel(order: TrainingOrder, run_order: Callable[[TrainingOrder], Awaitable[MeasuredRun]]) -> Speed:
    if order.backend != "nccl":
        return Speed(ranks=order.nproc, way="DataParallel", problem="nn.DataParallel works on GPUs only")
    if order.nproc < 2:
        return Speed(ranks=order.nproc, way="DataParallel", problem="needs 2 GPUs")
    alone = _order_for(order, 1, (*FIRST_STAGES, DATA_PARALLEL, END), gpus=order.nproc)
    return speed_of(await run_order(alone), order.nproc, "DataParallel")


def _order_for(order: TrainingOrder, ranks: int, stages: tuple[str, ...], gpus: int = 0) -> TrainingOrder:
    return msgspec.structs.replace(
        order, nproc=ranks, world_size=ranks, stages=stages, gpus=gpus, duration=0.0, fault=None
    )


def speed_of(ran: MeasuredRun, ranks: int, way: str) -> Speed:
    """The speed of a run; of one that didn't come to its end no figure counts, even where one came before."""
    failure = _failure(ran.facts)
    if failure:
        return Speed(ranks=ranks, way=way, problem=failure, failed=True)
    for figures in ran.figures:
        samples, memory = figures.get("samples_per_second"), figures.get("memory")
        if isinstance(samples, (int, float)) and samples > 0:
            held = memory if isinstance(memory, int) else 0
            return Speed(ranks=ranks, way=way, samples_per_second=float(samples), memory=held)
    untested = [stage.words for run in ran.facts.ranks for stage in run.stages if stage.state is StageState.NOT_TESTED]
    if untested:
        return Speed(ranks=ranks, way=way, problem=untested[0])
    return Speed(ranks=ranks, way=way, problem="the run ended without a figure", failed=True)


def _failure(facts: Smoke) -> str:
    """ "rank 1 on node07 was killed by SIGKILL in scaling; its last line: ...", "" where all came to their end."""
    found = attribute_failure(facts.ranks)
    if facts.problem or found is None:
        return facts.problem
    run = found.first
    said = f'; its last line: "{run.last_line}"' if run.last_line and run.last_line not in run.words else ""
    return f"rank {run.rank} on {run.host} {describe_ending(run)}{said}"
