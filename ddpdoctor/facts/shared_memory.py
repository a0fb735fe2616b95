"""/dev/shm, through which ranks on one host and DataLoader workers hand each other data."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.facts.base import Facts, Maybe, Source


class SharedMemory(Facts, frozen=True, kw_only=True):
    """Sizes in bytes."""

    size: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    free: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    writable: Annotated[Maybe[bool], Source("access of /dev/shm")] = True
    stale: Annotated[Maybe[tuple[str, ...]], Source("/dev/shm/nccl-*, torch_*, and /proc/*/maps")] = ()
    """Segments of NCCL or torch that no process has open any more."""
    stale_size: Annotated[int, Source("/dev/shm")] = 0
