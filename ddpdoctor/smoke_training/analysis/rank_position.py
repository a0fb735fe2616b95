"""The place to which each rank of a smoke training has come, and whether it waits for others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.smoke import CollectiveCall, RankEnding, RankRun, StageState

WAITING_STEP: Final = compile_lazily(
    r"^(?:waiting|barrier|init_process_group|destroy_process_group"
    r"|training step|step \d+ of|one more step|a step |the whole batch|its (?:first|second) half|all_reduce of)"
)
"""Steps in which ranks meet without a collective of their own: what DDP calls, or a stage again and again, is not announced."""

WAITING_PLACES: Final = (
    "torch/distributed/", "torch/nn/parallel/", "torch/autograd/", "torch/cuda/", "torch/_C/",
)  # fmt: skip
"""Files of the innermost Python call of a rank that waits for the others, or for a GPU that does."""

SYNCHRONISING_PLACES: Final = ("stages/", "ddpdoctor_smoke/rank.py", "torch/_tensor.py", "torch/amp/")
"""Files in which a rank waits for a collective that it has called with NCCL, whose collectives return at once: `.item()`, `.cpu()` and
float() in the stages' own files leave no frame of their own."""

LAST_PLACE: Final = 1 << 62
"""The place of a step in which no rank needs another: after those in which they met."""


def place_in_stage(stage: str, step: str, steps: int, calls: str, called: Sequence[CollectiveCall]) -> tuple[int, int]:
    """The place to which a rank has come in its stage: collectives that it has called, and its place since the last one of them. Greater
    is further. Steps that it takes alone are not counted: one rank may have many of them where the others have none, as the
    one that saves a checkpoint, or copies between GPUs.

    steps: the number of the present step; calls: the collective that it calls, or ""; called: the rank's collectives that are known.
    """
    collectives = next((call.number for call in reversed(called) if call.stage == stage), 0)
    if calls or not step:
        return collectives, 0
    return collectives, steps if WAITING_STEP.search(step) else LAST_PLACE


def stage_of(run: RankRun) -> str:
    """The stage that a rank was in; the first, if it never came."""
    last = run.last
    return last.name if last else next((stage.name for stage in run.stages), "")


def position(run: RankRun) -> tuple[int, int, int]:
    """The place to which a rank has come: stages that are over, and its place in the present one."""
    over = sum(stage.state in (StageState.PASSED, StageState.NOT_TESTED) for stage in run.stages)
    if run.last is None or run.last.state is StageState.PASSED:
        return over, 0, 0
    return over, *place_in_stage(run.last.name, run.step, run.steps, run.calls, run.called)


def is_waiting(run: RankRun) -> bool:
    """Whether a rank that hangs waits for others, by its stack; without one by what it said that it would do."""
    if run.process_state or run.ending is RankEnding.NEVER_CAME:
        return False
    says_so = bool(run.calls or WAITING_STEP.search(run.step))
    if not run.stack:
        return says_so
    innermost = run.stack[0]
    return any(place in innermost for place in WAITING_PLACES) or (
        says_so and any(place in innermost for place in SYNCHRONISING_PLACES)
    )
