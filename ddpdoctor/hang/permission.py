"""Why processes couldn't be looked into, in whole sentences, each with the command that would help."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.facts.processes import Process
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import PySpyTrouble
from ddpdoctor.probes.run_as import OPTION

SYS_PTRACE_BIT: Final = 1 << 19
"""CAP_SYS_PTRACE in the masks of /proc/PID/status."""
ONLY_PARENTS, ONLY_ROOT, NOBODY = 1, 2, 3
"""Yama's settings of ptrace_scope: whom it lets look into a process."""

TROUBLE_WORDS: Final = {
    PySpyTrouble.NO_START: "py-spy is there, and this user can't start it",
    PySpyTrouble.NO_PYTHON: "py-spy finds no Python there that it knows",
    PySpyTrouble.SLOW: "py-spy gave no answer in time, as happens where a process waits in the kernel",
    PySpyTrouble.TORN: "py-spy could make nothing of what it read there",
}


class Powers(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may do."""

    uid: int
    sys_ptrace: bool
    ptrace_scope: int | None
    """Yama's setting, None without yama."""
    contained: bool
    """Whether it runs in a container."""


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A process whose stack could not be read."""

    rank: int
    process: Process
    trouble: PySpyTrouble
    worker: bool = False
    """It is a DataLoader worker of that rank."""


def powers(proc: Proc, pid: int = 0) -> Powers:
    """Learn what this process may do, or the one of that pid."""
    pid = pid or os.getpid()
    status = proc.status(pid)
    uids = status.get("Uid", "").split()
    scope = proc.read("sys/kernel/yama/ptrace_scope", 16)
    namespace = proc.link(f"{pid}/ns/pid")
    return Powers(
        uid=int(uids[1]) if len(uids) > 1 else os.geteuid(),
        sys_ptrace=bool(int(status.get("CapEff", "") or "0", 16) & SYS_PTRACE_BIT),
        ptrace_scope=int(scope) if isinstance(scope, bytes) and scope.strip().isdigit() else None,
        contained=isinstance(namespace, str) and namespace != INITIAL_PID_NAMESPACE,
    )


def command_line(job: str, *options: str) -> str:
    """Word this command for another user or another time. Isolated: root is to import nothing from the folder where it is typed."""
    return shlex.join([sys.executable, "-I", "-m", "ddpdoctor", *options, "jobs", "--hang", *([job] if job else [])])


def hidden_stacks(missed: Sequence[Missed], mine: Powers, job: str) -> list[str]:
    """Say why these stacks are missing, a sentence a reason, each with the command that would help."""
    sentences = []
    by_trouble = grouped(missed, lambda stack: stack.trouble)
    if PySpyTrouble.NO_PROGRAM in by_trouble:
        pip = shlex.join([sys.executable, "-m", "pip", "install", "py-spy"])
        sentences.append(f"No stack could be read, since py-spy isn't installed beside ddpdoctor: {pip}")
    denied = by_trouble.get(PySpyTrouble.DENIED, [])
    if foreign := [stack for stack in denied if stack.process.uid != mine.uid]:
        users = sorted({_owner(stack.process) for stack in foreign})
        belong = "it belongs" if len(foreign) == 1 else "they belong"
        sentences.append(f"{_not_read(foreign)}: {belong} to {listed(users)}. {_help(mine, job, foreign=True)}")
    if own := [stack for stack in denied if stack.process.uid == mine.uid]:
        sentences.append(f"{_not_read(own)}: {_why(mine)}. {_help(mine, job)}")
    if closed := by_trouble.get(PySpyTrouble.CLOSED):
        let = "its own user may not read it, and root looks no deeper unless told so"
        sentences.append(f"{_not_read(closed)}: {let}. It is told so by {command_line(job, OPTION)}")
    sentences += [
        f"{_not_read(by_trouble[trouble])}: {words}."
        for trouble, words in TROUBLE_WORDS.items()
        if trouble in by_trouble
    ]
    return sentences


def hidden_places(nameless: Sequence[Process], mine: Powers, job: str) -> list[str]:
    """Say of which processes of a job nobody tells which rank they are: these are not looked at."""
    if not nameless:
        return []
    who = f"Which rank{'' if len(nameless) == 1 else 's'} pid {listed(process.pid for process in nameless)} may be, nobody says"
    users = sorted({_owner(process) for process in nameless if process.uid != mine.uid})
    if not users:
        return [f"{who}; {'it was' if len(nameless) == 1 else 'they were'} not looked at."]
    return [f"{who}, since the settings of {listed(users)}'s processes can't be read. {_help(mine, job, foreign=True)}"]


def _owner(process: Process) -> str:
    return process.user or f"uid {process.uid}"


def _why(mine: Powers) -> str:
    reasons = {
        NOBODY: "this kernel lets nobody read another process, not even root",
        ONLY_ROOT: "this kernel lets only root read another process",
        ONLY_PARENTS: "this kernel lets only its parents read a process",
    }
    if mine.ptrace_scope in reasons and (mine.ptrace_scope == NOBODY or not mine.sys_ptrace):
        return f"{reasons[mine.ptrace_scope]} (kernel.yama.ptrace_scope is {mine.ptrace_scope})"
    if mine.contained and not mine.sys_ptrace:
        return "this container lacks the capability SYS_PTRACE"
    return "the kernel doesn't allow it, though the process belongs to this user"


def _help(mine: Powers, job: str, *, foreign: bool = False) -> str:
    """Say what makes it possible now, without a restart of the job; else next time. foreign: the processes are another user's."""
    if mine.ptrace_scope == NOBODY:
        return (
            "Only a restart of the host changes that. For the next run, "
            "faulthandler.register(signal.SIGUSR1) in the script makes a rank print its stack on: kill -USR1 PID"
        )
    command = command_line(job)
    if mine.contained and foreign and mine.uid != 0:
        # Without root a container's capability is of no use.
        return f"As root, or as that user, it can be done; from the host: docker exec -u 0 --privileged CONTAINER {command}"
    if mine.contained:
        add = "The next time, start the container with --cap-add SYS_PTRACE"
        return f"{add}; now, from the host: docker exec --privileged CONTAINER {command}"
    if mine.uid == 0:
        return "This root lacks the capability SYS_PTRACE; one that has it can look"
    return f"Root can: sudo {command}"


def _not_read(missed: Sequence[Missed]) -> str:
    """Name the stacks: "The stacks of ranks 0-3 and of 8 DataLoader workers could not be read"."""
    ranks = {stack.rank for stack in missed if not stack.worker}
    workers = sum(stack.worker for stack in missed)
    parts = [ranks_named(ranks)] if ranks else []
    if workers:
        parts.append(plural(workers, "DataLoader worker"))
    return f"The stack{'' if len(missed) == 1 else 's'} of {' and of '.join(parts)} could not be read"
