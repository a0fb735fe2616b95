"""Who says which rank this is, over how many nodes, and where the store is."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.knowledge.launchers import (
    current_launch,
    in_slurm_batch_script,
    in_slurm_step,
    launches,
    master_address,
    master_port,
    number,
    several_nodes,
    slurm_tasks_here,
)


def environment(**settings: str) -> Environment:
    return Environment(settings=tuple(Setting(name, value) for name, value in settings.items()))


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "12",
    "SLURM_STEP_TASKS_PER_NODE": "8,4",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "5"}


def test_nobody() -> None:
    assert current_launch(environment(MASTER_ADDR="node01")) is None


def test_torchrun_before_all_others() -> None:
    found = launches(environment(**STEP, **MPI, **TORCHRUN))
    assert [one.launcher for one in found] == ["torchrun", "Open MPI", "Slurm"]
    assert (found[0].rank, found[0].world_size, found[0].local_rank) == (3, 8, 3)


def test_mpi_before_slurm_because_its_rank_is_stale() -> None:
    found = current_launch(environment(**{**STEP, "SLURM_PROCID": "0"}, **MPI))
    assert found is not None
    assert (found.launcher, found.rank, found.world_size) == ("Open MPI", 5, 16)


def test_srun() -> None:
    found = current_launch(environment(**STEP))
    assert found is not None
    assert (found.launcher, found.rank, found.world_size, found.local_rank) == ("Slurm", 9, 12, 1)
    assert (found.local_world_size, found.node_rank) == (4, 1)


def test_slurms_own_pmi_is_slurms_word() -> None:
    found = current_launch(environment(**STEP, PMI_RANK="9", PMI_SIZE="12"))
    assert found is not None
    assert found.launcher == "Slurm"


def test_a_batch_script_is_no_launcher() -> None:
    script = environment(SLURM_JOB_ID="7", SLURM_PROCID="0", SLURM_NTASKS="16")
    assert current_launch(script) is None
    assert in_slurm_batch_script(script)
    assert not in_slurm_step(script)


def test_sallocs_shell_is_neither() -> None:
    for settings in ({"SLURM_JOB_ID": "7"}, {**STEP, "SLURM_STEP_ID": "4294967290"}):
        assert not in_slurm_batch_script(environment(**settings))
        assert not in_slurm_step(environment(**settings))


def test_kubernetes_counts_pods() -> None:
    found = current_launch(
        environment(KUBERNETES_SERVICE_HOST="10.96.0.1", RANK="1", WORLD_SIZE="2", MASTER_ADDR="m-0")
    )
    assert found is not None
    assert (found.launcher, found.rank, found.node_rank) == ("Kubernetes", None, 1)


@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [("8(x2)", "1", 8), ("8,4(x3),1", "3", 4), ("8,4(x3),1", "4", 1), ("8", "1", None), ("x", "0", None)],
)
def test_tasks_on_this_node(text: str, node: str, tasks: int | None) -> None:
    assert slurm_tasks_here(environment(SLURM_STEP_TASKS_PER_NODE=text, SLURM_NODEID=node)) == tasks


@pytest.mark.parametrize("text", ["", "-1", "1.0", "²", "٣", "$RANK", "9" * 30])
def test_no_number(text: str) -> None:
    assert number(text) is None


def test_number() -> None:
    assert number(" 29500 ") == 29500


@pytest.mark.parametrize(
    ("settings", "sign"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "8"}, None),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "WORLD_SIZE=16 with LOCAL_WORLD_SIZE=8"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "2"}, ""),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "OMPI_COMM_WORLD_SIZE=16 with OMPI_COMM_WORLD_LOCAL_SIZE=8"),
        ({"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_SIZE": "4"}, ""),
        ({"SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "4"}, ""),
        ({"SLURM_NNODES": "4"}, "SLURM_NNODES=4"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4"),
        ({"PET_NNODES": "1"}, ""),
        ({"PET_NNODES": "many"}, None),
    ],
)
def test_several_nodes(settings: dict[str, str], sign: str | None) -> None:
    assert several_nodes(environment(**settings)) == sign


@pytest.mark.parametrize(
    ("settings", "address", "port"),
    [
        ({}, "", None),
        ({"MASTER_ADDR": " n1 ", "MASTER_PORT": "29500"}, "n1", 29500),
        ({"PET_MASTER_ADDR": "n2", "PET_MASTER_PORT": "1234"}, "n2", 1234),
        ({"PET_MASTER_ADDR": "n2", "MASTER_ADDR": "n1", "MASTER_PORT": " ", "PET_MASTER_PORT": "1"}, "n1", 1),
        ({"PET_MASTER_ADDR": "[fd00::1]"}, "fd00::1", None),
        ({"MASTER_ADDR": "[fd00::1]", "MASTER_PORT": "x"}, "[fd00::1]", None),
    ],
)
def test_where_the_store_is(settings: dict[str, str], address: str, port: int | None) -> None:
    assert master_address(environment(**settings)) == address
    assert master_address(settings) == address
    assert master_port(environment(**settings)) == port
