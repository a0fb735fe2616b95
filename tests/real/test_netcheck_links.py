"""Links between real hosts that are slow, lossy, or too narrow for the packets that are sent through them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.namespaces import Host, drop_input, network
from tests.real.netcheck_hosts import Ran, carry_out, netcheck, sudo_shim

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft", "tc")]

LIMITED = "qdisc add dev eth0 root tbf rate 2mbit burst 32kbit latency 400ms"
NAMED_WITHIN = 15.0
"""Seconds from the last join: any single fault. Joining takes its time as well, where packets are lost."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with network("n1", "n2", "n3") as three:
        yield three


@pytest.fixture(autouse=True)
def _mended(hosts: list[Host]) -> Iterator[None]:
    """Every test finds the hosts as they were made."""
    yield
    for host in hosts:
        mtu(host, 1500)
        jumbo_port(host, 1500)
        host.run("sh", "-c", "tc qdisc del dev eth0 root 2>/dev/null; nft flush ruleset")
        host.run("sysctl", "-qw", "net.ipv4.tcp_mtu_probing=0")


@pytest.fixture
def sudo(tmp_path: Path) -> Path:
    return sudo_shim(tmp_path)


def mtu(host: Host, size: int) -> None:
    """Every packet goes out by itself: a veth hands bundles of them on whole, whatever the next interface takes."""
    host.ip(f"link set eth0 mtu {size} gso_max_segs {1 if size > 1500 else 65535}")


def jumbo_port(host: Host, size: int = 9000) -> None:
    """Sets what the switch's port takes; it drops longer frames without a word."""
    assert host.cable
    switch, port = host.cable
    switch.ip(f"link set {port} mtu {size}")


def fix(ran: list[Ran], slug: str, number: int = 0) -> list[str]:
    """The commands of one of the fixes that were printed for the only finding of that slug."""
    (found,) = ran[0].findings(slug)
    commands: list[str] = found["fixes"][number]["commands"]
    return commands


def test_healthy_hosts(hosts: list[Host]) -> None:
    for one in netcheck(hosts):
        assert (one.code, one.slugs) == (0, set()), one.report["findings"]


def test_a_switch_that_takes_less(hosts: list[Host], sudo: Path) -> None:
    two = hosts[:2]
    for host in two:
        mtu(host, 9000)
    ran = netcheck(two)
    for one in ran:
        assert one.code == 1
        assert one.seconds < NAMED_WITHIN
    assert ran[0].slugs == {"mtu-mismatch"}
    (finding,) = ran[0].findings("mtu-mismatch")
    assert finding["severity"] == "fail"
    assert "between n1 and n2" in finding["summary"]
    assert {"MTU of eth0 of n1: 9000", "MTU of eth0 of n2: 9000"} <= {one["text"] for one in finding["evidence"]}
    stopgap = finding["fixes"][-1]["commands"]
    for host in two:
        carry_out(host, stopgap, sudo)
    assert [one.code for one in netcheck(two)] == [0, 0]
    for host in two:
        host.run("sysctl", "-qw", "net.ipv4.tcp_mtu_probing=0")
        carry_out(host, fix(ran, "mtu-mismatch"), sudo)
    assert [(one.code, one.slugs) for one in netcheck(two)] == [(0, set())] * 2


def test_one_port_that_takes_less(hosts: list[Host], sudo: Path) -> None:
    for host in hosts:
        mtu(host, 9000)
    for host in hosts[:2]:
        jumbo_port(host)
    ran = netcheck(hosts)
    assert [one.code for one in ran] == [1, 1, 1]
    assert ran[0].slugs == {"mtu-mismatch"}
    assert ran[0].nodes("mtu-mismatch") == ["n3"]
    assert "n3 (2 of 2 peers)" in ran[0].findings("mtu-mismatch")[0]["summary"]
    carry_out(hosts[2], fix(ran, "mtu-mismatch"), sudo)
    again = netcheck(hosts)
    # All passes, and it is said that n3 is now the odd one.
    assert [one.code for one in again] == [0, 0, 0]
    assert again[0].nodes("mtu-mismatch") == ["n3"]


def test_mtus_that_differ(hosts: list[Host], sudo: Path) -> None:
    jumbo_port(hosts[1])
    hosts[1].ip("link set eth0 mtu 9000")
    ran = netcheck(hosts)
    assert [one.code for one in ran] == [0, 0, 0]
    assert ran[0].slugs == {"mtu-mismatch"}
    assert ran[0].nodes("mtu-mismatch") == ["n2"]
    carry_out(hosts[1], fix(ran, "mtu-mismatch"), sudo)
    assert netcheck(hosts)[0].slugs == set()


def test_a_slow_link(hosts: list[Host], sudo: Path) -> None:
    two = hosts[:2]
    two[1].run("tc", *LIMITED.split())
    ran = netcheck(two)
    assert [one.code for one in ran] == [1, 1]
    assert ran[0].slugs == {"slow-link"}
    assert ran[0].nodes("slow-link") == ["n2"]
    assert "Mbit/s from n2 to n1" in ran[0].findings("slow-link")[0]["summary"]
    carry_out(two[1], fix(ran, "slow-link"), sudo)
    assert [(one.code, one.slugs) for one in netcheck(two)] == [(0, set())] * 2


def test_a_straggler(hosts: list[Host], sudo: Path) -> None:
    hosts[2].run("tc", *LIMITED.split())
    ran = netcheck(hosts)
    assert [one.code for one in ran] == [1, 1, 1]
    assert max(one.seconds for one in ran) < NAMED_WITHIN
    assert ran[0].slugs == {"straggler-node"}
    assert ran[0].nodes("straggler-node") == ["n3"]
    carry_out(hosts[2], fix(ran, "straggler-node"), sudo)
    assert [(one.code, one.slugs) for one in netcheck(hosts)] == [(0, set())] * 3


def test_a_node_that_loses_packets(hosts: list[Host]) -> None:
    drop_input(hosts[2], "numgen random mod 100 < 30 drop")
    ran = netcheck(hosts, "--wait", "20")
    assert [one.code for one in ran] == [1, 1, 1]
    phases = {one["name"]: one["seconds"] for one in ran[0].report["phases"]}
    assert phases["reach"] + phases["links"] < NAMED_WITHIN
    assert ran[0].slugs == {"slow-link"}
    assert ran[0].nodes("slow-link") == ["n3"]
    (finding,) = ran[0].findings("slow-link")
    assert "of the segments had to be sent again" in finding["summary"] or "could not be measured" in finding["summary"]


def test_a_node_that_loses_packets_among_eight() -> None:
    """Its measurements take long, and there are many of them: two of its links are enough."""
    with network(*(f"n{number}" for number in range(1, 9))) as eight:
        drop_input(eight[7], "numgen random mod 100 < 30 drop")
        ran = netcheck(eight, "--wait", "30")
    assert [one.code for one in ran] == [1] * 8
    assert ran[0].slugs == {"slow-link"}
    assert ran[0].nodes("slow-link") == ["n8"]
    assert ran[0].report["seconds"] <= NAMED_WITHIN
