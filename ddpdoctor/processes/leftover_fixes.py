"""The command that ends leftovers. Only what is proven is for ddpdoctor to end itself. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddpdoctor.processes.leftover import Leftover

MOST_NAMED = 32


def command_of(leftovers: Sequence[Leftover]) -> str:
    """`ddpdoctor zombies --kill` with the pids and paths of the first of these."""
    named = [str(leftover.pid or leftover.path) for leftover in leftovers[:MOST_NAMED]]
    return shlex.join(["ddpdoctor", "zombies", "--kill", *named])
