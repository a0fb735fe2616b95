"""What the user means to run."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """How many ranks are to run on this host, and who says so.

    nproc: ranks on this host, at least 1.
    source: "--nproc", "LOCAL_WORLD_SIZE", "the number of GPUs" ... for the evidence.
    """

    nproc: int
    source: str
