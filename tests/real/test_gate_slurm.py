"""`ddpdoctor gate` on real Slurm daemons, with the slurm.conf of deploy/: a sick node is drained and comes back; a job's prolog, and what it
leaves to its epilog."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import ROOT
from tests.support.deployed import DEPLOY
from tests.support.namespaces import Host, network
from tests.support.other_users import User, python_for_all, shared_folder
from tests.support.own_pids import OwnPids, own_pids
from tests.support.running_jobs import wait_until
from tests.support.segments import A_MINUTE_LATER, nccl_name
from tests.support.slurm import Slurm, slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.tool("slurmctld", "slurmd", "munged", "unshare", "nsenter", "ip"),
    pytest.mark.slow,
]

LOOPBACK = "hostname-resolves-loopback"
"""Of the node, and made true by /etc/hosts."""
STARTED_BY_SLURMD = """#!/bin/sh
# slurmd hands down neither PATH nor HOME.
export PYTHONPATH={root} PET_NNODES=2
echo >>{folder}/{role}.begun
trap 'echo >>{folder}/{role}.ended' EXIT
test -e {folder}/on-{role} || exit 0
answer=$({doctor} gate --for slurm-{role} --quick --select {check} {options} 2>>{folder}/{role}.err)
code=$?
echo "$answer" | tee -a {folder}/{role}.out
echo $code >>{folder}/{role}.codes
exit $code
"""
TASK_PROLOG = """#!/bin/sh
export PET_NNODES=2
test -e {folder}/on-task-prolog || exit 0
{settings} exec {python} -m ddpdoctor gate --for slurm-prolog --quick --select {check}
"""
"""It is the job's user that runs it, and Slurm that reads what it prints."""
OPTIONS = {"healthcheck": "--drain", "prolog": "--drain", "epilog": "--kill --drain"}
SCRIPTS = {"healthcheck": "healthcheck.sh", "prolog": "prolog.d/gate.sh", "epilog": "epilog.d/gate.sh"}
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
(umask 077; echo >/dev/shm/{segment})
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

    def forget(self) -> None:
        """What the roles have said so far; all of them are off."""
        for role in OPTIONS:
            wait_until(
                lambda role=role: self.said(f"{role}.begun") == self.said(f"{role}.ended"), f"the end of a {role}"
            )
            for name in ("out", "err", "codes"):
                (self.folder / f"{role}.{name}").unlink(missing_ok=True)

    def heal(self, name: str) -> None:
        """The host is well again, and the next health check undrains it."""
        self.make_sick("")
        self.switch("healthcheck", on=True)
        wait_until(lambda: self.node(name) == ("IDLE", ""), f"{name} comes back")

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of it."""
        words = self.slurm.run("scontrol", "--oneliner", "show", "job", number).stdout.split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def now(self) -> str:
        """The time as Slurm writes it."""
        return self.slurm.run("date", "+%FT%T").stdout.strip()

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
        # The segments that a job leaves are as old, and as surely nobody's, as they are an hour later on a host without namespaces.
        doctor = shlex.join([sys.executable, "-c", A_MINUTE_LATER])
        for role, options in OPTIONS.items():
            text = STARTED_BY_SLURMD.format(
                folder=folder, root=ROOT, role=role, doctor=doctor, check=LOOPBACK, options=options
            )
            write_script(folder / SCRIPTS[role], text)
        python, environ = python_for_all()
        settings = shlex.join(f"{name}={value}" for name, value in environ.items())
        write_script(
            folder / "task-prolog.sh",
            TASK_PROLOG.format(folder=folder, settings=settings, python=shlex.quote(python), check=LOOPBACK),
        )
        shipped = (DEPLOY / "slurm" / "slurm.conf").read_text().replace("/etc/slurm", str(folder))
        assert "HealthCheckInterval=300\n" in shipped
        lines = (
            shipped.replace("HealthCheckInterval=300\n", f"HealthCheckInterval={SECONDS_BETWEEN_CHECKS}\n"),
            f"TaskProlog={folder}/task-prolog.sh",
        )
        # In this order: what is mounted for the hosts is seen inside, too.
        with network("n1", "n2", "n3") as hosts, own_pids() as inside:
            # What is ended there is nobody else's, either.
            assert inside.run("mount", "-t", "tmpfs", "none", "/dev/shm").returncode == 0
            for host in hosts:
                host.prefix = inside.prefix
            with slurm(hosts, folder, more="\n".join(lines), track="proctrack/pgid") as running:
                yield Cluster(running, hosts, folder, inside)


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def well(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which is well again afterwards."""
    yield cluster
    cluster.make_sick("")
    for role in (*OPTIONS, "task-prolog"):
        cluster.switch(role, on=False)
    cluster.forget()
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
    """The node is drained under our reason, not Slurm's "Prolog error", so it comes back when it has healed."""
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
    # srun ends as the prolog of n1 has failed; that of n2 may still be under way.
    wait_until(
        lambda: sorted(well.said("prolog.codes").split()) == ["0"] * 5 + ["1"], lambda: well.said("prolog.codes")
    )
    # Slurm keeps of a Prolog's output what one that fails has said.
    said = f"print ddpdoctor: node: {LOOPBACK}: n1 resolves to 127.0.1.1"
    assert said in well.said("prolog.out")
    wait_until(lambda: said in well.said("slurmd-n1.log"), "the prolog's output in slurmd's log")
    assert "n1 was drained" in well.said("prolog.err")
    wait_until(lambda: well.node("n1")[0] == "IDLE+DRAIN", "the end of the job, and of Slurm's own drain")
    assert well.node("n1")[1].startswith(f"ddpdoctor: node: {LOOPBACK}: n1 resolves to 127.0.1.1")
    well.heal("n1")


