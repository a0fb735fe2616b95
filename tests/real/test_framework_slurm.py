"""A training by Lightning as Slurm's tasks, healthy and with a stopped rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.framework_jobs import LIGHTNING
from tests.support.namespaces import Host, network
from tests.support.running_jobs import wait_until
from tests.support.slurm import slurm

pytestmark = [pytest.mark.root, pytest.mark.tool("slurmctld", "slurmd", "munged"), pytest.mark.slow]


def report_of(host: Host, *arguments: str) -> dict[str, Any]:
    ran = subprocess.run(
        host.command(*command(*arguments, "--json")), env=plain_environ(), capture_output=True, text=True, timeout=90
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_lightning_as_tasks_of_slurm(tmp_path: Path) -> None:
    cluster_folder, folder = tmp_path / "cluster", tmp_path / "run"
    cluster_folder.mkdir()
    folder.mkdir()
    (folder / "train.py").write_text(LIGHTNING)
    with network("n1") as (host,), slurm([host], cluster_folder) as cluster, (tmp_path / "output").open("w") as output:
        tasks = ["srun", "--nodes=1", "--ntasks-per-node=2", "--chdir", str(folder), sys.executable, "train.py"]
        environ = {"RUNNING_JOB": str(folder), "OMP_NUM_THREADS": "1"}
        srun = subprocess.Popen(host.command(*tasks), env=cluster.environ | environ, stdout=output, stderr=output)
        try:
            for rank in range(2):
                wait_until((folder / f"rank-{rank}.training").exists, (tmp_path / "output").read_text())
            pids = [int((folder / f"rank-{rank}.training").read_text()) for rank in range(2)]
            mine = [f"(pid {pid})" for pid in pids]

            def findings(*arguments: str) -> list[dict[str, Any]]:
                found = report_of(host, *arguments)["findings"]
                return [one for one in found if any(pid in json.dumps(one) for pid in mine) or "--hang" in arguments]

            (job,) = [
                job
                for job in report_of(host, "jobs")["jobs"]
                if {rank["process"]["pid"] for rank in job["ranks"]} == {*pids}
            ]
            assert [rank["source"] for rank in job["ranks"]] == ["SLURM_PROCID"] * 2
            assert findings("jobs") == findings("zombies") == findings("check", "--quick") == []
            assert [one for one in findings("jobs", "--hang", str(pids[0])) if one["severity"] == "fail"] == []
            os.kill(pids[1], signal.SIGSTOP)
            wait_until(
                lambda: any("rank 1" in one["summary"].lower() for one in findings("jobs", "--hang", str(pids[0])))
            )
        finally:
            cluster.run("scancel", "--user=root", "--signal=KILL")
            srun.wait(timeout=30)
