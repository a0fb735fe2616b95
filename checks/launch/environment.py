"""Settings that other launchers, and earlier runs, left in the environment of a shell or a rank."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.launch.launchers import ENV_INIT, NO_LAUNCHER, names, shown, unset, with_torchrun
from ddpdoctor.checks.settings.invalid import plain
from ddpdoctor.engine.registry import check, required, requires
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Environment
from ddpdoctor.knowledge.launchers import current_launch, number, several_nodes
from ddpdoctor.knowledge.privileges import runtime_of

FROM_MPIRUN = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK; "
    "unset SLURM_PROCID SLURM_LOCALID"
)


@check("mpirun-in-slurm", severity=WARN, owner=Owner.USER)
def mpirun_in_slurm(environment: Environment) -> Iterator[Finding]:
    """mpirun started this rank inside a Slurm allocation, and Slurm's own rank is stale.

    ## What breaks
    Programs that look at SLURM_PROCID (Lightning, many home-made launchers) think that every process is rank 0.

    ## Why
    mpirun hands the batch script's environment to all ranks, and in that script SLURM_PROCID is 0. The true rank is in
    OMPI_COMM_WORLD_RANK.

    ## Fix
    Take RANK, WORLD_SIZE and LOCAL_RANK from OMPI_COMM_WORLD_*, or start the ranks with `srun`.
    """
    rank = number(environment.get("OMPI_COMM_WORLD_RANK"))
    size = number(environment.get("OMPI_COMM_WORLD_SIZE"))
    requires(rank is not None and size is not None, "not started by mpirun")
    requires("SLURM_PROCID" in environment, "not in a Slurm job")
    if size == 1 or number(environment.get("RANK")) == rank:
        return
    yield Finding.of(
        f"mpirun says rank {rank} of {size}; Slurm's stale SLURM_PROCID says {environment.get('SLURM_PROCID')[:20]}",
        shown(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"),
        Fix("Start the ranks with Slurm", (f"srun --ntasks={size} python train.py",)),
        Fix("Or keep mpirun, and let a wrapper of the program set torch's settings from mpirun's", (FROM_MPIRUN,)),
    )


@check("torchelastic-leftover", severity=FAIL, owner=Owner.USER)
def torchelastic_leftover(environment: Environment) -> Iterator[Finding]:
    """TORCHELASTIC_USE_AGENT_STORE is left over from a torchrun job.

    ## What breaks
    Every rank waits for a store that nobody opens, until the timeout of `init_process_group`.

    ## Why
    With TORCHELASTIC_USE_AGENT_STORE=True rank 0 doesn't host the store, because torchrun's agent does. Without
    torchrun there is no agent. The value gets into a shell by `env > file`, or by sbatch and ssh from inside a job.

    ## Fix
    `unset TORCHELASTIC_USE_AGENT_STORE`, or start with torchrun.
    """
    requires("TORCHELASTIC_USE_AGENT_STORE" in environment, NO_LAUNCHER)
    # torch compares with exactly this text.
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or "TORCHELASTIC_RUN_ID" in environment:
        return
    left = sorted(name for name in names(environment) if name.startswith("TORCHELASTIC_"))
    yield Finding.of(
        "TORCHELASTIC_USE_AGENT_STORE=True is set outside of torchrun: no process will host the store",
        shown(environment, *left),
        Fix("Unset what torchrun left", (shlex.join(["unset", *left]),), appliable=True),
    )


@check("rank-leftover", severity=INFO, owner=Owner.USER)
def rank_leftover(environment: Environment, container: Maybe[Container]) -> Iterator[Finding]:
    """RANK and WORLD_SIZE, or LOCAL_RANK or NODE_RANK alone, are set here although no launcher started this shell.

    ## What breaks
    A plain `python train.py` thinks that it is one of many ranks and waits for the others. Where it finds a LOCAL_RANK, Lightning
    starts no other ranks: the first waits for them until the timeout. Where it finds a NODE_RANK or GROUP_RANK other than 0, it
    starts the ranks of a further node, and these wait for the first.

    ## Why
    They were exported by hand or in a start-up file. torchrun overrides them; everything else believes them.

    ## Fix
    `unset RANK WORLD_SIZE LOCAL_RANK NODE_RANK GROUP_RANK`, unless you start each rank by hand and want them.
    """
    yield from _local_rank_alone(environment, container)
    yield from _node_rank_alone(environment, container)
    requires("RANK" in environment and "WORLD_SIZE" in environment, NO_LAUNCHER)
    launch = required(current_launch(environment), NO_LAUNCHER)
    requires(launch.launcher == "settings", f"{launch.launcher} says which rank this is")
    # A launcher that we don't know gives its ranks a LOCAL_RANK; an orchestrator sets what it likes in a container.
    requires("LOCAL_RANK" not in environment, "a launcher says which rank this is")
    requires(not runtime_of(container), "the container's orchestrator may set them")
    requires(all(environment.get(name) for name in ENV_INIT), "not all of them are set")
    if (launch.world_size or 0) > (launch.rank or 0) and launch.world_size != 1:
        yield Finding.of(
            f"RANK={launch.rank} and WORLD_SIZE={launch.world_size} are set, but not by a launcher that we know",
            shown(environment, *ENV_INIT),
            Fix("Unset them, unless you start every rank by hand", (unset(environment, *ENV_INIT),)),
        )


def _local_rank_alone(environment: Environment, container: Maybe[Container]) -> Iterator[Finding]:
    """Every launcher that sets it sets more."""
    others = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
    if not environment.get("LOCAL_RANK") or any(name in environment for name in others):
        return
    if current_launch(environment) is not None or runtime_of(container):
        return
    yield Finding.of(
        f"LOCAL_RANK={plain(environment.get('LOCAL_RANK'))} is set, and nothing else that a launcher would set",
        shown(environment, "LOCAL_RANK"),
        Fix("Unset it", (unset(environment, "LOCAL_RANK"),), appliable=True),
        cause="Started without a launcher, Lightning then assumes that somebody else starts the other ranks, and waits for them; "
        "scripts that read it assume that this is one of several ranks.",
        severity=WARN,
    )


def _node_rank_alone(environment: Environment, container: Maybe[Container]) -> Iterator[Finding]:
    """With nothing that says where the first node is. Node rank 0 changes nothing."""
    name = "NODE_RANK" if "NODE_RANK" in environment else "GROUP_RANK"
    others = (*ENV_INIT, "LOCAL_RANK", "NNODES", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE")
    alone = number(environment.get(name)) and not any(name_beside in environment for name_beside in others)
    if not alone or several_nodes(environment) or runtime_of(container):
        return
    yield Finding.of(
        f"{name}={plain(environment.get(name))} is set, and nothing that says where the first node is",
        shown(environment, name),
        Fix("Unset it, unless a script of yours hands it to torchrun", (unset(environment, name),)),
        cause="Started without a launcher, Lightning then starts the ranks of a further node, and these wait for those of the first, "
        "which nobody starts.",
        severity=WARN,
    )


@check("stale-file-init", severity=WARN, owner=Owner.USER)
def stale_file_init(environment: Environment, plan: Plan) -> Iterator[Finding]:
    """The rendezvous file of an earlier run is still there.

    ## What breaks
    The ranks read what the earlier run wrote, and fail, hang, or wait for ranks that ended long ago.

    ## Why
    With `init_method="file://..."` the ranks meet at the file. It must not exist before the first rank starts; a run
    that dies leaves it behind. On NFS it needs locks that work, too.

    ## Fix
    Remove the file, use a new name for each run, or use `env://` with torchrun.
    """
    files = known(environment.file_init)
    addresses = [setting for setting in environment.settings if "file://" in setting.value]
    requires(addresses, "no file:// rendezvous in the settings")
    requires("RANK" not in environment, "the job that uses the rendezvous file is running")
    for path, size, kind in files:
        if size:
            yield Finding.of(
                f"The rendezvous file {path[-90:]} exists already ({size} bytes{', on NFS' if kind.startswith('nfs') else ''})",
                environment.seen("file_init", f"{path}: {size} bytes on {kind or 'an unknown file system'}"),
                Fix("If no job is using it, remove it before the start", (f"rm -- {shlex.quote(path)}",)),
                with_torchrun(plan),
            )
