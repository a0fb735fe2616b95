"""Trainings by Lightning, accelerate and transformers' Trainer on a real Slurm, healthy and with a stopped rank; all at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.command import command, plain_environ
from tests.support.framework_jobs import ACCELERATE, LIGHTNING, TRAINER
from tests.support.free_ports import free_port
from tests.support.namespaces import Host, network
from tests.support.running_jobs import wait_until
from tests.support.slurm import Slurm, slurm

pytestmark = [pytest.mark.root, pytest.mark.tool("slurmctld", "slurmd", "munged"), pytest.mark.slow]


class Way(msgspec.Struct, frozen=True):
    """How a framework's script is started by Slurm. source: the setting by which its ranks are known."""

    script: str
    tasks: tuple[str, ...]
    command: tuple[str, ...]
    source: str


PYTHON = (sys.executable, "train.py")
WAYS = {
    "Lightning": Way(LIGHTNING, ("--ntasks-per-node=2",), PYTHON, "SLURM_PROCID"),
    # On CPUs accelerate starts no ranks itself, and knows those of MPI.
    "accelerate": Way(ACCELERATE, ("--ntasks-per-node=2", "--mpi=pmi2"), PYTHON, "SLURM_PROCID"),
    "Trainer": Way(
        TRAINER,
        ("--ntasks-per-node=1",),
        (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"),
        "RANK",
    ),
}


class FrameworkJobs:
    """The jobs on that host. pids: of the ranks, by framework."""

    def __init__(self, host: Host, pids: Mapping[str, list[int]]) -> None:
        self._host = host
        self.pids = pids

    def report(self, *arguments: str) -> dict[str, Any]:
        return self._read(self._start(*arguments))

    def findings(self, *arguments: str) -> list[dict[str, Any]]:
        """Those that name one of the ranks: other tests' processes are seen, too."""
        pids = [f"pid {pid})" for ranks in self.pids.values() for pid in ranks]
        return [
            finding
            for finding in self.report(*arguments)["findings"]
            if any(pid in json.dumps(finding) for pid in pids)
        ]

    def hangs(self) -> dict[str, list[dict[str, Any]]]:
        """Of each job what --hang finds, looked at side by side."""
        looks = {name: self._start("jobs", "--hang", str(pids[0])) for name, pids in self.pids.items()}
        return {name: self._read(look)["findings"] for name, look in looks.items()}

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        doctor = self._host.command(*command(*arguments, "--json"))
        return subprocess.Popen(doctor, env=plain_environ(), stdout=subprocess.PIPE, text=True)

    @staticmethod
    def _read(look: subprocess.Popen[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(look.communicate(timeout=90)[0])
        return found


@contextmanager
def started(cluster: Slurm, host: Host, folder: Path, way: Way) -> Iterator[None]:
    """Started by srun in that folder, where its output goes as well, and ended."""
    folder.mkdir()
    (folder / "train.py").write_text(way.script)
    settings = {
        "RUNNING_JOB": str(folder), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    tasks = host.command("srun", "--nodes=1", *way.tasks, "--chdir", str(folder), *way.command)
    with (folder / "output").open("w") as output:
        srun = subprocess.Popen(tasks, env=cluster.environ | settings, stdout=output, stderr=output)
        try:
            yield
        finally:
            cluster.run("scancel", "--user=root", "--signal=KILL")
            srun.wait(timeout=30)


def pid_of(folder: Path, rank: int) -> int:
    """Of a rank, once it trains."""
    marker = folder / f"rank-{rank}.training"
    wait_until(marker.exists, (folder / "output").read_text())
    return int(marker.read_text())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrameworkJobs]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "cluster").mkdir()
    with network("n1") as (host,), slurm([host], folder / "cluster") as cluster, ExitStack() as stack:
        for name, way in WAYS.items():
            stack.enter_context(started(cluster, host, folder / name, way))
        yield FrameworkJobs(host, {name: [pid_of(folder / name, rank) for rank in range(2)] for name in WAYS})


def test_healthy(jobs: FrameworkJobs) -> None:
    listed = jobs.report("jobs")["jobs"]
    seen = {
        name: [
            [(rank["process"]["pid"], rank["source"]) for rank in job["ranks"]]
            for job in listed
            if {rank["process"]["pid"] for rank in job["ranks"]} & {*pids}
        ]
        for name, pids in jobs.pids.items()
    }
    assert seen == {name: [[(pid, WAYS[name].source) for pid in pids]] for name, pids in jobs.pids.items()}
    assert jobs.findings("jobs") == jobs.findings("zombies") == jobs.findings("check", "--quick") == []
    found = jobs.hangs()
    assert [finding for findings in found.values() for finding in findings if finding["severity"] == "fail"] == []


def test_a_stopped_rank_of_each(jobs: FrameworkJobs) -> None:
    for pids in jobs.pids.values():
        os.kill(pids[1], signal.SIGSTOP)
    found: dict[str, list[dict[str, Any]]] = {}

    def all_named() -> bool:
        found.update(jobs.hangs())
        return all(any("rank 1" in finding["summary"].lower() for finding in findings) for findings in found.values())

    wait_until(all_named, str(found))
