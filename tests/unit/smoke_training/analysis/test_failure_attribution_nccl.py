"""Who is blamed for a hang over NCCL, whose collectives return at once: made-up stacks, as it would leave them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor import smoke_training as smoke_package
from ddpdoctor.facts.smoke import RankEnding, RankRun
from ddpdoctor.smoke_training.analysis.failure_attribution import TrainingFailureKind
from ddpdoctor.smoke_training.analysis.rank_position import WAITING_STEP, is_waiting
from tests.unit.smoke_training.analysis.test_failure_attribution import (
    ELSEWHERE,
    finding,
    found,
    named,
    ran,
    recorded,
    waits_in_all_reduce,
)

# What waits is what needs a result, and it leaves no frame of its own.
IN_ITEM = ("must_be (stages/collectives.py:49)", "all_reduce (stages/collectives.py:25)")
IN_TENSOR = ("__format__ (torch/_tensor.py:1124)", "must_be (stages/collectives.py:49)")
IN_GATHER = ("gather (ddpdoctor_smoke/rank.py:86)", "all_gather (stages/collectives.py:38)")
IN_FLOAT = ("training_of (stages/training.py:126)", "trained (stages/training.py:106)")
IN_SCALER = ("_maybe_opt_step (torch/amp/grad_scaler.py:364)", "amp (stages/precision.py:99)")
IN_FORWARD = ("forward (torch/nn/modules/linear.py:125)", "training_of (stages/training.py:126)")


def trains(rank: int, **more: Any) -> RankRun:
    """A rank in a step whose collectives are DDP's, so that it has announced none."""
    facts = {"step": "training step 3 of 10", "steps": 4, "stack": IN_FLOAT}
    return ran(rank, RankEnding.HUNG, "training", **{**facts, **more})


@pytest.mark.parametrize("stack", [IN_ITEM, IN_TENSOR, IN_GATHER])
def test_with_nccl_the_ranks_wait_in_the_stages_own_files(stack: tuple[str, ...]) -> None:
    assert is_waiting(waits_in_all_reduce(0, stack=stack))
    assert found(*(waits_in_all_reduce(rank, stack=stack) for rank in range(2))).kind is TrainingFailureKind.TOGETHER
    elsewhere = waits_in_all_reduce(2, stack=ELSEWHERE)
    assert named(*(waits_in_all_reduce(rank, stack=stack) for rank in range(2)), elsewhere)[:2] == (
        TrainingFailureKind.HUNG,
        [2],
    )


@pytest.mark.parametrize("stack", [IN_FLOAT, IN_SCALER, IN_GATHER, ("deviation (stages/comparing.py:57)",)])
@pytest.mark.parametrize("odd", [ELSEWHERE, IN_FORWARD, ("__next__ (torch/utils/data/dataloader.py:741)",)])
def test_with_nccl_a_step_of_training_is_waited_for_without_a_call(
    stack: tuple[str, ...], odd: tuple[str, ...]
) -> None:
    assert named(trains(0, stack=stack), trains(1, stack=odd), trains(2, stack=stack)) == (
        TrainingFailureKind.HUNG,
        [1],
        "training",
    )


