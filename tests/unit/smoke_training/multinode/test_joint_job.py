"""Which smoke training a process takes part in: its host's own, several hosts', or a launcher's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.netcheck_command import for_netcheck, netcheck_command
from ddpdoctor.network_check.job import Flags, JobError, NetcheckJob
from ddpdoctor.network_check.protocol.tokens import token_of
from ddpdoctor.smoke_training.multinode.joint_job import find_joint_job, launch_command, silent_rank
from tests.support.recorded_launches import (
    INDEXED_JOB,
    INTEL_MPI,
    MPIRUN_IN_SLURM,
    MPIRUN_ONE_HOST,
    SALLOC,
    SBATCH,
    SRUN,
    TORCHRUN_C10D,
    TORCHRUN_ONE_NODE,
)

ONE_EACH = SRUN | {
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "n1"},
        SALLOC,
        SBATCH,
        INDEXED_JOB,
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
    ],
    ids=["by hand", "settings that were left", "salloc", "sbatch", "kubernetes", "a single task"],
)
def test_a_host_that_nobody_starts_ranks_on_trains_alone(environ: Mapping[str, str]) -> None:
    assert find_joint_job(Flags(), None, environ) is None
    assert find_joint_job(Flags(nnodes=1), 2, environ) is None


@pytest.mark.parametrize(
    ("environ", "flags", "expected", "command"),
    [
        (
            SRUN,
            Flags(),
            {"master": "n1", "port": 29500, "nnodes": 4, "node_rank": 3, "local_rank": 1, "machines": 2},
            "srun",
        ),
        (
            SRUN,
            Flags(master="n2", port=29600),
            {"master": "n2", "port": 29600, "nnodes": 4, "node_rank": 3, "machines": 2},
            "srun",
        ),
        (
            MPIRUN_ONE_HOST,
            Flags(),
            {"master": "127.0.0.1", "port": 29500, "nnodes": 2, "node_rank": 1, "local_rank": 1, "machines": 1},
            "mpirun",
        ),
        (
            INTEL_MPI | {"MASTER_ADDR": "n1"},
            Flags(),
            {"master": "n1", "nnodes": 16, "node_rank": 8, "local_rank": 0, "machines": 2},
            "mpirun",
        ),
        (
            TORCHRUN_ONE_NODE,
            Flags(),
            {"master": "127.0.0.1", "port": 29511, "machines": 1, "store_running": True},
            "torchrun",
        ),
        (TORCHRUN_C10D, Flags(), {"port": 38945, "store_running": True, "launcher": "torchrun"}, "torchrun"),
    ],
    ids=["srun", "srun and flags", "mpirun", "Intel MPI", "torchrun on one host", "torchrun c10d"],
)
def test_a_rank_that_a_launcher_started(
    environ: Mapping[str, str], flags: Flags, expected: Mapping[str, object], command: str
) -> None:
    job = find_joint_job(flags, None, environ)
    assert job is not None
    assert job.launched
    assert {name: getattr(job, name) for name in expected} == expected
    assert launch_command(job) == command
    assert silent_rank(flags, None, environ) is None, "every rank speaks for itself"


def test_ranks_of_one_launcher_know_each_other() -> None:
    mpi = [MPIRUN_ONE_HOST | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank} for rank in "01"]
    jobs = [find_joint_job(Flags(), None, one) for one in mpi]
    assert [job and job.node_rank for job in jobs] == [0, 1]
    assert len({token_of(job, None) for job in jobs if job}) == 1
    assert all(token_of(job, None) for job in jobs if job)


def test_with_a_number_of_ranks_one_process_starts_them_for_its_host() -> None:
    job = find_joint_job(Flags(), 8, ONE_EACH)
    assert job is not None
    assert (job.launched, job.nnodes, job.node_rank) == (False, 2, 1)
    assert silent_rank(Flags(), 8, ONE_EACH) is None
    assert silent_rank(Flags(), 8, SRUN) == 1
    assert silent_rank(Flags(nnodes=1), None, SRUN) == 1
    # All of these are on one host.
    assert find_joint_job(Flags(), 2, TORCHRUN_ONE_NODE | {"LOCAL_RANK": "0", "RANK": "0"}) is None


def test_who_is_told_to_be_the_only_node_joins_nobody_and_is_never_silent() -> None:
    alone = Flags(nnodes=1, node_rank=0)
    for environ in (SRUN, ONE_EACH, TORCHRUN_ONE_NODE, MPIRUN_ONE_HOST):
        assert silent_rank(alone, None, environ) is None
        assert find_joint_job(alone, None, environ) is None


def test_hosts_by_hand() -> None:
    assert find_joint_job(Flags("n1", 29600, 3, 2), None, {}) == NetcheckJob(
        master="n1", port=29600, nnodes=3, counted_by="--nnodes", node_rank=2
    )
    job = find_joint_job(Flags("n1", None, 2), 4, {})
    assert job is not None
    assert job.node_rank is None


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (Flags(master="n1"), {}, "add --nnodes"),
        (Flags(node_rank=1), {}, "add --nnodes"),
        (Flags(nnodes=2), {}, "nothing says where the nodes meet"),
        (Flags(), {k: v for k, v in SRUN.items() if "NODELIST" not in k}, "nothing says where the nodes meet"),
        (Flags(), MPIRUN_ONE_HOST | {"OMPI_COMM_WORLD_RANK": "5"}, "rank 5 of 2"),
        (Flags("n1", None, 2, 2), {}, "--node-rank is 2 and --nnodes 2: nodes are counted from 0, to 1"),
        (Flags(nnodes=1, node_rank=3), {}, "--node-rank is 3 and --nnodes 1: nodes are counted from 0, to 0"),
        (Flags(nnodes=2), SBATCH, "--ntasks-per-node=1 ddpdoctor smoke"),
    ],
    ids=[
        "a master alone",
        "a rank alone",
        "no master",
        "srun without hosts",
        "a rank too high",
        "a rank beyond",
        "a second of one",
        "a batch script",
    ],
)
def test_what_is_no_job_is_said(flags: Flags, environ: Mapping[str, str], words: str) -> None:
    with pytest.raises(JobError) as raised:
        find_joint_job(flags, None, environ)
    assert words in str(raised.value)


def test_mpirun_in_slurm_leaves_nobody_twice() -> None:
    """Each rank carries the batch script's SLURM_PROCID=0."""
    job = find_joint_job(Flags(), None, MPIRUN_IN_SLURM)
    assert job is not None
    assert job.launcher == "Open MPI"
    assert job.node_rank == int(MPIRUN_IN_SLURM["OMPI_COMM_WORLD_RANK"])


