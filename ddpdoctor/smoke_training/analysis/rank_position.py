"""Where ranks of a smoke training are within a stage: which of its steps they take together, and who has come further. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddpdoctor.facts.smoke import CollectiveCall

WAITING_STEP: Final = re.compile(
    r"^(?:waiting|barrier|init_process_group|destroy_process_group"
    r"|training step|step \d+ of|one more step|a step |the whole batch|its (?:first|second) half|all_reduce of)"
)
"""Steps in which ranks meet without a collective of their own: what DDP calls, or a stage again and again, is not announced."""

ALONE: Final = 1 << 62
"""A step in which no rank needs another comes after those in which they met."""


def place_in_stage(stage: str, step: str, steps: int, calls: str, called: Sequence[CollectiveCall]) -> tuple[int, int]:
    """How far a rank has come in its stage: collectives that it has called, and where it is since the last one of them. Greater
    is further. Steps that it takes alone are not counted: one rank may have many of them where the others have none, as the
    one that saves a checkpoint, or copies between GPUs.

    step: the present one, the `steps`th of the stage. calls: its collective, or "". called: all that is known of.
    """
    collectives = next((call.number for call in reversed(called) if call.stage == stage), 0)
    if calls or not step:
        return collectives, 0
    return collectives, steps if WAITING_STEP.search(step) else ALONE
