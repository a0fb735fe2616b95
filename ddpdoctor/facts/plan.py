"""Plan of the user: the ranks that are meant to run."""

from __future__ import annotations

from typing import Final

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """Number of ranks that are to run on this host, and who says so.

    nproc: ranks on this host; 0 where no job is to be started.
    source: "--nproc", "LOCAL_WORLD_SIZE", "the number of GPUs" ... for the evidence.
    """

    nproc: int
    source: str


NO_PLAN: Final = Plan(0, "no job is to be started")
"""Of who asks for the jobs that run: what a launcher has set for ddpdoctor itself is no plan."""
