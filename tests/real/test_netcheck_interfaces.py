"""Hosts whose gloo or NCCL would offer the others a wrong address: `netcheck` finds the one cause on the one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.real.libnccl import build_speechless
from tests.real.namespaces import Host, network
from tests.real.netcheck_hosts import Ran, netcheck
from tests.real.test_network_illnesses import bridge

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


def exported(ran: Ran, slug: str) -> dict[str, str]:
    """The settings that its fixes export."""
    lines = [one.removeprefix("export ") for one in ran.commands(slug) if one.startswith("export ")]
    return {name: value for name, _, value in (one.partition("=") for one in lines)}


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
    hosts: list[Host], nccl: dict[str, str], settings: dict[str, str], slug: str, at: int
) -> None:
    host = hosts[at].hostname
    everywhere = nccl | GOOD
    # Another setting than the other host's is a finding of its own.
    ran = netcheck(hosts, environ=everywhere, each={host: settings})
    assert ran[0].slugs - {"env-not-propagated"} == {slug}
    assert ran[0].nodes(slug) == [host]
    assert {one.code for one in ran} == {1}
    assert_mended(hosts, everywhere, {host: settings | exported(ran[0], slug)})


@pytest.mark.tool("gcc")
def test_nccl_takes_a_bridge_on_both(hosts: list[Host], nccl: dict[str, str]) -> None:
    """Nobody has set anything; the bridges come first."""
    ran = netcheck(hosts, environ=nccl)
    assert (ran[0].slugs, ran[0].nodes("nccl-wrong-interface")) == ({"nccl-wrong-interface"}, ["n0", "n1"])
    (summary,) = {one["summary"] for one in ran[1].findings("nccl-wrong-interface")}
    assert summary.startswith(
        "NCCL takes br-5c1d0f6ab3e2: its only peer doesn't reach 172.18.0.1, it reaches 10.77.0.12"
    )
    assert_mended(hosts, nccl | exported(ran[0], "nccl-wrong-interface"), {})


def test_without_nccl_it_is_a_warning(hosts: list[Host]) -> None:
    ran = netcheck(hosts)
    assert {one["severity"] for one in ran[0].findings("nccl-wrong-interface")} == {"warn"}
    assert {one.code for one in ran} == {0}


@pytest.mark.parametrize("at", [0, 1])
def test_a_hostname_that_means_the_loopback(hosts: list[Host], at: int) -> None:
    host = hosts[at]
    environ = {"NCCL_SOCKET_IFNAME": "=eth0"}
    named = "127.0.0.1 localhost\n10.77.0.11 n0\n10.77.0.12 n1\n"
    try:
        other = {0: "10.77.0.12 n1", 1: "10.77.0.11 n0"}[at]
        host.hosts(f"127.0.0.1 localhost\n127.0.1.1 {host.hostname}\n{other}\n")
        ran = netcheck(hosts, environ=environ)
        slug = "hostname-resolves-loopback"
        assert (ran[0].slugs, ran[0].nodes(slug)) == ({slug}, [host.hostname])
        assert_mended(hosts, environ | exported(ran[0], slug), {})
    finally:
        host.hosts(named)


def assert_mended(hosts: list[Host], environ: Mapping[str, str], each: Mapping[str, Mapping[str, str]]) -> None:
    ran = netcheck(hosts, environ=environ, each=each)
    assert ran[0].slugs == set()
    assert {one.code for one in ran} == {0}
