"""Hosts whose gloo or NCCL would offer the others a wrong address: `netcheck` finds the one cause on the one host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.test_network_illnesses import bridge
from tests.support.libnccl import build_speechless
from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, NAMED_WITHIN, Ran, mend, netcheck, start, sudo_shim
from tests.support.pythons import stand_in

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Both have the bridge of a Docker network, with the same address, before eth0 in the kernel's order."""
    with network("n0", "n1") as made:
        for one in made:
            bridge(one, "br-5c1d0f6ab3e2", "172.18.0.1/16", 5)
        yield made


@pytest.fixture
def nccl(tmp_path: Path) -> dict[str, str]:
    """A libnccl whose answer is left to its rules."""
    return {"LD_LIBRARY_PATH": str(build_speechless(tmp_path).parent)}


GOOD = {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}


@pytest.fixture
def sudo(tmp_path: Path) -> Path:
    return sudo_shim(tmp_path)


@pytest.mark.tool("gcc")
@pytest.mark.parametrize(
    ("settings", "slug"),
    [
        ({"NCCL_SOCKET_IFNAME": "br-5c1d0f6ab3e2"}, "nccl-wrong-interface"),
        ({"NCCL_SOCKET_IFNAME": "eth9"}, "nccl-ifname-not-found"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "loopback-ifname"),
        ({"GLOO_SOCKET_IFNAME": "br-5c1d0f6ab3e2"}, "gloo-wrong-interface"),
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "gloo-ifname-not-found"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, "loopback-ifname"),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_setting_on_one_host(
    hosts: list[Host], nccl: dict[str, str], sudo: Path, settings: dict[str, str], slug: str, at: int
) -> None:
    host = hosts[at].hostname
    each = {host.hostname: nccl | GOOD | (settings if host is hosts[at] else {}) for host in hosts}
    # Another setting than the other host's is a finding of its own.
    ran = netcheck(hosts, each=each)
    assert ran[0].slugs - {"env-not-propagated"} == {slug}
    assert ran[0].nodes(slug) == [host]
    (value,) = settings.values()
    assert value in ran[0].findings(slug)[0]["summary"]
    assert {run.code for run in ran} == {1}
    assert ran[0].report["seconds"] < NAMED_WITHIN
    assert_healthy(netcheck(hosts, each=mend(ran[0], slug, hosts, sudo, each)))


@pytest.mark.tool("gcc")
def test_nccl_takes_a_bridge_on_both(hosts: list[Host], nccl: dict[str, str], sudo: Path) -> None:
    """Nobody has set anything; the bridges come first."""
    each = {host.hostname: nccl for host in hosts}
    ran = netcheck(hosts, each=each)
    assert (ran[0].slugs, ran[0].nodes("nccl-wrong-interface")) == ({"nccl-wrong-interface"}, ["n0", "n1"])
    (summary,) = {finding["summary"] for finding in ran[1].findings("nccl-wrong-interface")}
    assert summary.startswith(
        "NCCL takes br-5c1d0f6ab3e2: its only peer doesn't reach 172.18.0.1, it reaches 10.77.0.12"
    )
    assert ran[0].report["seconds"] < NAMED_WITHIN
    assert_healthy(netcheck(hosts, each=mend(ran[0], "nccl-wrong-interface", hosts, sudo, each)))


@pytest.mark.tool("gcc")
def test_nccl_is_told_to_take_docker0_on_both(hosts: list[Host], nccl: dict[str, str], sudo: Path) -> None:
    """As a setting that was copied from a single machine does; both have the same address there."""
    for one in hosts:
        bridge(one, "docker0", "172.17.0.1/16", 6)
    try:
        each = {host.hostname: nccl | {"NCCL_SOCKET_IFNAME": "docker0"} for host in hosts}
        ran = netcheck(hosts, each=each)
        slug = "nccl-wrong-interface"
        assert (ran[0].slugs, ran[0].nodes(slug)) == ({slug}, ["n0", "n1"])
        assert "docker0: its only peer doesn't reach 172.17.0.1" in ran[0].findings(slug)[0]["summary"]
        assert {run.code for run in ran} == {1}
        assert ran[0].report["seconds"] < NAMED_WITHIN
        assert_healthy(netcheck(hosts, each=mend(ran[0], slug, hosts, sudo, each)))
    finally:
        for one in hosts:
            one.ip("link delete docker0")


def test_without_nccl_a_bridge_does_no_harm(hosts: list[Host]) -> None:
    """Every CPU node with Docker on it has one: nothing fails there, not even with --strict."""
    ran = netcheck(hosts, "--strict")
    assert {finding["severity"] for finding in ran[0].findings("nccl-wrong-interface")} == {"info"}
    assert_healthy(ran)


def test_where_nobody_can_say_whether_there_is_an_nccl_it_is_a_warning(hosts: list[Host], tmp_path: Path) -> None:
    """On a host whose Python can't be asked, and which is said not to have been compared."""
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin", "exit 3")
    shared = ("--json", "--quick", "--master-addr", MASTER, "--nnodes", "2", "--wait", "10")
    running = [
        start(hosts[0], *shared, "--node-rank", "0"),
        start(hosts[1], *shared, "--node-rank", "1", environ={"VIRTUAL_ENV": str(tmp_path)}),
    ]
    first, second = (one.end() for one in running)
    assert (first.code, second.code) == (0, 0)
    found = {finding["node"]: finding["severity"] for finding in first.findings("nccl-wrong-interface")}
    assert found == {"n0": "info", "n1": "warn"}
    compare = next(phase for phase in first.report["phases"] if phase["name"] == "compare")
    assert compare["passed"] == "not tested"
    assert compare["reason"].startswith("torch and Python of n1: the target Python can't be asked: ")
    assert "ended with exit code 3; settings and clocks were compared" in compare["reason"]
    assert "torch-version-mismatch" not in first.report["passed"]


@pytest.mark.parametrize("at", [0, 1])
def test_a_hostname_that_means_the_loopback(hosts: list[Host], sudo: Path, at: int) -> None:
    host = hosts[at]
    each = {host.hostname: {"NCCL_SOCKET_IFNAME": "=eth0"} for host in hosts}
    named = "127.0.0.1 localhost\n10.77.0.11 n0\n10.77.0.12 n1\n"
    try:
        other = {0: "10.77.0.12 n1", 1: "10.77.0.11 n0"}[at]
        host.hosts(f"127.0.0.1 localhost\n127.0.1.1 {host.hostname}\n{other}\n")
        ran = netcheck(hosts, each=each)
        slug = "hostname-resolves-loopback"
        assert (ran[0].slugs, ran[0].nodes(slug)) == ({slug}, [host.hostname])
        assert ran[0].report["seconds"] < NAMED_WITHIN
        assert_healthy(netcheck(hosts, each=mend(ran[0], slug, hosts, sudo, each)))
    finally:
        host.hosts(named)


def assert_healthy(all_ran: list[Ran]) -> None:
    assert [(run.code, run.slugs) for run in all_ran] == [(0, set())] * len(all_ran), all_ran[0].report["findings"]
