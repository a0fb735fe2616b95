"""This process's limits: what a rank started from this shell would inherit."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Limits(Facts, frozen=True, kw_only=True):
    """-1 means unlimited. `memlock` in bytes."""

    nofile_soft: Annotated[Maybe[int], Source("getrlimit RLIMIT_NOFILE")]
    nofile_hard: Annotated[Maybe[int], Source("getrlimit RLIMIT_NOFILE")]
    memlock_soft: Annotated[Maybe[int], Source("getrlimit RLIMIT_MEMLOCK")]
    memlock_hard: Annotated[Maybe[int], Source("getrlimit RLIMIT_MEMLOCK")]
    processes_soft: Annotated[Maybe[int], Source("getrlimit RLIMIT_NPROC")] = -1
    may_lock_memory: Annotated[Maybe[bool], Source("CAP_IPC_LOCK in /proc/self/status, /proc/self/uid_map")] = False
    """With this capability (root, but not in a rootless container) the limit on locked memory doesn't count."""
    rdma_devices: Annotated[tuple[str, ...], Source("/sys/class/infiniband")] = ()
    """"mlx5_0" ...; only with these does locked memory matter to NCCL."""
