"""As whom a process' memory is read. Root reads that of another user's process as that user, wherever the system lets that user:
py-spy works through what the process has laid out there."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.ownership import ROOT
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.run_as import RunAsUser, identity_of, is_wary

NAMESPACES: Final = ("ns/mnt", "ns/user")
UNRESTRICTED: Final = 0
"""Yama's setting by which users may look into their own processes."""


def memory_reader(pid: int, proc: Proc) -> RunAsUser | None:
    """Decide as whom this process is read: None for who we are.

    Root's rights are needed where Yama lets users look into their processes' parents alone, and for a container's, whose
    files another user can't enter. That a process is closed to its own user is no such reason: it can bring that about.
    """
    if not is_wary() or not _users_may_look(proc) or _is_contained(pid, proc):
        return None
    status = proc.status(pid)
    uids, gids = ({int(number) for number in status.get(name, "").split()} for name in ("Uid", "Gid"))
    if len(uids) != 1 or len(gids) != 1 or uids == {ROOT}:
        return None
    return identity_of(uids.pop())._replace(gid=gids.pop())


def _users_may_look(proc: Proc) -> bool:
    scope = proc.read("sys/kernel/yama/ptrace_scope", 16)
    # Without Yama there is no such file.
    return not isinstance(scope, bytes) or scope.strip() == str(UNRESTRICTED).encode()


def _is_contained(pid: int, proc: Proc) -> bool:
    return any(proc.link(f"{pid}/{name}") != proc.link(f"self/{name}") for name in NAMESPACES)
