"""`ddpdoctor gate` on real Slurm daemons: a sick node is drained and comes back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import ROOT
from tests.support.namespaces import Host, network
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
}
SECONDS_BETWEEN_CHECKS = 4


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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
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
    )
    # In this order: what is mounted for the hosts is seen inside, too.
    with network("n1", "n2", "n3") as hosts, own_pids() as inside:
        for host in hosts:
            host.prefix = inside.prefix
        with slurm(hosts, folder, more="\n".join(settings)) as running:
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
