"""Links between real hosts that are slow, lossy, or too narrow for the packets that are sent through them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import Host, drop_input, network
from tests.support.netcheck_hosts import NAMED_WITHIN, Ran, carry_out, mend, netcheck, sudo_shim

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft", "tc")]

LIMITED = "qdisc add dev eth0 root tbf rate 2mbit burst 32kbit latency 400ms"

AT_400 = "qdisc add dev eth0 root tbf rate 400mbit burst 32kb latency 50ms"


@pytest.fixture(scope="module")
def eight() -> Iterator[list[Host]]:
    with network(*(f"n{number}" for number in range(1, 9))) as made:
        yield made


@pytest.fixture(scope="module")
def hosts(eight: list[Host]) -> list[Host]:
    return eight[:3]


@pytest.fixture(autouse=True)
def _mended(eight: list[Host]) -> Iterator[None]:
    """Every test finds the hosts as they were made."""
    yield
    for host in eight:
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


def assert_named(ran: list[Ran], slug: str, node: str, words: str, severity: str = "fail") -> None:
    """That one finding and no other, on that node, in time."""
    assert ran[0].slugs == {slug}, ran[0].report["findings"]
    assert ran[0].nodes(slug) == [node]
    (finding,) = ran[0].findings(slug)
    assert words in finding["summary"]
    assert finding["severity"] == severity
    assert {run.code for run in ran} == {1 if severity == "fail" else 0}
    assert ran[0].report["seconds"] < NAMED_WITHIN


def assert_healthy(ran: list[Ran]) -> None:
    assert [(run.code, run.slugs) for run in ran] == [(0, set())] * len(ran), ran[0].report["findings"]


def test_a_switch_that_takes_less(hosts: list[Host], sudo: Path) -> None:
    two = hosts[:2]
    for host in two:
        mtu(host, 9000)
    ran = netcheck(two)
    assert_named(ran, "mtu-mismatch", "n1", "between n1 and n2")
    (finding,) = ran[0].findings("mtu-mismatch")
    assert {"MTU of eth0 of n1: 9000", "MTU of eth0 of n2: 9000"} <= {
        evidence["text"] for evidence in finding["evidence"]
    }
    stopgap = finding["fixes"][-1]["commands"]
    for host in two:
        carry_out(host, stopgap, sudo)
    assert [one.code for one in netcheck(two)] == [0, 0]
    for host in two:
        host.run("sysctl", "-qw", "net.ipv4.tcp_mtu_probing=0")
    mend(ran[0], "mtu-mismatch", two, sudo)
    assert_healthy(netcheck(two))


def test_a_filter_that_drops_long_packets(hosts: list[Host], sudo: Path) -> None:
    """In one direction alone, and that direction is said."""
    two = hosts[:2]
    for host in two:
        # Else the filter sees bundles of packets, which a veth hands on whole.
        host.ip("link set eth0 gso_max_segs 1")
    drop_input(two[0], "ip length > 1400 drop")
    ran = netcheck(two)
    assert_named(ran, "mtu-mismatch", "n1", "between n1 and n2")
    evidence = [evidence["text"] for evidence in ran[0].findings("mtu-mismatch")[0]["evidence"]]
    assert "64 KiB never arrived: n2 to n1" in evidence
    mend(ran[0], "mtu-mismatch", two, sudo)
    assert_healthy(netcheck(two))


def test_one_port_that_takes_less(hosts: list[Host], sudo: Path) -> None:
    for host in hosts:
        mtu(host, 9000)
    for host in hosts[:2]:
        jumbo_port(host)
    ran = netcheck(hosts)
    assert_named(ran, "mtu-mismatch", "n3", "n3 (2 of 2 peers)")
    mend(ran[0], "mtu-mismatch", hosts, sudo)
    again = netcheck(hosts)
    # All passes, and it is said that n3 is now the odd one.
    assert [one.code for one in again] == [0, 0, 0]
    assert again[0].nodes("mtu-mismatch") == ["n3"]


def test_mtus_that_differ(hosts: list[Host], sudo: Path) -> None:
    jumbo_port(hosts[1])
    hosts[1].ip("link set eth0 mtu 9000")
    ran = netcheck(hosts)
    assert_named(ran, "mtu-mismatch", "n2", "n2 sends packets of up to 9000 bytes", "warn")
    mend(ran[0], "mtu-mismatch", hosts, sudo)
    assert_healthy(netcheck(hosts))


def test_a_slow_link(hosts: list[Host], sudo: Path) -> None:
    two = hosts[:2]
    two[1].run("tc", *LIMITED.split())
    ran = netcheck(two)
    assert_named(ran, "slow-link", "n2", "Mbit/s from n2 to n1")
    mend(ran[0], "slow-link", two, sudo)
    assert_healthy(netcheck(two))


@pytest.mark.parametrize("number", [3, pytest.param(8, marks=pytest.mark.thorough)])
def test_a_straggler(eight: list[Host], sudo: Path, number: int) -> None:
    some = eight[:number]
    some[2].run("tc", *LIMITED.split())
    ran = netcheck(some)
    assert_named(ran, "straggler-node", "n3", "n3 is a straggler")
    mend(ran[0], "straggler-node", some, sudo)
    assert_healthy(netcheck(some))


@pytest.mark.thorough
def test_less_than_half_of_what_the_others_do(hosts: list[Host], sudo: Path) -> None:
    """Where all are limited alike it is no node's; one with less is named although its rate would do for itself."""
    for host in hosts:
        host.run("tc", *AT_400.split())
    assert_healthy(netcheck(hosts))
    hosts[2].run("tc", *AT_400.replace("add", "replace").replace("400mbit", "150mbit").split())
    ran = netcheck(hosts)
    assert_named(ran, "straggler-node", "n3", "n3 is a straggler: 1", "warn")
    mend(ran[0], "straggler-node", hosts, sudo)
    assert_healthy(netcheck(hosts))


@pytest.mark.parametrize(
    ("number", "within"), [(3, NAMED_WITHIN), pytest.param(8, NAMED_WITHIN + 5, marks=pytest.mark.thorough)]
)
def test_a_node_that_loses_packets(eight: list[Host], number: int, within: float) -> None:
    """As a bad cable does, which no command mends. Where the time is up before the segments that were sent again could be
    asked for, there is the rate to go by. Eight hosts beside other tests take longer than alone."""
    some = eight[:number]
    drop_input(some[2], "numgen random mod 100 < 30 drop")
    # Joining takes its time as well.
    ran = netcheck(some, "--wait", "20")
    (finding,) = ran[0].report["findings"]
    assert finding["slug"] in ("slow-link", "straggler-node")
    # Where the rounds took so long that it met one peer only, it is one of that link's two ends.
    assert "n3 " in finding["summary"], finding
    assert finding["severity"] == "fail"
    assert ran[0].report["seconds"] < within
