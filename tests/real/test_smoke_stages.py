"""Real smoke trainings on gloo, with all stages: healthy ones, and ranks that get their results wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.facts.smoke import RankEnding, Smoke, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import TrainingFailureKind, attribute_failure
from ddpdoctor.smoke_training.stages import STAGES
from ddpdoctor.smoke_training.training_order import Fault
from tests.support.smoke_runs import Estate, by_rank, order, train

PATIENCE = 40.0
"""What a stage may take where none hangs."""
HANGING = 8.0
"""The same where one does."""
SIDE_BY_SIDE = 4

NOT_ON_CPU = {
    "sync_batchnorm": "torch has SyncBatchNorm for GPUs only",
    "model split": "a model over two GPUs needs two GPUs a rank; these ranks run on the CPU",
    "p2p": "copies between GPUs need two GPUs; these ranks run on the CPU",
    "apex": "Apex's fused kernels need GPUs; these ranks run on the CPU",
}
SAID = {
    "sampler": "ranks, ",
    "training": "10 steps, loss 0.",
    "one process": "same losses and parameters within 1e-09 (float64)",
    "accumulation": "no_sync equals the whole batch within 1e-09 (float64)",
    "parameters": "bit by bit",
    "amp": "bfloat16",
    "checkpoint": "9 tensors on ",
}
"""Of what was tested, in words."""


def healthy(nproc: int, folder: Path, stages: tuple[str, ...] = STAGES) -> Smoke:
    return asyncio.run(train(Estate(folder), order(nproc=nproc, seconds=PATIENCE, stages=stages)))


@pytest.mark.parametrize("nproc", [2, pytest.param(4, marks=pytest.mark.thorough), 8])
def test_every_stage_passes_or_says_why_it_is_not_tested(nproc: int, tmp_path: Path) -> None:
    ran = healthy(nproc, tmp_path / "run")
    assert len(ran.ranks) == nproc
    for rank in ran.ranks:
        assert rank.ending is RankEnding.FINISHED, (rank.words, rank.stack)
        assert [stage.name for stage in rank.stages] == list(STAGES)
        assert {stage.name: stage.words for stage in rank.stages if stage.state is StageState.NOT_TESTED} == NOT_ON_CPU
        assert {stage.state for stage in rank.stages} == {StageState.PASSED, StageState.NOT_TESTED}
        words = {stage.name: stage.words for stage in rank.stages}
        assert not [name for name, said in SAID.items() if said not in words[name]], words


def test_stages_do_without_those_before_them(tmp_path: Path) -> None:
    stages = tuple(name for name in STAGES if name not in ("training", "sampler", "amp", *NOT_ON_CPU))
    for rank in healthy(2, tmp_path / "run", stages).ranks:
        assert {stage.name: stage.state for stage in rank.stages} == dict.fromkeys(stages, StageState.PASSED)


class Case(msgspec.Struct, frozen=True):
    """A fault of one rank; the stage that finds it, the ranks that are to be named, and the words."""

    fault: Fault
    found_by: str
    culprits: tuple[int, ...]
    words: str
    nproc: int = 3
    thorough: bool = False

    def __str__(self) -> str:
        return f"{self.fault.kind} of rank {self.fault.rank} of {self.nproc} at {self.fault.stage}"


WRONG = (
    Case(Fault(1, "sampler", "seed"), "sampler", (1,), "its sampler has the seed 1, the others' 0 (most ranks"),
    Case(
        Fault(0, "sampler", "sampler"),
        "sampler",
        (0,),
        "it takes 24 samples an epoch rather than its share of 8",
        thorough=True,
    ),
    Case(Fault(0, "training", "sampler"), "one process", (0,), "at step 1 of 10", nproc=2, thorough=True),
    Case(Fault(1, "training", "drift"), "one process", (1,), "at step 4 of 10", thorough=True),
    Case(
        Fault(0, "parameters", "drift"),
        "parameters",
        (0,),
        "of rank 0 differ from the other ranks': 0.weight (most ranks",
    ),
    Case(
        Fault(1, "parameters", "drift"),
        "parameters",
        (1,),
        "rank 0 counts as right where two differ",
        nproc=2,
        thorough=True,
    ),
)


OTHERWISE = (
    Case(Fault(1, "all_reduce", "other-collective"), "all_reduce", (1,), "broadcast float32[1]"),
    Case(Fault(1, "training", "other-collective"), "training", (1,), "all_reduce float32[1]", thorough=True),
    Case(Fault(1, "all_reduce", "shape"), "all_reduce", (1,), "all_reduce float32[4]", thorough=True),
    Case(Fault(1, "training", "shape"), "training", (1,), "DistributedDataParallel float64[696]"),
    Case(Fault(2, "checkpoint", "other-collective"), "checkpoint", (2,), "all_reduce int64[1]", thorough=True),
)


def called(run: Any, stage: str) -> str:
    """The first collective that a rank called in that stage."""
    return next(one.call for one in run.called if one.stage == stage)


def each(cases: Sequence[Case]) -> list[Any]:
    """Parameters."""
    return [pytest.param(case, id=str(case), marks=pytest.mark.thorough if case.thorough else ()) for case in cases]


@pytest.fixture(scope="module")
def sick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Estate, Smoke]]:
    """All that were chosen, side by side: some do nothing but wait."""
    items = request.session.items
    chosen = [one for one in OTHERWISE + WRONG if any(f"[{one}]" in item.name for item in items)]
    folder = tmp_path_factory.mktemp("sick")
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(number: int, case: Case) -> tuple[Estate, Smoke]:
        async with turns:
            seconds = PATIENCE if case in WRONG else HANGING
            estate = Estate(folder / str(number))
            return estate, await train(estate, order(case.fault, case.nproc, seconds, STAGES))

    async def all_of_them() -> list[tuple[Estate, Smoke]]:
        return await asyncio.gather(*(one(number, case) for number, case in enumerate(chosen)))

    return dict(zip(map(str, chosen), asyncio.run(all_of_them()), strict=True))


@pytest.mark.parametrize("case", each(WRONG))
def test_the_rank_whose_results_are_wrong_is_named_by_all(case: Case, sick: dict[str, tuple[Estate, Smoke]]) -> None:
    _, ran = sick[str(case)]
    for rank in ran.ranks:
        assert rank.ending is RankEnding.WRONG, (rank.ending, rank.words)
        assert rank.culprits == case.culprits
        assert case.words in rank.words
        assert rank.last is not None
        assert (rank.last.name, rank.last.state) == (case.found_by, StageState.FAILED)
    before = STAGES[: STAGES.index(case.found_by)]
    assert {stage.state for stage in ran.ranks[0].stages if stage.name in before} == {StageState.PASSED}


@pytest.mark.parametrize("case", each(OTHERWISE))
def test_the_rank_that_calls_something_else_is_found_by_its_call_in_time(
    case: Case, sick: dict[str, tuple[Estate, Smoke]]
) -> None:
    estate, ran = sick[str(case)]
    ranks = by_rank(ran)
    assert ran.problem == ""
    blamed = attribute_failure(ran.ranks)
    assert blamed is not None
    assert (blamed.kind, blamed.stage) == (TrainingFailureKind.DIFFERENT_CALLS, case.found_by)
    assert tuple(culprit.rank for culprit in blamed.culprits) == case.culprits
    for one in ranks.values():
        assert one.last is not None
        assert one.last.name == case.found_by
        assert one.last.seconds <= HANGING + 3 + estate.behind(one.last.seconds + HANGING)
    assert not [run.rank for run in ranks.values() if run.ending is RankEnding.FINISHED]
    calls = {rank: called(one, case.found_by) for rank, one in ranks.items()}
    (common, times), *_ = Counter(calls.values()).most_common()
    assert times == case.nproc - 1
    assert {rank: call for rank, call in calls.items() if call != common} == dict.fromkeys(case.culprits, case.words)
