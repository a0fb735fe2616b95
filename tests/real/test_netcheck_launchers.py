"""netcheck under real launchers: srun and mpirun on a cluster of two hosts, torchrun, and a Kubernetes job's settings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import netcheck, start
from tests.support.slurm import Slurm, slurm
from tests.support.waiting import slowdown

pytestmark = pytest.mark.root

SILENT = "Local rank 1: local rank 0 speaks for this node."

SCRIPT = """#!/bin/sh
ddpdoctor netcheck --quick > alone.out 2> alone.err
echo $? > alone.code
one_each="srun --ntasks=2 --ntasks-per-node=1"
RANK=0 WORLD_SIZE=6 $one_each --output=exported-%t.out --error=exported-%t.err ddpdoctor netcheck --quick --json --strict
echo $? > exported.code
mpirun --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 --map-by ppr:1:node sh -c '
    exec ddpdoctor netcheck --quick --json > mpirun-$OMPI_COMM_WORLD_RANK.out'
echo $? > mpirun.code
# What netcheck printed, word for word.
sh -ec "$(grep -o 'srun .*' alone.err)" > printed.out
echo $? > printed.code
"""


class Cluster:
    """Two hosts under Slurm, and a folder with `ddpdoctor` on the PATH of all commands."""

    def __init__(self, hosts: list[Host], engine: Slurm, folder: Path) -> None:
        self.hosts = hosts
        self._engine = engine
        self.folder = folder

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = launcher_environ(self.folder) | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return self._engine.run(*arguments, environ=environ)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text(name))
        return found


def launcher_environ(folder: Path) -> dict[str, str]:
    """A plain shell's settings, all temporary files in the folder, and mpirun's permission to run as root."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return plain_environ() | allowed | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "bin").mkdir()
    shim = folder / "bin" / "ddpdoctor"
    shim.write_text(f'#!/bin/sh\nexec {" ".join(command())} "$@"\n')
    shim.chmod(0o755)
    (folder / "slurm").mkdir()
    with network("n1", "n2") as hosts:
        with slurm(hosts, folder / "slurm") as engine:
            yield Cluster(hosts, engine, folder)
        until = time.monotonic() + 10
        while any(processes(host) for host in hosts):
            assert time.monotonic() < until, "something still runs on a host of the cluster"
            time.sleep(0.1)


def processes(host: Host) -> str:
    return subprocess.run(
        ["ip", "netns", "pids", host.namespace], check=True, capture_output=True, text=True, timeout=10
    ).stdout


def kill_all(*hosts: Host) -> None:
    for pid in " ".join(processes(host) for host in hosts).split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def batch(cluster: Cluster) -> Cluster:
    """The cluster, after a batch script has ended on it."""
    script = cluster.folder / "job.sh"
    script.write_text(SCRIPT)
    place = str(cluster.folder)
    done = cluster.run(
        "sbatch", "-N2", "--ntasks-per-node=3", f"--chdir={place}", f"--output={place}/job.log", str(script)
    )
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + 60
    while not (cluster.folder / "printed.code").exists():
        assert time.monotonic() < until, f"the batch script hangs: {cluster.text('job.log')}"
        time.sleep(0.1)
    return cluster


@pytest.mark.tool("slurmctld", "slurmd", "munged")
def test_srun_two_tasks_a_node(cluster: Cluster) -> None:
    files = [f"--{stream}={cluster.folder}/srun-%t.{stream}" for stream in ("output", "error")]
    done = cluster.run("srun", "-N2", "--ntasks-per-node=2", *files, "ddpdoctor", "netcheck", "--quick", "--json")
    assert done.returncode == 0, cluster.text("srun-0.error")
    assert [cluster.report(f"srun-{task}.output")["verdict"] for task in (0, 2)] == ["ok", "ok"]
    assert [cluster.report(f"srun-{task}.output")["findings"] for task in (0, 2)] == [[], []]
    for task in (1, 3):
        assert cluster.text(f"srun-{task}.output") == ""
        assert cluster.text(f"srun-{task}.error").strip() == SILENT


@pytest.mark.tool("slurmctld", "slurmd", "munged")
def test_a_flag_wins_and_the_conflict_is_named_on_all_nodes(cluster: Cluster) -> None:
    files = [f"--{stream}={cluster.folder}/flag-%t.{stream}" for stream in ("output", "error")]
    # Until then both of its two must have come.
    wait = f"{5 * min(slowdown(), 6):.0f}"
    flags = ("--quick", "--json", "--nnodes", "3", "--wait", wait)
    done = cluster.run("srun", "-N2", "--ntasks-per-node=1", *files, "ddpdoctor", "netcheck", *flags)
    assert done.returncode == 1, done.stderr
    whole, part = (cluster.report(f"flag-{task}.output") for task in (0, 1))
    assert whole["verdict"] == part["verdict"] == "fail"
    assert {finding["slug"] for finding in whole["findings"]} == {"rdzv-missing-node", "launcher-conflict"}
    assert [finding["slug"] for finding in part["findings"]] == ["launcher-conflict"]
    assert part["findings"][0]["summary"] == "--nnodes says 3, SLURM_STEP_NUM_NODES says 2; 3 counts"


