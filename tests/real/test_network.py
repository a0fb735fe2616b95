"""The probes of the network in hosts made of network namespaces, with the faults that they are to find."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.namespaces import LISTENER, PROBE, TWO_NODES, Host, drop_input, found, look, network

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]


def net(snapshot: Snapshot) -> Network:
    assert isinstance(snapshot.network, Network)
    return snapshot.network


def wall(snapshot: Snapshot) -> Firewall:
    assert isinstance(snapshot.firewall, Firewall)
    return snapshot.firewall


@pytest.fixture
def host() -> Iterator[Host]:
    with network("n1") as (one,):
        yield one


@pytest.fixture
def pair() -> Iterator[list[Host]]:
    with network("n1", "n2") as hosts:
        yield hosts


def test_good_hosts_are_called_good(pair: list[Host]) -> None:
    for one in pair:
        snapshot = look(one, MASTER_ADDR="n1", **TWO_NODES)
        assert found(snapshot) == {}
        assert net(snapshot).hostname == one.hostname
        assert net(snapshot).interface_to_master == "eth0"


def test_interfaces_come_in_getifaddrs_order(host: Host) -> None:
    host.ip("link add br-1 type bridge")
    host.ip("address add fd00:1::1/64 dev br-1 nodad")
    host.ip("link add late type bridge")
    host.ip("address add 10.9.0.1/24 dev late")
    host.ip("address add fd00:2::1/64 dev eth0 nodad")
    host.ip("link set br-1 up")
    host.ip("link set late up")
    raw = host.run(
        sys.executable,
        "-c",
        "from tests.support.getifaddrs import addresses\nfor name, address in addresses(): print(name, address)",
    ).stdout.split("\n")[:-1]
    # A link-local address may appear between the two looks.
    expected = [line for line in raw if "fe80" not in line]
    code = (
        "import sys\nfrom pathlib import Path\nfrom ddpdoctor.probes.context import Context\n"
        "from ddpdoctor.probes.interfaces import read_interfaces\nfrom ddpdoctor.knowledge.interface_choice import in_kernel_order\n"
        "for c in in_kernel_order(read_interfaces(Context(sys.executable))): print(c.interface.name, c.address)"
    )
    ours = host.run(sys.executable, "-c", code).stdout.split("\n")[:-1]
    assert [line for line in ours if "fe80" not in line] == expected
    assert len(expected) == 6


def test_debians_hosts_line_breaks_a_job_over_two_nodes(pair: list[Host]) -> None:
    first = pair[0]
    first.hosts("127.0.0.1 localhost n1\n127.0.1.1 n1.lan n1\n10.77.0.12 n2\n")
    finding = found(look(first, MASTER_ADDR="10.77.0.11", **TWO_NODES))["hostname-resolves-loopback"]
    assert any("127.0." in evidence.text for evidence in finding.evidence)


def test_debians_hosts_line_alone_is_no_illness(host: Host) -> None:
    host.hosts("127.0.0.1 localhost\n127.0.1.1 n1\n")
    assert found(look(host)) == {}


def test_the_fix_of_the_hosts_file_works(pair: list[Host], tmp_path: Path) -> None:
    """Its commands are run as they stand, but for sudo, on the host's own file."""
    first = pair[0]
    first.hosts("127.0.0.1 localhost n1\n127.0.1.1 n1.lan n1\n10.77.0.12 n2 n11\n")
    settings = {"MASTER_ADDR": "10.77.0.12", **TWO_NODES}
    fix = found(look(first, **settings))["hostname-resolves-loopback"].fixes[0]
    script = "\n".join(fix.commands).replace("sudo ", "")
    environ = {**os.environ, "HOME": str(tmp_path)}
    first.run("sh", "-ec", script, environ=environ)
    after = look(first, **settings)
    assert "hostname-resolves-loopback" not in found(after)
    assert isinstance(net(after).own_name, Resolution)
    assert net(after).own_name.addresses == ("10.77.0.11",)  # type: ignore[union-attr]
    assert first.run("getent", "hosts", "n11").stdout.split()[0] == "10.77.0.12"
    assert (tmp_path / "hosts.new").read_text().splitlines()[:2] == ["127.0.0.1 localhost", "10.77.0.12 n2 n11"]


