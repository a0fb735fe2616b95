"""Fixes to type when a smoke training failed, by the stage in which it did and by how. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import plural, signal_name
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import ELASTIC, RankRun, Smoke
from ddpdoctor.knowledge.launchers import srun_netcheck
from ddpdoctor.knowledge.netcheck_command import for_netcheck, netcheck_command

STAGE_NEEDS: Final = {
    "import": ("target_python", "torch"),
    "device": ("gpu", "driver", "settings"),
    "rendezvous": ("network", "launch"),
    "process group": ("network", "torch", "settings"),
    "checkpoint": ("host", "gpu"),
    "model split": ("gpu",),
    "p2p": ("gpu",),
    "apex": ("apex",),
    "shutdown": ("torch", "settings"),
}
"""Families of checks that look at what a stage needs."""

OTHER_STAGES: Final = ("gpu", "network", "settings")
GPU_FAMILIES: Final = ("gpu", "driver")
MAX_NODES: Final = 8


def on_one_host(smoke: Smoke) -> bool:
    """Whether one command on this host repeats the run."""
    return smoke.nnodes == 1 and smoke.engine == ELASTIC


def python_option(smoke: Smoke) -> str:
    """The option that names the target Python, and the blank before it; "" where it isn't known."""
    return f" --python {shlex.quote(smoke.python)}" if smoke.python else ""


def smoke_command(smoke: Smoke, *more: str, **settings: str) -> str:
    """The same run again, with more options, and with settings before it."""
    before = [f"{name}={value}" for name, value in settings.items()]
    options = f"--nproc {smoke.world_size} --backend {shlex.quote(smoke.backend)}"
    return f"{' '.join([*before, 'ddpdoctor smoke', options, *more])}{python_option(smoke)}"


def look_at(stage: str, run: RankRun, smoke: Smoke) -> Fix:
    """`check` with what the stage needs, on the host of that rank."""
    needs = STAGE_NEEDS.get(stage, OTHER_STAGES)
    families = [need for need in needs if smoke.backend == "nccl" or need not in GPU_FAMILIES]
    host = run.host if smoke.nnodes > 1 and run.host else "this host"
    return check_host(f"See whether {host} has what the stage {stage} needs", families, run, smoke)


def check_host(text: str, families: Iterable[str], run: RankRun, smoke: Smoke) -> Fix:
    """`check` with these families, on the host of that rank."""
    here = sum(rank.host == run.host for rank in smoke.ranks)
    return Fix(text, (f"ddpdoctor check --select {','.join(families)} --nproc {max(here, 1)}{python_option(smoke)}",))


def _there(run: RankRun, smoke: Smoke) -> str:
    return f" on {run.host}" if smoke.nnodes > 1 and run.host else ""


ENDED_BY: Final = {
    "SIGKILL": "Mostly that is the kernel, when the memory of the host, the container or the job has run out, or the limit of"
    " CPU time is used up (ulimit -t); else somebody's kill -9.",
    "SIGTERM": "Somebody asked it to end: a scheduler whose time was up, an administrator, a script.",
    "SIGXCPU": "Its limit of CPU time was used up (ulimit -t).",
}
SIGNAL: Final = re.compile(r"ended by (SIG[A-Z0-9]+)")
PARENT_ENDED: Final = "the process that the ranks were forked from has ended"
"""Nobody is told how it ended; by itself it doesn't."""


def ended_with(problem: str) -> tuple[str, tuple[Fix, ...]]:
    """Why what starts the ranks ended before its time, and what to do, where a signal or a limit tells."""
    if "(ulimit -f)" in problem:
        lift = Fix("Lift the limit in this shell, or ask for a higher one", ("ulimit -f unlimited",))
        return "The size of files is limited for all that is started here, checkpoints too.", (lift,)
    found = SIGNAL.search(problem)
    name = found[1] if found else "SIGKILL" if PARENT_ENDED in problem else ""
    return (ENDED_BY[name], _who_ended_it(name)) if name in ENDED_BY else ("", ())


def _who_ended_it(name: str, there: str = "") -> tuple[Fix, ...]:
    kernel = Fix(
        f"See whether the kernel killed it{there}: it names the process and the limit",
        ("sudo dmesg -T | grep -iE 'killed process|out of memory' | tail",),
    )
    seconds = Fix("See how many seconds of CPU time a process may use in this shell", ("ulimit -Ht; ulimit -St",))
    return {"SIGKILL": (kernel, seconds), "SIGXCPU": (seconds,)}.get(name, (kernel,))