@pytest.mark.parametrize("stack", [IN_FLOAT, IN_GATHER, IN_FORWARD, ELSEWHERE, ()])
@pytest.mark.parametrize("state", ["stopped", "in the kernel: os_acquire_rwlock_write"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_whom_the_kernel_holds_comes_before_all_else(stack: tuple[str, ...], state: str, ahead: int) -> None:
    """Also where it is ahead: NCCL's threads in it serve the others."""
    held = trains(1, stack=(), process_state=state, steps=4 + ahead)
    assert named(trains(0, stack=stack), held, trains(2, stack=stack)) == (TrainingFailureKind.HUNG, [1], "training")


def test_of_several_that_are_held_those_behind_and_alike() -> None:
    held = [trains(0, process_state="stopped"), trains(1, process_state="in the kernel: nfs_wait"), trains(2)]
    assert named(*held)[1] == [0]
    assert named(trains(0, process_state="stopped", steps=5), *held[1:])[1] == [1]
    assert named(trains(0, process_state="stopped"), trains(1, process_state="stopped"), held[2])[1] == [0, 1]


def test_a_stage_that_computes_does_not_wait() -> None:
    alone = {"step": "the same training in one process", "stack": ("alone (stages/training.py:199)",)}
    saving = {"step": "torch.save", "stack": ("saved (stages/checkpointing.py:58)",)}
    assert not is_waiting(trains(0, **alone))
    assert not is_waiting(trains(0, **saving))


MEETING_STEPS = {
    "a step on both", "training step %d of %d", "the whole batch", "its first half, without synchronising",
    "its second half", "one more step", "a step with SyncBatchNorm", "step %d of %d in %s", "destroy_process_group",
    "waiting at the store for rank %d", "init_process_group", "all_reduce of %d bytes, again and again",
    "training steps %d to %d",
    "training steps, again and again",
}  # fmt: skip
LONELY_STEPS = {
    "torch.load", "torch.save", "from %s to %s", "the same training in one process", "%s of Apex and of torch",
}  # fmt: skip
"""Steps without a call in which no rank needs another."""


def test_of_each_step_without_a_call_it_is_known_whether_ranks_meet_in_it() -> None:
    files = (Path(smoke_package.__file__).parent / "trainer" / "ddpdoctor_smoke" / "stages").glob("*.py")
    words = {text for file in files for text in steps_in(ast.parse(file.read_text()))}
    assert words == MEETING_STEPS | LONELY_STEPS
    for text in words:
        shown = text.replace("%d", "3").replace("%s", "float16")
        assert bool(WAITING_STEP.search(shown)) is (text in MEETING_STEPS), text


def steps_in(tree: ast.AST) -> Iterator[str]:
    """The words of each one.step(words) without a second argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
            words = node.args[0] if len(node.args) == 1 else None
            words = words.left if isinstance(words, ast.BinOp) else words
            if isinstance(words, ast.Constant):
                yield str(words.value)


NCCL = {
    "sick-nccl-stopped-in-training": (TrainingFailureKind.HUNG, [5], "training"),
    "sick-nccl-own-code-in-training": (TrainingFailureKind.HUNG, [3], "training"),
    "sick-nccl-driver-in-all-gather": (TrainingFailureKind.HUNG, [2], "all_gather"),
    "sick-nccl-copy-between-gpus": (TrainingFailureKind.HUNG, [0], "p2p"),
    "sick-nccl-together": (TrainingFailureKind.TOGETHER, list(range(8)), "all_reduce"),
    "sick-nccl-stacks-that-tell-nothing": (TrainingFailureKind.TOGETHER, list(range(8)), "training"),
}


@pytest.mark.parametrize("name", NCCL)
def test_as_nccl_would_leave_them(name: str) -> None:
    assert named(*recorded(f"smoke-hang/{name}").ranks) == NCCL[name]


def test_of_who_is_busy_itself_it_is_not_said_that_it_waits() -> None:
    one = finding(
        [trains(0), trains(1, stack=(), process_state="stopped"), trains(2, stack=IN_FORWARD)], backend="nccl"
    )
    assert one.summary == (
        "rank 1 is stopped in training step 3 of 10; rank 0 waits for it in training step 3 of 10"
        " and rank 2 is in training step 3 of 10"
    )
    assert one.fixes[0].commands == ("ps -eo pid,ppid,stat,args | awk '$3 ~ /^[Tt]/'",)


def test_where_nothing_tells_them_apart_no_more_is_said() -> None:
    gpu = {"device": "cuda:0, NVIDIA H100"}
    waiting = finding([trains(0, **gpu), trains(1, **gpu)], backend="nccl")
    assert waiting.cause == (
        "All have come to the same place and wait there, and nothing tells them apart. Mostly what they send doesn't get"
        " through between the ranks, or one of their GPUs stands still."
    )
    unclear = finding([trains(rank, stack=IN_FORWARD) for rank in range(2)], backend="nccl")
    assert "not of all it is known that they wait" in unclear.cause
    assert unclear.summary == waiting.summary