def test_a_hostname_that_nobody_knows(host: Host) -> None:
    host.hosts("127.0.0.1 localhost\n")
    snapshot = look(host)
    assert "hostname-unresolvable" in found(snapshot)
    assert isinstance(snapshot.nccl, Nccl)
    assert (snapshot.nccl.gloo_interface, snapshot.nccl.gloo_address) == ("lo", "127.0.0.1")


@pytest.mark.tool("nft")
def test_a_name_server_that_does_not_answer(pair: list[Host]) -> None:
    first, second = pair
    first.etc("resolv.conf", "nameserver 10.77.0.12\noptions timeout:20 attempts:3\n")
    drop_input(second, "udp dport 53 drop")
    snapshot = look(first, MASTER_ADDR="nowhere.example", **TWO_NODES)
    master = net(snapshot).master
    assert isinstance(master, Resolution)
    assert master.error == "no answer within 3 s"
    assert "master-addr-unresolvable" in found(snapshot)


def test_no_route_to_the_master(host: Host) -> None:
    finding = found(look(host, MASTER_ADDR="10.200.0.1", **TWO_NODES))["master-addr-unreachable"]
    assert "Network is unreachable" in finding.summary


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.0.0.1"])
def test_a_taken_port_is_found_with_its_owner(host: Host, address: str) -> None:
    holder = host.start(sys.executable, "-c", LISTENER, address, "29500", "--password=hunter22")
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "listening\n"
        snapshot = look(host)
        finding = found(snapshot)["port-in-use"]
        assert f"pid {holder.pid}" in finding.summary
        assert f"kill {holder.pid}" in finding.fixes[0].commands
        assert net(snapshot).taken_ports == (29500,)
        assert "hunter22" not in str(snapshot)
        # torch's own store agrees.
        assert "code: -98, name: EADDRINUSE" in store(host, 29500)
        assert store(host, 29501) == "served"
    finally:
        holder.kill()
        holder.wait()


def store(host: Host, port: int) -> str:
    """What becomes of torch's store on that port."""
    code = (
        "import sys\nfrom torch.distributed import TCPStore\n"
        "try:\n    TCPStore('127.0.0.1', int(sys.argv[1]), 1, True); print('served')\n"
        "except Exception as error: print(error)"
    )
    return host.run(sys.executable, "-c", code, str(port), seconds=60).stdout.strip()


def test_a_connection_in_time_wait_does_not_take_the_port(host: Host) -> None:
    code = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 29500))\n"
        "client = socket.create_connection(('127.0.0.1', 29500))\npeer, _ = server.accept()\n"
        "peer.close(); client.close(); server.close()\nprint(open('/proc/net/tcp').read())"
    )
    assert re.search(r":733C \S+ 06 ", host.run(sys.executable, "-c", code).stdout)
    assert net(look(host)).taken_ports == ()
    assert store(host, 29500) == "served"


def test_rank_zero_of_this_very_job_is_no_illness(host: Host) -> None:
    environ = {**os.environ, "SLURM_JOB_ID": "77"}
    holder = host.start(sys.executable, "-c", LISTENER, "0.0.0.0", "29500", environ=environ)
    try:
        assert holder.stdout
        holder.stdout.readline()
        assert "port-in-use" not in found(look(host, SLURM_JOB_ID="77", MASTER_ADDR="n1", MASTER_PORT="29500"))
        assert "port-in-use" in found(look(host, SLURM_JOB_ID="78", MASTER_ADDR="n1", MASTER_PORT="29500"))
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.tool("nft")
@pytest.mark.parametrize(
    ("rules", "policy", "drops"),
    [
        (("ct state established,related accept", "iif lo accept", "tcp dport { 22, 29500 } accept"), "drop", True),
        (("ct state vmap { established : accept, invalid : drop }", "iifname lo accept", "reject"), "accept", True),
        (("tcp dport 32768-60999 accept",), "drop", False),
        (("tcp dport 22 drop", "udp dport 1-65535 drop"), "accept", False),
        (("tcp dport 40000-41000 reject",), "accept", True),
        (("limit rate 5/second accept",), "drop", None),
        ((), "accept", False),
    ],
)
def test_nft_rules_are_read_right(pair: list[Host], rules: tuple[str, ...], policy: str, drops: bool | None) -> None:
    drop_input(pair[0], *rules, policy=policy)
    snapshot = look(pair[0], MASTER_ADDR="n2", **TWO_NODES)
    assert wall(snapshot).drops_new is drops
    assert ("local-firewall" in found(snapshot)) is (drops is True)
    if drops is not None:
        # What the kernel does with a connection to a high port inside what the rules speak of.
        assert connects(pair[1], pair[0], 40500) is not drops


