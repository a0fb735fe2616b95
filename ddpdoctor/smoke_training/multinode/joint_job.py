"""Decides whether a smoke training is one of several hosts, or of ranks that a launcher has started, and which of them this is. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.knowledge.launchers import NNODES_FLAG, current_launch
from ddpdoctor.network_check.job import RANK_FLAG, Flags, JobError, NetcheckJob, job_of, rank_job_of

LAUNCH_COMMANDS = {"Slurm": "srun", "Open MPI": "mpirun", "Intel MPI": "mpirun", "MVAPICH": "mpirun", "PMI": "mpiexec"}
"""By the launcher's name: the command that starts the ranks."""


def find_joint_job(flags: Flags, nproc: int | None, environ: Mapping[str, str]) -> NetcheckJob | None:
    """Find the job in which others take part; None where this host trains alone.

    Under a launcher this process is the rank as which it was started, unless --nproc or --nnodes say that it is to start
    ranks itself, for its whole host.

    Raises:
        JobError: the flags and settings don't make a job.
    """
    if nproc is None and flags.nnodes is None and (job := rank_job_of(flags, environ)):
        return job
    if flags.nnodes and (flags.node_rank or 0) >= flags.nnodes:
        counted = f"nodes are counted from 0, to {flags.nnodes - 1}"
        raise JobError(f"{RANK_FLAG} is {flags.node_rank} and {NNODES_FLAG} {flags.nnodes}: {counted}")
    if flags.nnodes == 1:
        return None
    if flags.nnodes is None and not _is_one_of_several(environ):
        if flags.master is not None or flags.node_rank is not None:
            raise JobError(f"nothing says of how many hosts the job is: add {NNODES_FLAG} and their number")
        return None
    try:
        job = job_of(flags, environ)
    except JobError as error:
        raise JobError(str(error).replace("ddpdoctor netcheck", "ddpdoctor smoke")) from None
    return job if (job.nnodes or 1) > 1 else None


def silent_rank(flags: Flags, nproc: int | None, environ: Mapping[str, str]) -> int | None:
    """The local rank of this process where another process of the same launcher starts the ranks of this host; None where this one
    starts them. A process that is said to be node 0 of 1 always starts them."""
    launch = current_launch(environ)
    if (flags.nnodes, flags.node_rank) == (1, 0):
        return None
    if (nproc is None and flags.nnodes is None) or launch is None or launch.launcher == "settings":
        return None
    return launch.local_rank or None


def _is_one_of_several(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, and so perhaps others on other hosts."""
    launch = current_launch(environ)
    return launch is not None and launch.launcher != "settings" and (launch.world_size or 1) > 1


def launch_command(job: NetcheckJob) -> str:
    """The command behind the launcher's name: "srun"."""
    return LAUNCH_COMMANDS.get(job.launcher, job.launcher)
