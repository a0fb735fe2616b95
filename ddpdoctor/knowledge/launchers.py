"""Reads what launchers leave in the environment: which rank this is, over how many nodes, and where the job's store is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one launcher. None where it doesn't say, or what it says is no number.

    launcher: "torchrun", "Open MPI", "MVAPICH", "Intel MPI", "PMI", "Slurm", "Kubernetes", or "settings" (RANK and
    WORLD_SIZE that no known launcher accounts for).
    """

    launcher: str
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None


class Settings(Protocol):
    """The facts, or the plain variables."""

    def get(self, name: str, default: str, /) -> str: ...

    def __contains__(self, name: object, /) -> bool: ...


MASTER_ADDRESS = ("MASTER_ADDR", "PET_MASTER_ADDR")
MASTER_PORT = ("MASTER_PORT", "PET_MASTER_PORT")
"""What a rank reads, and what torchrun reads for --master-addr and --master-port before there are any ranks."""

ENDPOINT, BACKEND = "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND"
"""What torchrun reads for --rdzv-endpoint and --rdzv-backend."""


def first_set(settings: Settings, names: Sequence[str]) -> str:
    """The first of the names that is set to something; the first of all where none is."""
    return next((name for name in names if settings.get(name, "").strip()), names[0])


def master_address(settings: Settings) -> str:
    """The store's host as the settings name it, or ""."""
    name = first_set(settings, MASTER_ADDRESS)
    value = settings.get(name, "").strip()
    # torchrun wants an IPv6 address in brackets, and takes them off for the ranks.
    return value.strip("[]") if name.startswith("PET_") else value


def master_port(settings: Settings) -> int | None:
    """The store's port as the settings name it; None where they don't, or it is no number."""
    return number(settings.get(first_set(settings, MASTER_PORT), ""))


def store_endpoint(settings: Settings) -> str:
    """The rendezvous endpoint where torch's own store is to listen, or "": etcd is a server of its own."""
    return "" if settings.get(BACKEND, "").startswith("etcd") else settings.get(ENDPOINT, "")


def split_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Host and port of a rendezvous endpoint ("node01:29400", "[fe80::1]:29400", "node01"). None: no port is given, which
    means 29400; port 0 means a free one."""
    text = endpoint.strip()
    matched = re.fullmatch(r"\[(?P<v6>[^\]]*)\](?::(?P<port6>\d{1,5}))?|(?P<host>[^:]*)(?::(?P<port>\d{1,5}))?", text)
    if not matched:
        return text, None
    return matched["v6"] or matched["host"] or "", number(matched["port6"] or matched["port"] or "")


def number(text: str) -> int | None:
    """The non-negative whole number that the text is, else None."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


MPI = (
    # launcher, rank, size, local rank, local size
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip

_PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), *((size, local_size) for _, _, size, _, local_size in MPI))
NNODES_FLAG = "--nnodes"
"""Stands among the settings where `netcheck` was told the number of nodes on its command line: it goes before them all."""

_NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "PET_NNODES", "GROUP_WORLD_SIZE")

_PSEUDO_STEPS = 4294967290
"""Step numbers from here on are Slurm's own: the interactive shell of salloc, the batch script."""


def launches(environment: Settings) -> tuple[Launch, ...]:
    """Every launcher that has left its settings, the one to believe first: torchrun, MPI, Slurm, Kubernetes, settings.

    MPI goes before Slurm because mpirun inside a Slurm allocation leaves the batch script's SLURM_PROCID=0 in every rank.
    """
    others = (*_mpi(environment), *_slurm(environment), *_kubernetes(environment))
    node = environment.get("GROUP_RANK", "") or environment.get("NODE_RANK", "")
    if "TORCHELASTIC_RUN_ID" in environment and "RANK" in environment:
        return (_launch(environment, "torchrun", _PLAIN, node), *others)
    is_told = "RANK" in environment and "WORLD_SIZE" in environment
    return (*others, _launch(environment, "settings", _PLAIN, node)) if is_told else others


def current_launch(environment: Settings) -> Launch | None:
    """The launcher to believe, or None outside of any job."""
    return next(iter(launches(environment)), None)