def connects(client: Host, server: Host, port: int) -> bool:
    """Whether a connection to that port comes about."""
    holder = server.start(sys.executable, "-c", LISTENER, "0.0.0.0", str(port))
    try:
        assert holder.stdout
        holder.stdout.readline()
        code = f"import socket\nsocket.create_connection(('10.77.0.11', {port}), 1)"
        return (
            subprocess.run(client.command(sys.executable, "-c", code), check=False, capture_output=True).returncode == 0
        )
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.tool("nft")
def test_the_firewall_fix_works(pair: list[Host]) -> None:
    drop_input(pair[0], "iif lo accept", "tcp dport 22 accept", policy="drop")
    snapshot = look(pair[0], MASTER_ADDR="n2", **TWO_NODES)
    assert not connects(pair[1], pair[0], 40500)
    for command in found(snapshot)["local-firewall"].fixes[0].commands:
        pair[0].run(*shlex.split(command.removeprefix("sudo ")))
    assert connects(pair[1], pair[0], 40500)
    after = look(pair[0], MASTER_ADDR="n2", **TWO_NODES)
    assert "local-firewall" not in found(after)
    assert wall(after).open_sources == ("10.77.0.0/24",)


@pytest.mark.parametrize(
    ("rules", "drops"),
    [
        (
            ("-P INPUT DROP", "-A INPUT -i lo -j ACCEPT", "-A INPUT -p tcp -m multiport --dports 22,29500 -j ACCEPT"),
            True,
        ),
        (("-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT", "-A INPUT -p tcp -j REJECT"), True),
        (("-N mine", "-P INPUT DROP", "-A INPUT -j mine", "-A mine -p tcp --dport 1024:65535 -j ACCEPT"), False),
        (("-P FORWARD DROP", "-N DOCKER", "-A FORWARD -o docker0 -j DOCKER"), False),
    ],
)
@pytest.mark.tool("iptables-nft", "iptables-save", "nft")
def test_iptables_rules_are_read_right(pair: list[Host], rules: tuple[str, ...], drops: bool) -> None:
    for rule in rules:
        pair[0].run("iptables-nft", *rule.split())
    snapshot = look(pair[0], MASTER_ADDR="n2", **TWO_NODES)
    assert wall(snapshot).drops_new is drops
    assert connects(pair[1], pair[0], 40500) is not drops


def test_somebody_else_may_not_read_the_rules(host: Host) -> None:
    code = "import os, sys; os.setuid(65534)\n" + PROBE
    # Another user may not import from everywhere; what counts is that the probe, once loaded, says so.
    code = "import ddpdoctor.probes.firewall, ddpdoctor.probes.runner, ddpdoctor.probes.context\n" + code
    done = host.run(sys.executable, "-c", code, "firewall")
    snapshot = msgspec.json.decode(done.stdout, type=Snapshot)
    assert "needs root" in str(wall(snapshot).drops_new)


def test_nothing_but_the_loopback(host: Host) -> None:
    host.ip("link delete eth0")
    snapshot = look(host, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    assert isinstance(snapshot.nccl, Nccl)
    assert snapshot.nccl.interface == "lo"
    assert net(snapshot).default_interface is None


def test_missing_gloo_interface(host: Host) -> None:
    finding = found(look(host, GLOO_SOCKET_IFNAME="eth9"))["gloo-ifname-not-found"]
    assert "export GLOO_SOCKET_IFNAME=eth0" in finding.fixes[0].commands


def test_a_hostname_on_a_bridge(pair: list[Host]) -> None:
    first = pair[0]
    first.ip("link add docker0 type bridge")
    first.ip("address add 172.17.0.1/16 dev docker0")
    first.ip("link set docker0 up")
    first.hosts("127.0.0.1 localhost\n172.17.0.1 n1\n10.77.0.12 n2\n")
    assert "gloo-wrong-interface" in found(look(first, MASTER_ADDR="n2", **TWO_NODES))
    assert "gloo-wrong-interface" not in found(look(first, MASTER_ADDR="n2", GLOO_SOCKET_IFNAME="eth0", **TWO_NODES))
