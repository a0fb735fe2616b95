"""smoke as the ranks that real launchers start: srun on a cluster of two hosts, mpirun and torchrun on one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.test_netcheck_launchers import launcher_environ, processes
from tests.support.command import command
from tests.support.namespaces import Host, network
from tests.support.nvml import FakeNvidia
from tests.support.slurm import Slurm, slurm
from tests.support.waiting import wait_for

pytestmark = pytest.mark.root

FEW = ("--stages", "all_reduce,training")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with network("n1", "n2") as made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(hosts, tmp_path_factory.mktemp("slurm")) as engine:
        yield engine


@pytest.mark.tool("slurmctld", "slurmd", "munged")
def test_srun_two_tasks_on_each_of_two_hosts(cluster: Slurm, hosts: list[Host], tmp_path: Path) -> None:
    place = [f"--{stream}={tmp_path}/%t.{stream}" for stream in ("output", "error")]
    tasks = ["srun", "-N2", "--ntasks-per-node=2", *place]
    done = cluster.run(*tasks, *command("smoke", "--json", *FEW), environ=launcher_environ(tmp_path), seconds=120)
    assert done.returncode == 0, (tmp_path / "0.error").read_text() + (tmp_path / "0.output").read_text()
    report = json.loads((tmp_path / "0.output").read_text())
    assert report["verdict"] == "ok"
    smoke = report["smoke"]
    assert (smoke["engine"], smoke["world_size"], smoke["nnodes"]) == ("srun", 4, 2)
    assert [(rank["rank"], rank["local_rank"], rank["host"]) for rank in smoke["ranks"]] == [
        (0, 0, "n1"),
        (1, 1, "n1"),
        (2, 0, "n2"),
        (3, 1, "n2"),
    ]
    assert [node["host"] for node in report["nodes"]] == [
        f"{host} (rank {rank})" for rank, host in enumerate(["n1", "n1", "n2", "n2"])
    ]
    for rank in (1, 2, 3):
        assert (tmp_path / f"{rank}.output").read_text() == ""
        assert (tmp_path / f"{rank}.error").read_text() == ""


@pytest.fixture(scope="module")
def alone() -> Iterator[Host]:
    with network("n1") as (made,):
        yield made


@pytest.mark.tool("mpirun")
def test_mpirun_names_the_rank_before_it_ends_all(alone: Host, tmp_path: Path) -> None:
    """The exit codes of the others make mpirun kill rank 0, which must have said why by then."""
    environ = launcher_environ(tmp_path)
    environ["TERM"] = "dumb"
    environ["DDPDOCTOR_SMOKE_FAULT"] = json.dumps({"rank": 2, "stage": "training", "kind": "kill"})
    loopback = ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]
    run = ["mpirun", *loopback, "--oversubscribe", "-np", "4", *command("smoke", *FEW)]
    done = subprocess.run(alone.command(*run), env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "rank 2 was killed by SIGKILL in training" in " ".join(done.stdout.split())
    assert "): rank 2 was killed" not in " ".join(done.stdout.split()), "the rank is named once"
    assert done.stdout.count("[smoke-rank-failed]") == 1, "rank 0 alone reports"
    assert "4 ranks as Open MPI started them" in " ".join(done.stdout.split())
    assert not processes(alone)


def test_torchrun_with_more_ranks_than_gpus(alone: Host, tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    """It is said once, and none is started: this torch is a version and nothing else."""
    version = tmp_path / "packages" / "torch" / "version.py"
    version.parent.mkdir(parents=True)
    version.with_name("__init__.py").touch()
    version.write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    environ = fake_nvidia.environ(gpus=2, base=launcher_environ(tmp_path))
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--no-python"]
    run += ["env", f"PYTHONPATH={environ['PYTHONPATH']}:{version.parent.parent}", *command("smoke")]
    done = subprocess.run(alone.command(*run), env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert said.count("[duplicate-gpu]") == 1, done.stdout + done.stderr
    assert "3 ranks are planned on 2 GPUs: rank 2 would share one, which NCCL refuses" in said
    assert "n1 can't run the ranks that are planned there" in said
    assert "ranks on this host: 3 (LOCAL_WORLD_SIZE)" in said
    assert not processes(alone)


def test_torchrun_that_is_killed_leaves_no_rank_behind(alone: Host, tmp_path: Path) -> None:
    """Each would wait for much longer than it takes to see that."""
    environ = launcher_environ(tmp_path)
    environ["DDPDOCTOR_SMOKE_FAULT"] = json.dumps({"rank": 1, "stage": "all_reduce", "kind": "sleep"})
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    with out.open("w") as stdout, err.open("w") as stderr:
        started = alone.command(*run, *command("smoke", "--timeout", "120", *FEW))
        torchrun = subprocess.Popen(started, env=environ, stdout=stdout, stderr=stderr)
        try:
            # Itself, and of each rank the doctor, the keeper, and what it keeps.
            wait_for(lambda: len(processes(alone).split()) >= 7, 60)
        finally:
            torchrun.kill()
            torchrun.wait()
    wait_for(lambda: not processes(alone), 10)
    assert f"The launcher (pid {torchrun.pid}) is gone; the ranks were ended." in err.read_text().splitlines()
    assert out.read_text() == ""
    assert not list(tmp_path.glob("ddpdoctor*"))


@pytest.mark.thorough
def test_torchrun_whose_store_the_ranks_use(alone: Host, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    done = subprocess.run(
        alone.command(*run, *command("smoke", "--json", *FEW)),
        env=launcher_environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["verdict"], report["findings"]) == ("ok", [])
    assert (report["smoke"]["engine"], report["smoke"]["world_size"]) == ("torchrun", 2)
    assert not processes(alone)
    assert not list(tmp_path.glob("ddpdoctor*"))