def test_a_batch_job_goes_from_a_sick_node_to_another(well: Cluster) -> None:
    well.switch("prolog", on=True)
    well.make_sick("n1")
    written = well.folder / "written"
    sbatch = ("sbatch", "--parsable", "--requeue", "--nodes=2", f"--output={written}", "--wrap=hostname")
    number = well.slurm.run(*sbatch).stdout.strip()
    wait_until(lambda: well.job(number)["Restarts"] == "1" and well.job(number)["JobState"] == "PENDING", "the requeue")
    # Held, it would wait for an admin. Slurm lets it wait for two minutes.
    assert well.job(number)["Reason"] == "BeginTime", well.job(number)
    wait_until(lambda: well.node("n1")[0] == "IDLE+DRAIN", "the end of Slurm's own drain")
    assert well.node("n1")[1].startswith(f"ddpdoctor: node: {LOOPBACK}")
    # That wait is there since slurmd refuses a credential as old as the job's end there, to the second, and Slurm then fails the job.
    wait_until(lambda: well.now() > well.job(number)["SubmitTime"], "the second after the requeue")
    changed = well.slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert changed.returncode == 0, changed.stderr
    wait_until(lambda: well.job(number)["JobState"] in ("COMPLETED", "FAILED"), lambda: f"the job: {well.job(number)}")
    assert well.job(number)["JobState"] == "COMPLETED", well.job(number)
    assert written.read_text() == "n2\n"


def test_a_task_prolog_tells_the_job_why(well: Cluster, ada: User) -> None:
    well.switch("task-prolog", on=True)
    srun = (
        "srun",
        "--nodes=2",
        "--ntasks=2",
        "--label",
        "--nodelist=n1,n2",
        f"--uid={ada.name}",
        "--chdir=/",
        "hostname",
    )
    ran = well.slurm.run(*srun)
    assert sorted(ran.stdout.splitlines()) == ["0: n1", "1: n2"], ran.stderr
    well.make_sick("n1")
    wait_until(lambda: well.slurm.idle() == len(well.hosts), "the end of that job: the next is to begin at once")
    ran = well.slurm.run(*srun)
    assert f"0: ddpdoctor: node: {LOOPBACK}: n1 resolves to 127.0.1.1" in ran.stdout, ran.stderr
    assert "0: n1" not in ran.stdout.splitlines()
    assert ran.returncode != 0


def test_an_epilog_drains_a_sick_node_until_it_heals(well: Cluster) -> None:
    """Under our reason, not Slurm's "Epilog error"."""
    well.make_sick("n2")
    well.switch("epilog", on=True)
    # Around a job of one node that check has nothing to look at.
    ran = well.slurm.run("srun", "--nodes=2", "--nodelist=n1,n2", "hostname")
    assert (ran.returncode, sorted(ran.stdout.split())) == (0, ["n1", "n2"]), ran.stderr
    # It stays COMPLETING until Slurm has had the epilog's exit code.
    wait_until(lambda: well.node("n2")[0] == "IDLE+DRAIN", "the end of the epilog")
    wait_until(lambda: sorted(well.said("epilog.codes").split()) == ["0", "1"], "the end of both epilogs")
    assert well.node("n2")[1].startswith(f"ddpdoctor: node: {LOOPBACK}: n2 resolves to 127.0.1.1")
    well.heal("n2")


def test_an_epilog_ends_what_the_job_of_a_user_left(well: Cluster, ada: User, shared: Path) -> None:
    python, settings = python_for_all()
    (shared / "train.py").write_text(LEAVES_A_WORKER)
    segment = nccl_name()
    (shared / "job.sh").write_text(JOB.format(python=shlex.quote(python), segment=segment))
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
    assert f"ddpdoctor: removed: /dev/shm/{segment}\n" in well.said("epilog.err")
    assert segment not in well.inside.run("ls", "/dev/shm").stdout
