"""Flags, launchers and left-over settings that contradict each other about the same job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.meeting import Conflict, Meeting
from ddpdoctor.knowledge.launchers import MASTER_ADDRESS, MASTER_PORT

MAX_VALUE_CHARACTERS = 40
"""Characters of a value in the summary."""

SLURMS_OWN = "SLURM_PROCID"


@check("launcher-conflict", severity=WARN, owner=Owner.USER)
def launcher_conflict(meeting: Meeting) -> Iterator[Finding]:
    """Two settings say different things about the same job.

    ## What breaks
    netcheck believes one of them; a program that reads the other one takes another rank, node count or master. Then two
    processes have one rank and another rank never comes, or the nodes wait at different places, until a timeout.

    ## Why
    Flags win, then torchrun, MPI, Slurm, Kubernetes and plain settings. Most often RANK, WORLD_SIZE or NODE_RANK was
    exported in a batch script, where it is worked out once and goes to all processes alike; or mpirun hands on the
    SLURM_PROCID of the script that it was started in, 0, to every rank.

    ## Fix
    Set them in each process, behind `srun` or `mpirun`, or not at all; leave out the flags that a launcher's settings
    answer.
    """
    requires(meeting.master, "only netcheck goes to the master")
    for conflict in meeting.conflicts:
        yield Finding.of(
            f"{conflict.name} says {conflict.value[:MAX_VALUE_CHARACTERS]}, {conflict.other_name} says {conflict.other_value[:MAX_VALUE_CHARACTERS]}; "
            f"{conflict.value[:MAX_VALUE_CHARACTERS]} counts",
            Evidence(f"{conflict.name} {conflict.value}", "command line")
            if _is_flag(conflict)
            else Evidence(f"{conflict.name}={conflict.value}", "environment"),
            Evidence(f"{conflict.other_name}={conflict.other_value}", "environment"),
            _fixes(conflict),
            cause=_cause(conflict),
        )


def _is_flag(conflict: Conflict) -> bool:
    return conflict.name.startswith("--")


def _cause(conflict: Conflict) -> str:
    if _is_flag(conflict):
        return f"This run tests what {conflict.name} says; a job that is started here goes by {conflict.other_name}."
    if conflict.other_name == SLURMS_OWN:
        return (
            f"mpirun hands the {SLURMS_OWN} of the script that it was started in to every rank: programs that look at it "
            "all think that they are the same one."
        )
    return f"{conflict.other_name} was set before the processes were started, so it is the same in all of them."


def _fixes(conflict: Conflict) -> tuple[Fix, ...]:
    if _is_flag(conflict):
        leave_out = Fix(f"If {conflict.other_name} is right, leave {conflict.name} out")
        if conflict.other_name not in (*MASTER_ADDRESS, *MASTER_PORT):
            return (leave_out,)
        command = f"export {shlex.quote(conflict.other_name)}={shlex.quote(conflict.value)}"
        return (leave_out, Fix("Else let the job go there, too", (command,)))
    if conflict.other_name == SLURMS_OWN:
        away = f"env -u {SLURMS_OWN} -u SLURM_LOCALID"
        return (
            Fix(f"Take Slurm's away from the ranks: put `{away}` between mpirun and its program; or start with srun"),
        )
    unset = f"unset {shlex.quote(conflict.other_name)}"
    return (Fix("Take it out of the script, or of the shell, that starts the job", (unset,)),)
