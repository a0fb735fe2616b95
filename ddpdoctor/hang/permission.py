"""Why processes couldn't be looked into, in whole sentences, each with the command that would help."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.facts.processes import Process
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import PySpyTrouble
from ddpdoctor.probes.run_as import OPTION

SYS_PTRACE: Final = 1 << 19
"""CAP_SYS_PTRACE in the masks of /proc/PID/status."""
CHILDREN, ROOT, NOBODY = 1, 2, 3
"""Yama's settings: whom it lets look into a process beside its own parents."""

WORDS: Final = {
    PySpyTrouble.NO_START: "py-spy is there, and this user can't start it",
    PySpyTrouble.NO_PYTHON: "py-spy finds no Python there that it knows",
    PySpyTrouble.SLOW: "py-spy gave no answer in time, as happens where a process waits in the kernel",
    PySpyTrouble.TORN: "py-spy could make nothing of what it read there",
}


class Powers(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may do. ptrace_scope: yama's setting, None without yama. contained: in a container."""

    uid: int
    sys_ptrace: bool
    ptrace_scope: int | None
    contained: bool


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A process whose stack could not be read. worker: it is a DataLoader worker of that rank."""

    rank: int
    process: Process
    trouble: PySpyTrouble
    worker: bool = False


def powers(proc: Proc, pid: int = 0) -> Powers:
    """This process's."""
    pid = pid or os.getpid()
    status = proc.status(pid)
    uids = status.get("Uid", "").split()
    scope = proc.read("sys/kernel/yama/ptrace_scope", 16)
    namespace = proc.link(f"{pid}/ns/pid")
    return Powers(
        uid=int(uids[1]) if len(uids) > 1 else os.geteuid(),
        sys_ptrace=bool(int(status.get("CapEff", "") or "0", 16) & SYS_PTRACE),
        ptrace_scope=int(scope) if isinstance(scope, bytes) and scope.strip().isdigit() else None,
        contained=isinstance(namespace, str) and namespace != INITIAL_PID_NAMESPACE,
    )


def command_line(job: str, *options: str) -> str:
    """This command, for another user or another time. Isolated: root is to import nothing from the folder where it is typed."""
    return shlex.join([sys.executable, "-I", "-m", "ddpdoctor", *options, "jobs", "--hang", *([job] if job else [])])


def hidden_stacks(missed: Sequence[Missed], mine: Powers, job: str) -> list[str]:
    """Sentences on why these stacks are missing, a sentence a reason. job: its name."""
    sentences = []
    if any(one.trouble is PySpyTrouble.NO_PROGRAM for one in missed):
        pip = shlex.join([sys.executable, "-m", "pip", "install", "py-spy"])
        sentences.append(f"No stack could be read, since py-spy isn't installed beside ddpdoctor: {pip}")
    denied = [one for one in missed if one.trouble is PySpyTrouble.DENIED]
    foreign = [one for one in denied if one.process.uid != mine.uid]
    own = [one for one in denied if one.process.uid == mine.uid]
    if foreign:
        users = sorted({one.process.user or f"uid {one.process.uid}" for one in foreign})
        belong = "it belongs" if len(foreign) == 1 else "they belong"
        sentences.append(f"{_not_read(foreign)}: {belong} to {listed(users)}. {_help(mine, job, foreign=True)}")
    if own:
        sentences.append(f"{_not_read(own)}: {_why(mine)}. {_help(mine, job)}")
    if closed := [one for one in missed if one.trouble is PySpyTrouble.CLOSED]:
        let = "its own user may not read it, and root looks no deeper unless told so"
        sentences.append(f"{_not_read(closed)}: {let}. It is told so by {command_line(job, OPTION)}")
    for trouble, words in WORDS.items():
        if those := [one for one in missed if one.trouble is trouble]:
            sentences.append(f"{_not_read(those)}: {words}.")
    return sentences


def hidden_places(nameless: Sequence[Process], mine: Powers, job: str) -> list[str]:
    """The sentence on processes of a job of which nobody says which rank they are. They are not looked at."""
    if not nameless:
        return []
    who = f"Which rank{'' if len(nameless) == 1 else 's'} pid {listed(one.pid for one in nameless)} may be, nobody says"
    users = sorted({process.user or f"uid {process.uid}" for process in nameless if process.uid != mine.uid})
    if not users:
        return [f"{who}; {'it was' if len(nameless) == 1 else 'they were'} not looked at."]
    return [f"{who}, since the settings of {listed(users)}'s processes can't be read. {_help(mine, job, foreign=True)}"]


def _why(mine: Powers) -> str:
    scope = f"(kernel.yama.ptrace_scope is {mine.ptrace_scope})"
    if mine.ptrace_scope == NOBODY:
        return f"this kernel lets nobody read another process, not even root {scope}"
    if mine.ptrace_scope == ROOT and not mine.sys_ptrace:
        return f"this kernel lets only root read another process {scope}"
    if mine.ptrace_scope == CHILDREN and not mine.sys_ptrace:
        return f"this kernel lets only its parents read a process {scope}"
    if mine.contained and not mine.sys_ptrace:
        return "this container lacks the capability SYS_PTRACE"
    return "the kernel doesn't allow it, though the process belongs to this user"


def _help(mine: Powers, job: str, *, foreign: bool = False) -> str:
    """What makes it possible now, without a restart of the job; else next time. foreign: the processes are another user's."""
    if mine.ptrace_scope == NOBODY:
        return (
            "Only a restart of the host changes that. For the next run, "
            "faulthandler.register(signal.SIGUSR1) in the script makes a rank print its stack on: kill -USR1 PID"
        )
    if mine.contained and foreign and mine.uid != 0:
        # Without root a container's capability is of no use.
        return (
            "As root, or as that user, it can be done; from the host: "
            f"docker exec -u 0 --privileged CONTAINER {command_line(job)}"
        )
    if mine.contained:
        return (
            "The next time, start the container with --cap-add SYS_PTRACE; now, from the host: "
            f"docker exec --privileged CONTAINER {command_line(job)}"
        )
    if mine.uid == 0:
        return "This root lacks the capability SYS_PTRACE; one that has it can look"
    return f"Root can: sudo {command_line(job)}"


def _not_read(missed: Sequence[Missed]) -> str:
    """ "The stacks of ranks 0-3 and of 8 DataLoader workers could not be read"."""
    ranks = {one.rank for one in missed if not one.worker}
    workers = sum(one.worker for one in missed)
    parts = [ranks_named(ranks)] if ranks else []
    if workers:
        parts.append(plural(workers, "DataLoader worker"))
    return f"The stack{'' if len(missed) == 1 else 's'} of {' and of '.join(parts)} could not be read"
