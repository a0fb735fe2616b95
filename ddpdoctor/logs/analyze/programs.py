"""Programs that a script itself starts and waits for: that one failed is the script's failure, where nothing else is known. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddpdoctor.facts.log import LoggedException
from ddpdoctor.logs.analyze.exceptions import is_of_launcher, short_name
from ddpdoctor.logs.analyze.failures import Failure

_STARTS_RANKS: Final = re.compile(
    r"""Command ['"](?:\[['"])?(?:\S*[/\\])?(?:python[\d.]*|torchrun|accelerate|deepspeed|colossalai|horovodrun|srun|sbatch|mpirun|mpiexec|ssh|pdsh|ray)\b"""
)
"""Its own words are elsewhere, and say more."""
WHY: Final = "A program that the script starts and waits for failed; what it wrote itself stands before the traceback, if it wrote anything."


def is_of_a_program(raised: LoggedException) -> bool:
    """Whether a line of the script's own started a program that failed, and that starts no ranks."""
    named = short_name(raised.exception) == "CalledProcessError" and not _STARTS_RANKS.match(raised.message)
    # What a launcher has started as a rank may be a wrapper around the rank itself.
    return named and raised.own is not None and raised.line.rank is None


def program_that_failed(failures: Sequence[Failure]) -> Failure | None:
    """The failure that is such a program's, where all that is told beside it follows from it."""
    ended = (
        failure.exited is None or failure.exited.said_by == "subprocess" or failure.exited.told_to
        for failure in failures
    )
    raised = (failure.raised is None or is_of_launcher(failure.raised) for failure in failures)
    if not (all(ended) and all(raised)) or any(failure.effects for failure in failures):
        return None
    return next((failure for failure in failures if failure.raised and is_of_a_program(failure.raised)), None)
