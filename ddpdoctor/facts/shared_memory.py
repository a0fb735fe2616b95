"""/dev/shm, through which ranks on one host and DataLoader workers hand each other data."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.facts.base import Facts, Maybe, Source


class SharedMemory(Facts, frozen=True, kw_only=True):
    """Sizes in bytes."""

    exists: Annotated[bool, Source("stat of /dev/shm")] = True
    size: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    free: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    writable: Annotated[Maybe[bool], Source("access of /dev/shm")] = True
    stale: Annotated[Maybe[tuple[str, ...]], Source("/dev/shm/{nccl-,torch_,psm_,sem.mp-}*, /proc/*/maps")] = ()
    """Paths of segments that no process maps or has open any more; those of users whose processes can't be seen are left out."""
    stale_size: Annotated[int, Source("/dev/shm")] = 0
