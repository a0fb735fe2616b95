"""Who is blamed for a hang where one rank takes steps that the others don't: as ranks would say it, from their first message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddpdoctor.facts.smoke import RankEnding, RankRun
from ddpdoctor.smoke_training.analysis.failure_attribution import TrainingFailureKind
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_outcome import rank_runs
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.unit.smoke_training.analysis.test_failure_attribution import (
    ELSEWHERE,
    found,
    named,
    ran,
    waits_in_all_reduce,
)
from tests.unit.smoke_training.analysis.test_failure_attribution_nccl import IN_FLOAT, IN_GATHER, trains

STAGES = ("import", "process group", "checkpoint", "p2p", "shutdown")
IN_COPIES = ("copies (stages/gpus.py:123)", "p2p (stages/gpus.py:102)")
IN_BARRIER = ("barrier (torch/distributed/distributed_c10d.py:4800)", "saved (stages/checkpointing.py:70)")
IN_LOAD = ("load (torch/serialization.py:1500)", "checkpoint (stages/checkpointing.py:32)")

SEEN = ("which GPUs every rank sees", "all_gather int64[3]")
USED = ("which GPUs every rank can use", "all_gather uint8[400]")
COPIED = ("all copies between GPUs", "all_gather uint8[400]")
SAVE = ("torch.save", "")
SEES = ("whose folder is rank 0's", "all_gather int64[1]")
SAVED = ("barrier after saving", "barrier")
LOAD = ("torch.load", "")


class Job:
    """Ranks that have come to the same stage, and say that they take such steps there."""

    def __init__(self, stage: str, *ranks: Sequence[tuple[str, str]]) -> None:
        self.watch = RankMonitor(TrainingOrder(nproc=len(ranks), world_size=len(ranks), seconds=30, stages=STAGES), 0.0)
        for rank, steps in enumerate(ranks):
            assert self.watch.introduce(rank, 100 + rank)
            for name in STAGES[: STAGES.index(stage)]:
                self.says(rank, stage=name, state="begun")
                self.says(rank, step="a step of before")
                self.says(rank, stage=name, state="passed", seconds=0.1)
            self.says(rank, stage=stage, state="begun")
            for words, calls in steps:
                self.says(rank, step=words, calls=calls)

    def says(self, rank: int, **message: Any) -> None:
        # Rank 0 is a little later, so that the others are the first to be too late.
        self.watch.take_rank_message(rank, message, 1.0 if rank else 1.5)

    def hangs(self, *stacks: tuple[str, ...]) -> tuple[RankRun, ...]:
        """What they came to when the first of them was late."""
        late = self.watch.stuck_ranks(self.watch.late_ranks(31.2))
        for one, stack in zip(self.watch.ranks.values(), stacks, strict=True):
            one.stack = stack
        return rank_runs(self.watch, "node01", late)


def copies(count: int) -> list[tuple[str, str]]:
    return [(f"from cuda:0 to cuda:{number + 1}", "") for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_rank_that_copies_for_all_is_waited_for_at_any_copy(count: int) -> None:
    job = Job("p2p", [SEEN, USED, *copies(count)], *[[SEEN, USED, COPIED]] * 3)
    ranks = job.hangs(IN_COPIES, IN_GATHER, IN_GATHER, IN_GATHER)
    assert [rank.ending for rank in ranks] == [RankEnding.HUNG] * 4
    assert named(*ranks) == (TrainingFailureKind.HUNG, [0], "p2p")


def test_after_all_copies_nobody_is_left_behind() -> None:
    ranks = Job("p2p", [SEEN, USED, *copies(6), COPIED], *[[SEEN, USED, COPIED]] * 3).hangs(*[IN_GATHER] * 4)
    assert [rank.ending for rank in ranks] == [RankEnding.HUNG] * 4
    assert found(*ranks).kind is TrainingFailureKind.TOGETHER


def test_a_copier_is_ahead_of_those_that_wait_in_what_it_has_left() -> None:
    ranks = Job("p2p", [SEEN, USED, *copies(1)], *[[SEEN, USED]] * 2).hangs(IN_COPIES, IN_GATHER, IN_GATHER)
    assert [rank.ending for rank in ranks] == [RankEnding.ENDED, RankEnding.HUNG, RankEnding.HUNG]
    assert named(*ranks) == (TrainingFailureKind.HUNG, [1, 2], "p2p")


def test_the_rank_that_saves_is_waited_for() -> None:
    ranks = Job("checkpoint", [SEES, SAVE], [SEES, SAVED], [SEES, SAVED]).hangs(ELSEWHERE, IN_BARRIER, IN_BARRIER)
    assert named(*ranks) == (TrainingFailureKind.HUNG, [0], "checkpoint")


@pytest.mark.parametrize("steps", [[SEES], [SEES, ("rank 0's tensors", "broadcast float64[32, 16]")]])
def test_once_it_has_saved_it_is_no_further_than_the_others(steps: list[tuple[str, str]]) -> None:
    others = [*steps, SAVED]
    ranks = Job("checkpoint", [*steps, SAVE, SAVED], others, others).hangs(*[IN_BARRIER] * 3)
    assert [rank.ending for rank in ranks] == [RankEnding.HUNG] * 3
    assert found(*ranks).kind is TrainingFailureKind.TOGETHER


def test_one_that_does_not_come_to_the_barrier_after_saving_is_left_behind() -> None:
    ranks = Job("checkpoint", [SEES, SAVE, SAVED], [SEES, SAVED], [SEES]).hangs(*[IN_BARRIER] * 3)
    one = found(*ranks)
    assert (one.kind, one.first.rank, one.left_behind) == (TrainingFailureKind.HUNG, 2, True)


def test_a_file_that_nobody_can_load_names_all() -> None:
    steps = [SAVED, LOAD]
    ranks = Job("checkpoint", [SEES, SAVE, *steps], [SEES, *steps], [SEES, *steps]).hangs(*[IN_LOAD] * 3)
    assert {culprit.rank for culprit in found(*ranks).culprits} == {0, 1, 2}


def test_a_rank_between_two_stages_is_not_ahead_of_those_in_the_next() -> None:
    job = Job("checkpoint", [SEES, SAVE, SAVED, LOAD], [], [])
    for rank in job.watch.ranks:
        job.says(rank, stage="checkpoint", state="passed")
    for rank in (1, 2):
        job.says(rank, stage="p2p", state="begun")
        job.says(rank, step=SEEN[0], calls=SEEN[1])
    ranks = job.hangs(ELSEWHERE, IN_GATHER, IN_GATHER)
    assert [rank.ending for rank in ranks] == [RankEnding.HUNG] * 3
    assert [culprit.rank for culprit in found(*ranks).culprits] == [0]


def test_who_is_busy_ahead_of_all_that_wait_is_not_whom_they_wait_for() -> None:
    ahead = ran(0, RankEnding.HUNG, "training", stack=ELSEWHERE)
    assert named(ahead, waits_in_all_reduce(1), waits_in_all_reduce(2)) == (
        TrainingFailureKind.HUNG,
        [1, 2],
        "all_reduce",
    )


def test_in_a_step_that_all_take_and_ddp_calls_for_the_one_before_it_is_behind() -> None:
    behind = trains(1, step="training step 2 of 10", steps=3)
    one = found(trains(0), behind, trains(2, stack=IN_FLOAT))
    assert (one.kind, [run.rank for run in one.culprits], one.left_behind) == (TrainingFailureKind.HUNG, [1], True)
