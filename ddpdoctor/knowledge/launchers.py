"""Who says which rank this process is: torchrun, MPI, Slurm, Kubernetes, or the settings alone."""

from __future__ import annotations

import re

import msgspec

from ddpdoctor.facts.environment import Environment


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What one launcher says. None where it doesn't say, or what it says is no number.

    launcher: "torchrun", "Open MPI", "MVAPICH", "Intel MPI", "PMI", "Slurm", "Kubernetes", or "settings" (RANK and
    WORLD_SIZE that no known launcher accounts for).
    """

    launcher: str
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    master_address: str = ""
    master_port: int | None = None


def number(text: str) -> int | None:
    """The non-negative whole number that the text is, else None."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


_MPI = (
    # launcher, rank, size, local rank, local size
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip

_PSEUDO_STEPS = 4294967290
"""Step numbers from here on are Slurm's own: the interactive shell of salloc, the batch script."""


def launches(environment: Environment) -> tuple[Launch, ...]:
    """Every launcher that has left its settings, the one to believe first: torchrun, MPI, Slurm, Kubernetes, settings.

    MPI goes before Slurm because mpirun inside a Slurm allocation leaves the batch script's SLURM_PROCID=0 in every rank.
    """
    found = [_torchrun(environment), *_mpi(environment), _slurm(environment), _kubernetes(environment)]
    known = [one for one in found if one is not None]
    return (*known, *(() if known and known[0].launcher == "torchrun" else _plain(environment)))


def current_launch(environment: Environment) -> Launch | None:
    """The launcher to believe, or None outside of any job."""
    return next(iter(launches(environment)), None)


def in_slurm_step(environment: Environment) -> bool:
    """Whether srun started this process; False in a batch script and in salloc's shell."""
    step = number(environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID"))
    return step is not None and step < _PSEUDO_STEPS and "SLURM_PROCID" in environment


def in_slurm_batch_script(environment: Environment) -> bool:
    """Whether this is the script that sbatch runs on the first node, before any srun."""
    return (
        "SLURM_PROCID" in environment
        and not in_slurm_step(environment)
        and "SLURM_PTY_PORT" not in environment
        and number(environment.get("SLURM_STEP_ID")) != _PSEUDO_STEPS
    )


def slurm_tasks_here(environment: Environment) -> int | None:
    """How many tasks this step (or job) runs on this node, as SLURM_STEP_TASKS_PER_NODE "8(x2),4" has it."""
    node = number(environment.get("SLURM_NODEID", "0")) or 0
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part.strip())
        if not found:
            return None
        repeated = int(found[2] or 1)
        if node < repeated:
            return int(found[1])
        node -= repeated
    return number(environment.get("SLURM_NTASKS_PER_NODE"))


def slurm_tasks(environment: Environment) -> int | None:
    """How many tasks the step, or else the job, has."""
    return number(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS"))


def _torchrun(environment: Environment) -> Launch | None:
    if "TORCHELASTIC_RUN_ID" not in environment or "RANK" not in environment:
        return None
    return _from_settings(environment, "torchrun")


def _mpi(environment: Environment) -> list[Launch]:
    found = []
    for launcher, rank, size, local_rank, local_size in _MPI:
        if rank not in environment:
            continue
        # Slurm's own PMI sets PMI_RANK too: that is Slurm's word, not another launcher's.
        if rank == "PMI_RANK" and in_slurm_step(environment) and local_rank not in environment:
            continue
        found.append(
            Launch(
                launcher=launcher if local_rank in environment or rank != "PMI_RANK" else "PMI",
                rank=number(environment.get(rank)),
                world_size=number(environment.get(size)),
                local_rank=number(environment.get(local_rank)),
                local_world_size=number(environment.get(local_size)),
            )
        )
    return found


def _slurm(environment: Environment) -> Launch | None:
    if not in_slurm_step(environment):
        return None
    return Launch(
        launcher="Slurm",
        rank=number(environment.get("SLURM_PROCID")),
        world_size=slurm_tasks(environment),
        local_rank=number(environment.get("SLURM_LOCALID")),
        local_world_size=slurm_tasks_here(environment),
        node_rank=number(environment.get("SLURM_NODEID")),
    )


def _kubernetes(environment: Environment) -> Launch | None:
    """A PyTorchJob's RANK and WORLD_SIZE count pods, not processes, so they are given as the node's."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return None
    index = environment.get("JOB_COMPLETION_INDEX") or environment.get("PET_NODE_RANK") or environment.get("RANK")
    if not index:
        return None
    return Launch(
        launcher="Kubernetes",
        node_rank=number(index),
        master_address=environment.get("MASTER_ADDR") or environment.get("PET_MASTER_ADDR"),
        master_port=number(environment.get("MASTER_PORT") or environment.get("PET_MASTER_PORT")),
    )


def _plain(environment: Environment) -> tuple[Launch, ...]:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return ()
    return (_from_settings(environment, "settings"),)


def _from_settings(environment: Environment, launcher: str) -> Launch:
    return Launch(
        launcher=launcher,
        rank=number(environment.get("RANK")),
        world_size=number(environment.get("WORLD_SIZE")),
        local_rank=number(environment.get("LOCAL_RANK")),
        local_world_size=number(environment.get("LOCAL_WORLD_SIZE")),
        node_rank=number(environment.get("GROUP_RANK") or environment.get("NODE_RANK")),
        master_address=environment.get("MASTER_ADDR"),
        master_port=number(environment.get("MASTER_PORT")),
    )