def killed_by(run: RankRun, smoke: Smoke) -> tuple[str, tuple[Fix, ...]]:
    """Why a rank gets that signal, and what to do."""
    name = signal_name(run.exit_code or 0)
    there = _there(run, smoke)
    if name in ENDED_BY:
        why = "The kernel killed it, since the memory of this host, container or job ran out."
        return why if run.out_of_memory else ENDED_BY[name], (
            *_who_ended_it(name, there),
            check_host(f"See how much memory there is{there}, and which limits", ("host",), run, smoke),
        )
    why = {
        "SIGILL": "Compiled code holds an instruction that this processor doesn't have.",
        "SIGBUS": "Mapped memory could not be had: /dev/shm or a disk is full, or a file became shorter.",
        "SIGABRT": "Compiled code gave up; its last line says why.",
    }.get(name, "Compiled code crashed: torch, a library that it loads, or a driver.")
    families = ("host",) if name == "SIGBUS" else ("torch", "driver")
    return why, (check_host(f"See what is wrong with libraries and limits{there}", families, run, smoke),)


def halted(run: RankRun, smoke: Smoke) -> tuple[str, tuple[Fix, ...]]:
    """Why a rank that hangs does, where the kernel says so."""
    state = run.process_state
    if state.startswith("stopped"):
        by = "" if "debugger" in state else ": something sent it SIGSTOP or SIGTSTP"
        return f"Its process is {state}{by}.", (
            Fix(
                f"See which processes are stopped{_there(run, smoke)}. What stops them: a debugger (gdb, strace), Ctrl-Z in a"
                " terminal, a read from the terminal by a job in the background, a job manager that suspends jobs. `kill -CONT`"
                " with its number lets one go on",
                ("ps -eo pid,ppid,stat,args | awk '$3 ~ /^[Tt]/'",),
            ),
        )
    if "refrigerator" in state or "freezer" in state:
        return f"It is {state}: its cgroup is frozen, as a paused container or a suspended job is.", (
            Fix(
                f"See which cgroups are frozen{_there(run, smoke)}",
                (
                    "grep -rlx FROZEN /sys/fs/cgroup --include=freezer.state",
                    "grep -rlx 'frozen 1' /sys/fs/cgroup --include=cgroup.events",
                ),
            ),
        )
    if state.startswith("in the kernel"):
        return f"It is {state}: a disk, a network file system or a driver doesn't answer.", (
            Fix("See what the kernel says of it", ("sudo dmesg -T | tail -50",)),
        )
    return "", ()


def way_between(smoke: Smoke, meeting: Maybe[Meeting]) -> tuple[Fix, ...]:
    """Fixes that show whether data gets through between the ranks."""
    if smoke.nnodes > 1:
        return (_netcheck(smoke, meeting),)
    if not on_one_host(smoke):
        return (Fix("See what the network between ranks needs", ("ddpdoctor check --select network,settings,gpu",)),)
    if smoke.backend == "nccl":
        return (
            Fix(
                "Run it without copies from GPU to GPU: if this passes, they are broken (`ddpdoctor explain p2p-acs-iommu`)",
                (smoke_command(smoke, NCCL_P2P_DISABLE="1"),),
            ),
            _over_loopback(smoke, "NCCL"),
        )
    return (_over_loopback(smoke, "gloo"),)


def _over_loopback(smoke: Smoke, library: str) -> Fix:
    text = f"Run it over the loopback interface: if this passes, {library} chose one that carries nothing"
    return Fix(text, (smoke_command(smoke, **{f"{library.upper()}_SOCKET_IFNAME": "lo"}),))


def _netcheck(smoke: Smoke, meeting: Maybe[Meeting]) -> Fix:
    text = f"Test the network between the {plural(smoke.nnodes, 'host')}"
    if not isinstance(meeting, Meeting) or not meeting.master:
        first = next((rank.host for rank in smoke.ranks if rank.node == 0), "")
        meeting = Meeting(master=first)
    meeting = for_netcheck(meeting)
    if meeting.launcher == "Slurm":
        without_token = Meeting(master=meeting.master, port=meeting.port, options=meeting.options)
        command = netcheck_command(without_token, None, None).removeprefix("ddpdoctor netcheck")
        return Fix(text, (srun_netcheck(smoke.nnodes) + command,))
    commands = (netcheck_command(meeting, smoke.nnodes, node) for node in range(min(smoke.nnodes, MAX_NODES)))
    return Fix(f"{text}: run these at the same time, each on its own", tuple(commands))
