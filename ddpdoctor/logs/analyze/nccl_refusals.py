"""NCCL's refusals, of which torch says only their kind: what its last error names needs no guess. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.facts.log import Log, SignMatch

REFUSED: Final = "ncclInvalidUsage: "
"""How the words of torch's begin that two ranks on one GPU may be behind."""
LAST_ERROR: Final = "Last error:"
"""What torch puts, on a line of its own, before NCCL's own word on it."""
OWN_WORD: Final = "Duplicate GPU"
BELOW: Final = 2
"""Lines to NCCL's own word."""


def names_another_refusal(refused: SignMatch, log: Log) -> bool:
    """Whether a sign that guesses at two ranks on one GPU has NCCL's last error right below, and that is something else."""
    if (
        not refused.sign.startswith(REFUSED)
        or len(refused.after) < BELOW
        or refused.after[0].text.strip() != LAST_ERROR
    ):
        return False
    told = refused.after[1]
    # Where lines bear no rank, the next one but one is another's, if NCCL's own word is empty.
    right_below = refused.line.rank is not None or told.number - refused.line.number == BELOW
    return right_below and bool(told.text.strip()) and OWN_WORD not in told.text
