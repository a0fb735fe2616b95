"""Real launchers: what torchrun and mpirun give to a rank is judged clean, and read right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.launchers import current_launch
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.environment import probe

RANK = """
import json, os, sys
rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(dict(os.environ), file)
"""
OURS = [check for check in all_checks() if check.family in ("settings", "leftovers", "visible_gpus", "launch")]


def clean_environment() -> dict[str, str]:
    """This environment without what a launcher of ours may have left in it."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in kept if name in os.environ}


def environments_of(command: list[str], folder: Path, environ: dict[str, str]) -> list[dict[str, str]]:
    script = folder / "rank.py"
    script.write_text(RANK)
    ended = subprocess.run(
        [*command, str(script), str(folder)], env=environ, capture_output=True, text=True, timeout=110
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_a_rank_of_torchrun_is_judged_clean(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ours = clean_environment() | {"TMPDIR": str(tmp_path)}  # torchrun leaves its folder for logs behind.
    for rank, environ in enumerate(environments_of(command, tmp_path, ours)):
        found = probe(Context(sys.executable, environ=environ, root=tmp_path))
        launch = current_launch(found)
        assert launch is not None
        assert (launch.launcher, launch.rank, launch.world_size, launch.local_rank) == ("torchrun", rank, 2, rank)
        for result in diagnose(Snapshot(environment=found), Plan(2, "test"), OURS):
            assert not result.findings, result.findings


@pytest.mark.slow
@pytest.mark.tool("mpirun")
def test_a_rank_of_mpirun_is_read_right(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    assert mpirun, "Open MPI is needed: apt-get install openmpi-bin"
    environ = {**clean_environment(), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Without the first option it listens on this machine's own address.
    loopback = ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]
    # The batch script's rank goes to all of them, as in a Slurm allocation.
    stale = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    command = [
        mpirun,
        *loopback,
        "--oversubscribe",
        "-np",
        "2",
        "env",
        *(f"{name}={value}" for name, value in stale.items()),
    ]
    for rank, found_environ in enumerate(environments_of([*command, sys.executable], tmp_path, environ)):
        found = probe(Context(sys.executable, environ=found_environ, root=tmp_path))
        launch = current_launch(found)
        assert launch is not None
        assert (launch.launcher, launch.rank, launch.world_size) == ("Open MPI", rank, 2)
        slugs = {
            result.check.slug
            for result in diagnose(Snapshot(environment=found), Plan(2, "test"), OURS)
            if result.findings
        }
        assert slugs == {"mpirun-in-slurm"}
