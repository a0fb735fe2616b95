"""/dev/shm, through which ranks on one host and DataLoader workers hand each other data."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file there that no process is seen to map or to have open. Size in bytes, age in seconds since it was last opened, written or changed by
    a call."""

    path: str
    size: int = 0
    uid: int = 0
    user: str = ""
    age: float = 0.0
    device: int = 0
    inode: int = 0
    wanted_by: str = ""
    """Who may still come for it, though it has it neither mapped nor open: "torch_shm_manager (pid 4711)"; "" where nobody may."""
    by_smoke: bool = False
    """A run of `ddpdoctor smoke` of this user's had it, by its own notes, and was killed with all that belonged to it."""


class SharedMemory(Facts, frozen=True, kw_only=True):
    """Sizes in bytes."""

    exists: Annotated[bool, Source("stat of /dev/shm")] = True
    size: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    free: Annotated[Maybe[int], Source("statvfs of /dev/shm")]
    writable: Annotated[Maybe[bool], Source("access of /dev/shm")] = True
    read_only: Annotated[bool, Source("statvfs of /dev/shm")] = False
    """Mounted so: then no permission lets anybody write to it."""
    stale: Annotated[Maybe[tuple[str, ...]], Source("/dev/shm/{nccl-,torch_,psm_,sem.mp-}*, /proc/*/maps")] = ()
    """Paths of segments that no process is seen to map or to have open any more; those of users whose processes can't be seen are
    left out. Segments are what NCCL, torch and Python's multiprocessing name so (see knowledge/segment_names.py)."""
    stale_size: Annotated[int, Source("/dev/shm")] = 0
    segments: Annotated[
        tuple[Segment, ...], Source("/dev/shm/{nccl-,torch_,psm_,sem.mp-}*, /proc/*/{maps,cmdline}")
    ] = ()
    """Those of `stale`, with their owners."""
    left_out: Annotated[tuple[str, ...], Source("/dev/shm")] = ()
    """A sentence for each user who has more segments than are looked at."""
    closed: Annotated[int, Source("/proc/*/{maps,fd}")] = 0
    """Processes that this user may not look into: any of them may use any of `stale`."""
