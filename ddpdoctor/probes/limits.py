"""Asks for this process's limits, which a rank started from here inherits."""

from __future__ import annotations

import re

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.limits import Limits
from ddpdoctor.probes.context import Context

CAP_IPC_LOCK = 14
INITIAL_NAMESPACE = ["0", "0", "4294967295"]
"""/proc/self/uid_map of a process in the initial user namespace: all users, each as itself."""


def probe(context: Context) -> Limits | Unknown:
    try:
        import resource
    except ImportError:
        return Unknown("this system has no resource limits")

    def limits(name: str) -> tuple[Maybe[int], Maybe[int]]:
        if not hasattr(resource, name):
            return Unknown(f"this system has no {name}"), Unknown(f"this system has no {name}")
        soft, hard = resource.getrlimit(getattr(resource, name))
        return _counted(soft), _counted(hard)

    nofile_soft, nofile_hard = limits("RLIMIT_NOFILE")
    memlock_soft, memlock_hard = limits("RLIMIT_MEMLOCK")
    return Limits(
        nofile_soft=nofile_soft,
        nofile_hard=nofile_hard,
        memlock_soft=memlock_soft,
        memlock_hard=memlock_hard,
        processes_soft=limits("RLIMIT_NPROC")[0],
        may_lock_memory=_may_lock_memory(context),
        rdma_devices=tuple(context.names("/sys/class/infiniband")),
    )


def _counted(limit: int) -> int:
    # RLIM_INFINITY is -1 on Linux and 2**63 - 1 on macOS.
    return -1 if limit < 0 or limit >= 2**63 - 1 else limit


def _may_lock_memory(context: Context) -> Maybe[bool]:
    status = context.read("/proc/self/status")
    if isinstance(status, Unknown):
        return status
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    if not found:
        return Unknown("/proc/self/status has no CapEff")
    if not int(found[1], 16) >> CAP_IPC_LOCK & 1:
        return False
    # Root of a rootless container has all capabilities, but for locked memory the kernel asks the initial namespace.
    users = context.read("/proc/self/uid_map")
    return users if isinstance(users, Unknown) else users.split() == INITIAL_NAMESPACE
