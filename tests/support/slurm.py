"""A Slurm cluster out of namespaces, for tests: one controller, one slurmd a host, one munged, all of this run's own.

Needs root, and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.namespaces import Host

CONFIGURATION = """
ClusterName=ddpdoctor
SlurmctldHost={controller}(10.77.0.11)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType={track}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=1
KillWait=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


class Slurm:
    """A running cluster. Commands run on the first host, which is the controller and a node, too."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self._hosts = hosts
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def run(
        self, *command: str, environ: Mapping[str, str] | None = None, seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs "srun", "scontrol" ... to the end, whatever its exit code."""
        return subprocess.run(
            self._hosts[0].command(*command),
            env=self.environ | dict(environ or {}),
            timeout=seconds,
            capture_output=True,
            text=True,
        )

    def idle(self) -> int:
        """How many nodes are idle."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%t").stdout.split().count("idle")


@contextmanager
def slurm(
    hosts: Sequence[Host], folder: Path, cores: int = 8, more: str = "", track: str = "proctrack/linuxproc"
) -> Iterator[Slurm]:
    """The hosts as nodes of a cluster, each with so many cores by its own word, and an /etc/slurm of its own. Logs are in the folder.

    Args:
        hosts: the first is the controller, too.
        folder: an empty one.
        cores: of each.
        more: lines of slurm.conf.
        track: by what a job's processes are known.
    """
    for tool, package in (("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("munged", "munge")):
        assert shutil.which(tool), f"{tool} is needed: apt-get install {package}"
    nodes = "\n".join(
        f"NodeName={host.hostname} NodeAddr=10.77.0.{number} CPUs={cores} RealMemory=1000 State=UNKNOWN"
        for number, host in enumerate(hosts, 11)
    )
    configuration = CONFIGURATION.format(controller=hosts[0].hostname, folder=folder, nodes=nodes, track=track)
    for host in hosts:
        host.etc("slurm/slurm.conf", configuration + more)
        host.etc("slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    folder.chmod(0o755)
    cluster = Slurm(hosts, folder)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
    commands = [
        (hosts[0], ["munged", "--foreground", "--force", *munge]),
        (hosts[0], ["slurmctld", "-D"]),
        *((host, ["slurmd", "-D", "-N", host.hostname]) for host in hosts),
    ]
    with contextlib.ExitStack() as stack, (folder / "daemons.log").open("w") as log:
        for host, command in commands:
            daemon = subprocess.Popen(host.command(*command), env=cluster.environ, stdout=log, stderr=log)
            stack.callback(_end, daemon)
            if command[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), daemon, folder)
        _wait(lambda: cluster.idle() == len(hosts), daemon, folder)
        stack.callback(cluster.run, "scancel", "--user=root", "--signal=KILL")
        yield cluster


def _wait(ready: Callable[[], bool], daemon: subprocess.Popen[bytes], folder: Path, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not ready():
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        assert daemon.poll() is None, logs
        assert time.monotonic() < until, logs
        time.sleep(0.05)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