def several_nodes(environment: Settings) -> str | None:
    """The counts by which the job runs over several nodes, in words; "" where it runs on one, None where none says."""
    if told := number(environment.get(NNODES_FLAG, "")):
        return f"{NNODES_FLAG} {told}" if told > 1 else ""
    for world, local in _SIZES:
        total, here = number(environment.get(world, "")), number(environment.get(local, ""))
        if total and here:
            return f"{world}={total} with {local}={here}" if total > here else ""
    for name in _NODE_COUNTS:
        # torchrun's may be a range, "1:4".
        if nodes := number(environment.get(name, "").rpartition(":")[2]):
            return f"{name}={environment.get(name, '')}" if nodes > 1 else ""
    return None


def in_slurm_step(environment: Settings) -> bool:
    """Whether srun started this process; False in a batch script and in salloc's shell."""
    step = number(environment.get("SLURM_STEP_ID", "") or environment.get("SLURM_STEPID", ""))
    return step is not None and step < _PSEUDO_STEPS and "SLURM_PROCID" in environment


def in_slurm_batch_script(environment: Settings) -> bool:
    """Whether this is the script that sbatch runs on the first node, before any srun."""
    return (
        "SLURM_PROCID" in environment
        and not in_slurm_step(environment)
        and "SLURM_PTY_PORT" not in environment
        and number(environment.get("SLURM_STEP_ID", "")) != _PSEUDO_STEPS
    )


def srun_netcheck(nodes: int, command: str = "netcheck") -> str:
    """The command that starts netcheck, or another command, once on each node. Without --ntasks the job's own number of
    tasks counts, and srun passes over --ntasks-per-node where that doesn't fit."""
    return f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 ddpdoctor {command}"


def slurm_tasks_here(environment: Settings) -> int | None:
    """Count the tasks that this step (or job) runs on this node, as SLURM_STEP_TASKS_PER_NODE "8(x2),4" has it."""
    node = number(environment.get("SLURM_NODEID", "0")) or 0
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "") or environment.get("SLURM_TASKS_PER_NODE", "")
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part.strip())
        if not found:
            return None
        repeated = int(found[2] or 1)
        if node < repeated:
            return int(found[1])
        node -= repeated
    return number(environment.get("SLURM_NTASKS_PER_NODE", ""))


def slurm_tasks(environment: Settings) -> int | None:
    """Count the tasks of the step, or else of the job."""
    return number(environment.get("SLURM_STEP_NUM_TASKS", "") or environment.get("SLURM_NTASKS", ""))


def _launch(environment: Settings, launcher: str, names: Sequence[str], node: str = "") -> Launch:
    """names: of rank, world size, local rank and local world size."""
    rank, world_size, local_rank, local_world_size = (number(environment.get(name, "")) for name in names)
    return Launch(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=number(node),
    )


def _mpi(environment: Settings) -> Iterator[Launch]:
    for launcher, *names in MPI:
        rank, _, local_rank, _ = names
        is_bare_pmi = rank == "PMI_RANK" and local_rank not in environment
        # Slurm's own PMI sets PMI_RANK too: that is Slurm's word, not another launcher's.
        if rank in environment and not (is_bare_pmi and in_slurm_step(environment)):
            yield _launch(environment, "PMI" if is_bare_pmi else launcher, names)


def _slurm(environment: Settings) -> Iterator[Launch]:
    if in_slurm_step(environment):
        yield Launch(
            launcher="Slurm",
            rank=number(environment.get("SLURM_PROCID", "")),
            world_size=slurm_tasks(environment),
            local_rank=number(environment.get("SLURM_LOCALID", "")),
            local_world_size=slurm_tasks_here(environment),
            node_rank=number(environment.get("SLURM_NODEID", "")),
        )


def _kubernetes(environment: Settings) -> Iterator[Launch]:
    """A PyTorchJob's RANK and WORLD_SIZE count pods, not processes, so they are given as the node's."""
    indices = (environment.get(name, "") for name in ("JOB_COMPLETION_INDEX", "PET_NODE_RANK", "RANK"))
    if "KUBERNETES_SERVICE_HOST" in environment and (index := next(filter(None, indices), "")):
        yield Launch(launcher="Kubernetes", node_rank=number(index))
