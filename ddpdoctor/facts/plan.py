"""Plan of the user: the ranks that are meant to run."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """Number of ranks that are to run on this host, and who says so.

    nproc: ranks on this host, at least 1.
    source: "--nproc", "LOCAL_WORLD_SIZE", "the number of GPUs" ... for the evidence.
    """

    nproc: int
    source: str
