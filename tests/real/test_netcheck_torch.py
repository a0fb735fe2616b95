"""netcheck with the real torch on two hosts: the job's own store and port, gloo, and what it names before gloo would hang."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, NAMED_WITHIN, Ran, netcheck, start
from tests.support.pythons import bare_venv, fake_torch

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]

DEADLINE = 60
"""Seconds for a whole run, with the real torch where it comes so far."""


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Host]]:
    with network("n1", "n2") as hosts:
        yield hosts


def phases(ran: Ran) -> dict[str, str]:
    return {phase["name"]: phase["passed"] for phase in ran.report["phases"]}


def reasons(ran: Ran) -> dict[str, str]:
    return {phase["name"]: phase["reason"] for phase in ran.report["phases"]}


def named(first: Ran, second: Ran, slug: str, node: str) -> None:
    """That one finding and no other, on that node, on both hosts, in time."""
    assert first.code == second.code == 1
    assert first.slugs == {slug}, first.stdout
    assert first.nodes(slug) == [node]
    assert second.slugs == ({slug} if node == second.host else set())
    assert first.report["seconds"] < NAMED_WITHIN


WATCH = """
import sys, time
wanted = ":%04X " % int(sys.argv[1])
until = time.monotonic() + 60
while time.monotonic() < until:
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        for line in open(table).readlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and (columns[1] + " ").endswith(wanted):
                print(columns[1].partition(":")[0], flush=True)
    time.sleep(0.01)
"""
"""Prints the local address of whatever listens on that port, a hundred times a second."""


def test_good_hosts_pass_all_phases_with_the_store_on_the_real_port(pair: list[Host]) -> None:
    watch = pair[0].start(sys.executable, "-c", WATCH, "29511")
    try:
        first, second = netcheck(pair, "--full", "--master-port", "29511", seconds=DEADLINE)
    finally:
        watch.kill()
        listened = set(watch.communicate()[0].split())
    assert (first.code, second.code) == (0, 0), first.stdout + first.stderr
    assert first.slugs == second.slugs == set()
    assert phases(first) == {
        **dict.fromkeys(("join", "compare", "reach", "links", "gloo"), "pass"),
        "nccl": "not tested",
    }
    assert "collective-failed" in first.report["passed"]
    # Our hub listens on the master's own address alone; torch's store on all, of both families.
    assert listened == {"0B004D0A", "0" * 32}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without torch."""
    return bare_venv(tmp_path_factory.mktemp("bare") / "env")


def test_without_torch_on_any_node_the_rest_is_tested(pair: list[Host], bare: str) -> None:
    first, second = netcheck(pair, "--full", "--python", bare, seconds=DEADLINE)
    assert (first.code, second.code) == (0, 0), first.stdout + first.stderr
    assert first.slugs == second.slugs == set()
    assert phases(first) == {
        **dict.fromkeys(("join", "compare", "reach", "links"), "pass"),
        **dict.fromkeys(("gloo", "nccl"), "not tested"),
    }
    assert reasons(first)["gloo"] == "torch is not installed"
    assert "torch-version-mismatch" not in first.report["passed"]


def test_without_torch_on_one_node_it_is_named_and_the_rest_is_tested(pair: list[Host], bare: str) -> None:
    common = ("--json", "--master-addr", MASTER, "--nnodes", "2", "--wait", "10")
    running = [
        start(pair[0], *common, "--node-rank", "0"),
        start(pair[1], *common, "--node-rank", "1", "--python", bare),
    ]
    first, second = (one.end(DEADLINE) for one in running)
    named(first, second, "torch-version-mismatch", "n2")
    summary = first.findings("torch-version-mismatch")[0]["summary"]
    assert summary.startswith("n2 has no torch in the Python that was looked at; n1 has ")
    assert phases(first) == {
        **dict.fromkeys(("join", "reach", "links"), "pass"),
        "compare": "fail",
        **dict.fromkeys(("gloo", "nccl"), "not tested"),
    }
    assert reasons(first)["gloo"] == "torch is not installed on n2"


@pytest.mark.parametrize(("name", "slug"), [("lo", "loopback-ifname"), ("eth9", "gloo-ifname-not-found")])
def test_a_wrong_interface_is_named_before_gloo_would_hang(pair: list[Host], name: str, slug: str) -> None:
    first, second = netcheck(pair, "--full", each={"n2": {"GLOO_SOCKET_IFNAME": name}}, seconds=DEADLINE)
    named(first, second, slug, "n2")
    assert phases(first)["gloo"] == "not tested"


def test_a_hostname_that_is_loopback_is_named(pair: list[Host]) -> None:
    pair[1].hosts("127.0.0.1 localhost\n127.0.1.1 n2\n10.77.0.11 n1\n")
    try:
        first, second = netcheck(pair, "--full", seconds=DEADLINE)
    finally:
        pair[1].hosts("127.0.0.1 localhost\n10.77.0.11 n1\n10.77.0.12 n2\n")
    named(first, second, "hostname-resolves-loopback", "n2")
    assert phases(first)["gloo"] == "not tested"


def test_a_setting_by_which_gloo_would_hang_is_named_before_it_does(pair: list[Host]) -> None:
    setting = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    first, second = netcheck(pair, "--full", each={"n2": setting}, seconds=DEADLINE)
    named(first, second, "env-not-propagated", "n2")
    assert reasons(first)["gloo"] == "n2 differs from the others in TORCH_DISTRIBUTED_DEBUG, and gloo would hang"


CRASH = """
import os, sys
sys.path[:] = [one for one in sys.path if one != os.environ["FAKE"]]
del sys.modules["torch"]
import torch
import torch.distributed
def init_process_group(*arguments, **options):
    os.kill(os.getpid(), 9)
torch.distributed.init_process_group = init_process_group
"""
"""The real torch, but for one function."""


def test_the_node_whose_rank_dies_is_named(pair: list[Host], tmp_path: Path) -> None:
    folder = fake_torch(tmp_path, CRASH, "2.13.0+cpu")
    root = str(Path(__file__).parent.parent.parent)
    settings = {"PYTHONPATH": f"{folder}:{root}", "FAKE": str(folder)}
    first, second = netcheck(pair, "--full", each={"n2": settings}, seconds=2 * DEADLINE)
    assert first.code == second.code == 1
    assert first.slugs == {"collective-failed"}, first.stdout
    assert first.nodes("collective-failed") == ["n2"]
    assert "ended by SIGKILL" in first.findings("collective-failed")[0]["summary"]
    assert phases(first)["gloo"] == "fail"
    # The other rank doesn't wait for it until the end of its time.
    assert first.seconds < 40


def test_a_store_that_another_release_cannot_use_is_not_waited_for(pair: list[Host], tmp_path: Path) -> None:
    folder = fake_torch(tmp_path, "", "2.4.1+cpu")
    root = str(Path(__file__).parent.parent.parent)
    first, second = netcheck(pair, "--full", each={"n1": {"PYTHONPATH": f"{folder}:{root}"}}, seconds=DEADLINE)
    named(first, second, "torch-version-mismatch", "n2")
    assert phases(first)["gloo"] == "not tested"
    assert reasons(first)["gloo"].startswith("torch 2.13.0")
    assert reasons(first)["gloo"].endswith("can't use the store of torch 2.4.1+cpu")
