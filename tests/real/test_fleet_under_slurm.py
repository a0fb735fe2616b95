"""A fleet of namespaced hosts under a real Slurm: `srun ddpdoctor snapshot | ddpdoctor fleet -`, each of ten hosts odd in a way of its own."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.knowledge.hostlist import expand, fold
from tests.support.command import command, plain_environ
from tests.support.namespaces import Host, network
from tests.support.slurm import Slurm, slurm

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.tool("slurmctld", "slurmd", "munged")]

ABSENT = "never"
"""A host that is expected, and that there isn't."""


class OddHost:
    """One way to be odd.

    Args:
        path: of the fact.
        value: there, as the report has it.
        prepare: makes the host so before anything runs on it.
        shell: makes the task so that looks at it.
    """

    def __init__(
        self, path: str, value: str, *, prepare: Callable[[Host], object] = lambda host: None, shell: str = ""
    ) -> None:
        self.path = path
        self.value = value
        self.prepare = prepare
        self.shell = shell


def second_interface(host: Host) -> None:
    host.ip("link add eth1 type veth peer name eth1peer")
    host.ip("link set eth1 up")


WAYS = {
    "mtu": OddHost("network.interfaces[eth0].mtu", "1,400", prepare=lambda host: host.ip("link set eth0 mtu 1400")),
    "open files": OddHost("limits.nofile_soft", "333", shell="ulimit -Sn 333"),
    "locked memory": OddHost("limits.memlock_soft", "65,536", shell="ulimit -l 64"),
    "setting": OddHost("environment.settings[NCCL_P2P_DISABLE]", "present", shell="export NCCL_P2P_DISABLE=1"),
    "value": OddHost("environment.settings[NCCL_DEBUG].value", "INFO", shell="export NCCL_DEBUG=INFO"),
    "name resolution": OddHost(
        "network.own_name.addresses", "127.0.1.1", prepare=lambda host: host.hosts(f"127.0.1.1 {host.hostname}\n")
    ),
    "interface": OddHost("network.interfaces[eth1,eth1peer]", "present", prepare=second_interface),
    "cores": OddHost("machine.usable_cores", "1", shell="TASKSET='taskset -c 0'"),
    "mount": OddHost("shared_memory.size", "64 MiB", shell="mount -t tmpfs -o size=64m none /dev/shm"),
    "default route": OddHost("network.default_interface", "eth0", prepare=lambda host: host.ip("route add default dev eth0")),
}  # fmt: skip


class FleetUnderSlurm:
    """What the sweep over a cluster came to."""

    def __init__(
        self, names: list[str], odd: dict[str, str], report: dict[str, Any], engine: Slurm, folder: Path
    ) -> None:
        self.names = names
        self.odd = odd
        self.report = report
        self.engine = engine
        self.folder = folder


def swept(count: int, folder: Path) -> Iterator[FleetUnderSlurm]:
    """Sweep over so many hosts: the odd ones are the first behind the controller, some of them twice where they are few."""
    (folder / "slurm").mkdir()
    names = [f"n{number:03}" for number in range(1, count + 1)]
    odd = dict(zip(WAYS, itertools.cycle(names[1:]), strict=False))
    task = folder / "task.sh"
    oddities = "\n".join(f'[ "$(hostname)" != {odd[way]} ] || {WAYS[way].shell or ":"}' for way in odd)
    task.write_text(
        f"export NCCL_DEBUG=WARN TASKSET=\n{oddities}\n"
        # Four at a time: all hosts share this machine's processors, and a look that waits for them too long says so.
        f'exec flock "{folder}/turn-$((SLURM_NODEID % 4))" $TASKSET {shlex.join(command("snapshot", "--quick"))}\n'
    )
    with network(*names) as hosts:
        for way, name in odd.items():
            WAYS[way].prepare(hosts[names.index(name)])
        with slurm(hosts, folder / "slurm") as engine:
            # Each task has mounts of its own, so that one of them may change /dev/shm.
            taken = engine.run(
                "srun", f"-N{count}", "--ntasks-per-node=1", "unshare", "--mount", "sh", str(task),
                environ=plain_environ(), seconds=280,
            )  # fmt: skip
            assert taken.returncode == 0, taken.stderr
            ended = subprocess.run(
                command("fleet", "-", "--json", "--expect", fold([*names, ABSENT]), "--nodes-out", folder),
                input=taken.stdout, env=plain_environ(), capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert ended.returncode == 1, ended.stderr
            yield FleetUnderSlurm(names, odd, json.loads(ended.stdout), engine, folder)


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetUnderSlurm]:
    yield from swept(8, tmp_path_factory.mktemp("eight"))


@pytest.fixture(scope="module")
def sixty_four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetUnderSlurm]:
    yield from swept(64, tmp_path_factory.mktemp("many"))


def check_sweep(fleet: FleetUnderSlurm) -> None:
    """Every host answered whole, and each odd one is named for its oddities, and no other host for them."""
    told = fleet.report["fleet"]
    assert fleet.report["problems"] == []
    assert [host["host"] for host in told["hosts"]] == fleet.names
    assert told["absent"] == ABSENT
    facts = {fact["path"]: fact for fact in told["odd"]}
    for way, name in fleet.odd.items():
        fact = facts[WAYS[way].path]
        assert (fact["hosts"], fact["value"]) == (name, WAYS[way].value), way
    odd_hosts = {name for fact in told["odd"] for name in expand(fact["hosts"])}
    assert odd_hosts == set(fleet.odd.values())
    assert told["undecided"] == []


def check_exclusion(fleet: FleetUnderSlurm) -> None:
    """Slurm itself takes the list of failing nodes, but for what it doesn't know."""
    failing = fleet.folder / "failing_nodes.txt"
    passing = (fleet.folder / "passing_nodes.txt").read_text().split()
    assert ABSENT in failing.read_text().split()
    known = [name for name in failing.read_text().split() if name != ABSENT]
    assert sorted([*known, *passing]) == fleet.names
    assert known
    failing.write_text("".join(f"{name}\n" for name in known))
    ran = fleet.engine.run(
        "srun", f"-N{len(passing)}", f"--exclude={failing}", "hostname", environ={"PWD": os.fspath(fleet.folder)}
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == passing


def test_eight_hosts_of_which_seven_are_odd(eight: FleetUnderSlurm) -> None:
    check_sweep(eight)


def test_srun_leaves_out_the_failing_ones(eight: FleetUnderSlurm) -> None:
    check_exclusion(eight)


@pytest.mark.thorough
def test_sixty_four_hosts_of_which_ten_are_odd(sixty_four: FleetUnderSlurm) -> None:
    assert len(sixty_four.odd) == len(WAYS)
    check_sweep(sixty_four)


@pytest.mark.thorough
def test_srun_leaves_out_the_failing_ones_of_sixty_four(sixty_four: FleetUnderSlurm) -> None:
    check_exclusion(sixty_four)
