"""ddpdoctor under a launcher: what it starts on its own account inherits the settings of a rank, and is none."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ
from tests.support.nvml import FakeNvidia
from tests.support.own_pids import OwnPids, own_pids

pytestmark = pytest.mark.root

ROUNDS = int(os.environ.get("DDPDOCTOR_TEST_ROUNDS", "1"))
SETTINGS = {
    "torchrun": "WORLD_SIZE=2 RANK=$rank LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x MASTER_ADDR=127.0.0.1",
    "by hand": "WORLD_SIZE=2 RANK=$rank LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1",
    "Slurm": "SLURM_NTASKS=2 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NNODES=1",
    "Open MPI": "OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$rank",
}
COMMANDS = {
    "check": ("check", "--json"),
    "quick": ("check", "--json", "--quick"),
    "jobs": ("jobs", "--json"),
    "zombies": ("zombies", "--json"),
}


@pytest.fixture(scope="module")
def alone() -> Iterator[OwnPids]:
    """Nobody else's ranks run here."""
    with own_pids() as made:
        yield made


def both(arguments: Sequence[str], settings: str, folder: Path) -> str:
    """A script that runs ddpdoctor as two ranks, the second a moment later."""
    words = shlex.join(command(*arguments))
    return f"for rank in 0 1; do env {settings} {words} >{folder}/$rank 2>/dev/null & sleep 0.2; done; wait"


def about_processes(text: str) -> list[str]:
    report = json.loads(text)
    return sorted(
        one["slug"] for one in report["findings"] if one["family"] == "processes" and one["severity"] != "info"
    )


@pytest.fixture
def slow(fake_nvidia: FakeNvidia) -> Mapping[str, str]:
    """A driver that takes seconds to start, in which the other rank looks around."""
    return fake_nvidia.environ(gpus=2, base=plain_environ(), cuda_does="slow", init_does="slow")


CASES = [
    *(pytest.param(settings, COMMANDS["check"], id=f"check-{launcher}") for launcher, settings in SETTINGS.items()),
    *(
        pytest.param(SETTINGS["torchrun"], arguments, id=name)
        for name, arguments in COMMANDS.items()
        if name != "check"
    ),
]


@pytest.mark.parametrize(("settings", "arguments"), CASES)
def test_as_two_ranks_with_a_slow_driver(
    alone: OwnPids, slow: Mapping[str, str], tmp_path: Path, settings: str, arguments: tuple[str, ...]
) -> None:
    for _ in range(ROUNDS):
        alone.run("sh", "-c", both(arguments, settings, tmp_path), environ=dict(slow))
        assert [about_processes((tmp_path / rank).read_text()) for rank in ("0", "1")] == [[], []]


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_under_a_real_launcher(alone: OwnPids, slow: Mapping[str, str], tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "check.sh"
    script.write_text(f'exec {shlex.join(command("check", "--json"))} >"{tmp_path}/${{RANK:-$OMPI_COMM_WORLD_RANK}}"\n')
    launch = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29517", "--no-python"],
        "mpirun": ["mpirun", "--allow-run-as-root", "--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo", "--oversubscribe", "-np", "2"],
    }[launcher]  # fmt: skip
    done = alone.run(*launch, "sh", str(script), environ=dict(slow))
    reports = [(tmp_path / rank).read_text() for rank in ("0", "1")]
    assert [about_processes(text) for text in reports] == [[], []], done.stderr


def test_beside_a_running_smoke(alone: OwnPids, tmp_path: Path) -> None:
    """Its ranks are ddpdoctor's, and no job that could be missing a rank, or lie in somebody's way."""
    smoke, jobs = (
        shlex.join(command(*words)) for words in (("smoke", "--nproc", "2", "--timeout", "6"), ("jobs", "--json"))
    )
    look = f"while kill -0 $!; do {jobs} >>{tmp_path}/jobs; echo >>{tmp_path}/jobs; done"
    fault = json.dumps({"rank": 1, "stage": "training", "kind": "sleep"})
    alone.run("sh", "-c", f"{smoke} >{tmp_path}/smoke 2>&1 & {look}", environ={"DDPDOCTOR_SMOKE_FAULT": fault})
    assert "training" in (tmp_path / "smoke").read_text()
    looks = [json.loads(text)["jobs"] for text in (tmp_path / "jobs").read_text().split("\n\n") if text.strip()]
    assert len(looks) > 5
    assert looks == [[]] * len(looks)
