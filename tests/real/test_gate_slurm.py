"""`ddpdoctor gate` on real Slurm daemons: a sick node is drained and comes back; a job's prolog, and what it leaves to its epilog."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import ROOT
from tests.support.namespaces import Host, network
from tests.support.other_users import User, python_for_all, shared_folder
from tests.support.own_pids import OwnPids, own_pids
from tests.support.running_jobs import wait_until
from tests.support.slurm import Slurm, slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.tool("slurmctld", "slurmd", "munged", "unshare", "nsenter", "ip"),
    pytest.mark.slow,
]

LOOPBACK = "hostname-resolves-loopback"
"""Of the node, and made true by /etc/hosts."""
STARTED_BY_SLURMD = """#!/bin/sh
# slurmd hands down neither PATH nor HOME, and here slurm.conf lies where nobody would look for it.
export SLURM_CONF={folder}/slurm.conf PYTHONPATH={root} PET_NNODES=2
test -e {folder}/on-{role} || exit 0
{python} -m ddpdoctor gate --for slurm-{role} --quick {options} >>{folder}/{role}.out 2>>{folder}/{role}.err
code=$?
echo $code >>{folder}/{role}.codes
exit $code
"""
OPTIONS = {
    "healthcheck": f"--drain --select {LOOPBACK}",
    "prolog": f"--select {LOOPBACK}",
    "epilog": f"--kill --select {LOOPBACK}",
}
SECONDS_BETWEEN_CHECKS = 4
LEAVES_A_WORKER = """
import os, signal, sys, time
from pathlib import Path
from torch.utils.data import DataLoader

class Stuck:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        Path("worker").write_text(str(os.getpid()))
        time.sleep(1000)

if __name__ == "__main__":
    for _ in DataLoader(Stuck(), num_workers=1):
        pass
"""
JOB = """
# Slurm waits a minute for whoever holds the output.
setsid {python} train.py >/dev/null 2>&1 &
until test -e worker && test $(ps -o etimes= -p $(cat worker)) -gt 12; do sleep 0.2; done
kill -9 $!
"""


class Cluster(NamedTuple):
    """Three nodes. folder: holds the switches `on-ROLE`, and what each role has said."""

    slurm: Slurm
    hosts: list[Host]
    folder: Path
    inside: OwnPids

    def node(self, name: str) -> tuple[str, str]:
        """Its state, and the reason for it."""
        lines = [line.strip() for line in self.slurm.run("scontrol", "show", "node", name).stdout.splitlines()]
        state = next(line.split()[0] for line in lines if line.startswith("State="))
        reason = next((line for line in lines if line.startswith("Reason=")), "Reason=")
        return state.removeprefix("State="), reason.removeprefix("Reason=").rpartition(" [")[0]

    def change(self, name: str, *changes: str) -> None:
        changed = self.slurm.run("scontrol", "update", f"nodename={name}", *changes)
        assert changed.returncode == 0, changed.stderr

    def said(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    def switch(self, role: str, *, on: bool) -> None:
        file = self.folder / f"on-{role}"
        if on:
            file.touch()
        else:
            file.unlink(missing_ok=True)

    def make_sick(self, name: str) -> None:
        """That host's own name leads to its loopback from now on; all others are well."""
        for host in self.hosts:
            names = [f"10.77.0.{number} {other.hostname}" for number, other in enumerate(self.hosts, 11)]
            own = [f"127.0.1.1 {name}"] if host.hostname == name else []
            host.hosts("\n".join(["127.0.0.1 localhost", *own, *names]) + "\n")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Jobs of others than root ask munged there.
    with shared_folder(0o755) as folder:
        for role, options in OPTIONS.items():
            script = folder / f"{role}.sh"
            script.write_text(
                STARTED_BY_SLURMD.format(
                    folder=folder, root=ROOT, role=role, python=shlex.quote(sys.executable), options=options
                )
            )
            script.chmod(0o755)
        settings = (
            f"HealthCheckProgram={folder}/healthcheck.sh",
            f"HealthCheckInterval={SECONDS_BETWEEN_CHECKS}",
            "HealthCheckNodeState=ANY",
            f"Prolog={folder}/prolog.sh",
            f"Epilog={folder}/epilog.sh",
        )
        # In this order: what is mounted for the hosts is seen inside, too.
        with network("n1", "n2", "n3") as hosts, own_pids() as inside:
            for host in hosts:
                host.prefix = inside.prefix
            with slurm(hosts, folder, more="\n".join(settings), track="proctrack/pgid") as running:
                yield Cluster(running, hosts, folder, inside)