@pytest.mark.tool("slurmctld", "slurmd", "munged", "mpirun")
def test_a_batch_script_alone_is_told_to_use_srun_and_that_works(batch: Cluster) -> None:
    assert batch.text("alone.code").strip() == "2"
    assert re.search(
        "batch script of Slurm job [0-9]+, which runs on the first of its 2 nodes only", batch.text("alone.err")
    )
    assert batch.text("alone.out") == ""
    assert batch.text("printed.code").strip() == "0"
    assert "2 of 2 nodes came" in batch.text("printed.out")


@pytest.mark.tool("slurmctld", "slurmd", "munged", "mpirun")
def test_a_rank_that_was_exported_before_srun(batch: Cluster) -> None:
    assert batch.text("exported.code").strip() == "1"  # --strict
    found = [batch.report(f"exported-{task}.out") for task in (0, 1)]
    assert [one["verdict"] for one in found] == ["warn", "warn"]
    (finding,) = found[1]["findings"]
    assert finding["summary"] == "SLURM_PROCID says 1, RANK says 0; 1 counts"
    assert [(finding["slug"], finding["node"]) for finding in found[0]["findings"]] == [("launcher-conflict", "n2")]


@pytest.mark.tool("slurmctld", "slurmd", "munged", "mpirun")
def test_mpirun_on_two_hosts_of_a_slurm_job(batch: Cluster) -> None:
    assert batch.text("mpirun.code").strip() == "0"
    found = [batch.report(f"mpirun-{rank}.out") for rank in (0, 1)]
    assert [one["verdict"] for one in found] == ["warn", "warn"]
    (finding,) = found[1]["findings"]
    assert finding["summary"] == "OMPI_COMM_WORLD_RANK says 1, SLURM_PROCID says 0; 1 counts"


@pytest.mark.tool("mpirun")
def test_mpirun_on_one_host(tmp_path: Path) -> None:
    script = "exec {} netcheck --quick --json --master-addr 127.0.0.1 > $TMPDIR/$OMPI_COMM_WORLD_RANK.out"
    loopback = ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]
    run = ["mpirun", *loopback, "--oversubscribe", "-np", "2", "sh", "-c", script.format(" ".join(command()))]
    with network("n1") as (host,):
        done = subprocess.run(
            host.command(*run), env=launcher_environ(tmp_path), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert SILENT in done.stderr
        assert not processes(host)
    assert json.loads((tmp_path / "0.out").read_text())["host"] == "n1"
    assert (tmp_path / "1.out").read_text() == ""


RENDEZVOUS = {
    "static": (["--master-addr=n1", "--master-port=29511", "--node-rank=0"], ["--master-addr=n1", "--master-port=29511", "--node-rank=1"]),
    "c10d": (["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29433", "--rdzv-id=7"],) * 2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", RENDEZVOUS)
def test_torchrun_whose_own_store_holds_the_port(kind: str, tmp_path: Path) -> None:
    environ = launcher_environ(tmp_path)
    with network("n1", "n2") as hosts:
        agents = []
        for host, how in zip(hosts, RENDEZVOUS[kind], strict=True):
            run = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", *how]
            netcheck_module = ["-m", "ddpdoctor", "netcheck", "--quick", "--json"]
            agents.append(
                subprocess.Popen(
                    host.command(*run, *netcheck_module),
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        # What a hanging torchrun has said is to be seen.
        timer = threading.Timer(60, kill_all, hosts)
        timer.start()
        ends = [agent.communicate() for agent in agents]
        timer.cancel()
        for agent, (out, err) in zip(agents, ends, strict=True):
            assert agent.returncode == 0, ends
            assert SILENT in err
            # Of two ranks one has spoken: what is there is one report.
            report = json.loads(out)
            assert (report["verdict"], report["findings"]) == ("ok", [])


def test_an_indexed_job_of_kubernetes() -> None:
    pods = {
        f"train-{index}": {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": f"{index}"}
        for index in (0, 1)
    }
    each = {name: settings | {"HOSTNAME": name} for name, settings in pods.items()}
    with network(*pods) as hosts:
        ran = netcheck(hosts, "--master-addr", "train-0", each=each, ranks=False)
        assert [(run.code, run.report["verdict"]) for run in ran] == [(0, "ok"), (0, "ok")]
        # Whoever is started with another job's name is another job: it isn't let in.
        other = each | {"train-1": each["train-1"] | {"HOSTNAME": "other-1"}}
        ran = netcheck(hosts, "--master-addr", "train-0", "--wait", "3", each=other, ranks=False)
        assert [run.code for run in ran] == [1, 1]
        assert "token" in ran[1].stderr + ran[1].stdout


def test_a_step_on_one_node_looks_at_a_master_elsewhere_from_its_side() -> None:
    """Whoever types `srun ddpdoctor netcheck --master-addr n2` asks about the way there, and not for a job of one node."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_NUM_TASKS": "1",
    }
    with network("n1", "n2") as hosts:
        there, here = (
            start(hosts[0], "--json", "--quick", "--master-addr", master, "--wait", "5", environ=step).end()
            for master in ("n2", "n1")
        )
    assert there.code == 1
    assert "SLURM_STEP_NUM_NODES says that this is a job of one node, and n2 isn't here" in there.stderr
    (finding,) = there.report["findings"]
    assert finding["summary"].startswith("10.77.0.12 port 29500 refuses n1's connections")
    assert (here.code, here.slugs) == (0, set())