LAUNCHED = Meeting(
    master="127.0.0.1", port=29700, nnodes=4, node_rank=0, launcher="Open MPI", command="smoke", launched=True, token=True
)  # fmt: skip


def test_commands_are_what_was_typed() -> None:
    options = ("--nproc 2", "--timeout 60", "--wait 90", "--strict")
    by_hand = Meeting(master="n1", port=29500, nnodes=2, command="smoke", options=options)
    again = "ddpdoctor smoke --master-addr n1 --nnodes 2 --node-rank 1 --nproc 2 --timeout 60 --wait 90 --strict"
    assert netcheck_command(by_hand, 2, 1) == again
    assert netcheck_command(for_netcheck(by_hand), 2, 1) == (
        "ddpdoctor netcheck --master-addr n1 --nnodes 2 --node-rank 1 --wait 90 --strict"
    )
    assert netcheck_command(LAUNCHED, 4, 0) == (
        "mpirun -np 4 ddpdoctor smoke --master-addr 127.0.0.1 --master-port 29700"
    )


def test_a_command_that_a_node_made_up_isnt_typed() -> None:
    odd = Meeting(master="n1", command="x; rm -rf ~", options=("--evil $(x)", "--timeout $(x)"))
    assert netcheck_command(odd, 2, 1) == (
        "ddpdoctor netcheck --master-addr n1 --nnodes 2 --node-rank 1 --timeout '$(x)'"
    )