@pytest.fixture
def well(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which is well again afterwards."""
    yield cluster
    cluster.make_sick("")
    for role in OPTIONS:
        cluster.switch(role, on=False)
    for host in cluster.hosts:
        if "DRAIN" in cluster.node(host.hostname)[0]:
            cluster.change(host.hostname, "state=resume")
    wait_until(lambda: cluster.slurm.idle() == len(cluster.hosts), "no job is left, and no drain")


def test_a_sick_node_is_drained_and_comes_back(well: Cluster) -> None:
    well.change("n3", "state=drain", "reason=disk swap, ask ann")
    well.make_sick("n2")
    well.switch("healthcheck", on=True)
    wait_until(lambda: "DRAIN" in well.node("n2")[0], "the drain")
    assert well.node("n2")[1].startswith(f"ddpdoctor: node: {LOOPBACK}: n2 resolves to 127.0.1.1")
    # A job lands on the one that is left.
    ran = well.slurm.run("srun", "--nodes=1", "--ntasks=1", "hostname")
    assert (ran.returncode, ran.stdout) == (0, "n1\n"), ran.stderr
    well.make_sick("")
    wait_until(lambda: "DRAIN" not in well.node("n2")[0], "the end of the drain")
    assert well.node("n2")[1] == ""
    ran = well.slurm.run("srun", "--nodes=1", "--nodelist=n2", "hostname")
    assert (ran.returncode, ran.stdout) == (0, "n2\n"), ran.stderr
    # All the while another's drain stays, and no pass has ended but with 0.
    assert well.node("n3") == ("IDLE+DRAIN", "disk swap, ask ann")
    wait_until(lambda: "n3 stays drained: disk swap, ask ann" in well.said("healthcheck.err"))
    assert set(well.said("healthcheck.codes").split()) == {"0"}
    for words in ("n2 was drained\n", "n2 was undrained\n"):
        assert words in well.said("healthcheck.err")


def test_a_prolog_keeps_a_job_from_a_sick_node(well: Cluster) -> None:
    well.switch("prolog", on=True)
    on_both = ("srun", "--nodes=2", "--ntasks=2", "--nodelist=n1,n2")
    assert sorted(well.slurm.run(*on_both, "hostname").stdout.split()) == ["n1", "n2"]
    well.make_sick("n1")
    skipped = well.slurm.run(*on_both, "--comment=skip_checks", "hostname")
    assert sorted(skipped.stdout.split()) == ["n1", "n2"], skipped.stderr
    assert "the job's comment says skip_checks" in well.said("prolog.err")
    refused = well.slurm.run(*on_both, "hostname")
    assert refused.returncode != 0
    assert "n1" not in refused.stdout.split()
    assert sorted(well.said("prolog.codes").split()) == ["0"] * 5 + ["1"]
    assert f"print ddpdoctor: node: {LOOPBACK}: n1 resolves to 127.0.1.1" in well.said("prolog.out")
    wait_until(lambda: "DRAIN" in well.node("n1")[0], "Slurm's own drain")


def test_an_epilog_ends_what_the_job_of_a_user_left(well: Cluster, ada: User, shared: Path) -> None:
    python, settings = python_for_all()
    (shared / "train.py").write_text(LEAVES_A_WORKER)
    (shared / "job.sh").write_text(JOB.format(python=shlex.quote(python)))
    os.chown(shared, ada.uid, ada.gid)
    well.switch("epilog", on=True)
    environ = {**settings, "OMP_NUM_THREADS": "1", "HOME": str(shared)}
    srun = ("srun", "--nodes=1", "--nodelist=n3", f"--uid={ada.name}", f"--chdir={shared}", "bash", "job.sh")
    ran = well.slurm.run(*srun, environ=environ, seconds=120)
    assert (shared / "worker").exists(), ran
    worker = int((shared / "worker").read_text())
    wait_until(lambda: well.said("epilog.codes") == "0\n", ran.stderr)
    assert not well.inside.alive(worker), well.said("epilog.err") + ran.stderr
    assert f"(pid {worker})" in well.said("epilog.err"), well.said("epilog.out") + ran.stderr + ran.stdout
