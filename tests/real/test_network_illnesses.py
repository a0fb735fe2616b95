"""Whole looks at hosts made of network namespaces: each illness is called by its slug, and nothing else is called ill."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.libnccl import build_speechless, real_libraries
from tests.support.namespaces import LISTENER, TWO_NODES, Host, drop_input, found, look, network

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]

JOB = {"MASTER_ADDR": "n2", **TWO_NODES}
"""Two nodes of two ranks, the store on the other one."""

ONE_NODE = {"MASTER_ADDR": "127.0.0.1", **TWO_NODES, "WORLD_SIZE": "2"}


@pytest.fixture
def first() -> Iterator[Host]:
    """The first of two hosts."""
    with network("n1", "n2") as (one, _):
        yield one


@pytest.fixture(params=[pytest.param("the rules alone", marks=pytest.mark.tool("gcc")), *real_libraries()], ids=str)
def nccl(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The setting by which a libnccl is found: one that answers nothing, and each real one that is here."""
    library = request.param if isinstance(request.param, Path) else build_speechless(tmp_path)
    return {"LD_LIBRARY_PATH": str(library.parent)}


def bridge(host: Host, name: str, address: str, index: int) -> None:
    """A bridge that is up. eth0 has index 20: with a lower one it comes before it in the kernel's order."""
    host.ip(f"link add {name} index {index} type bridge")
    host.ip(f"address add {address} dev {name}")
    host.ip(f"link set {name} up")
    # Without a port a bridge has no carrier, which NCCL minds.
    host.ip(f"link add veth{index}a type veth peer name veth{index}b")
    for end in (f"veth{index}a", f"veth{index}b"):
        host.ip(f"link set {end} addrgenmode none")
        host.ip(f"link set {end} up")
    host.ip(f"link set veth{index}a master {name}")


def sysctl(host: Host, name: str, value: str) -> None:
    host.run("sh", "-c", f"echo {value} > /proc/sys/{name}")


def taken(snapshot: Snapshot) -> str | None:
    assert isinstance(snapshot.nccl, Nccl)
    assert snapshot.nccl.library
    return snapshot.nccl.interface


def commands(snapshot: Snapshot, slug: str) -> list[str]:
    return [command for fix in found(snapshot)[slug].fixes for command in fix.commands]


def test_a_host_with_bridges_of_all_kinds_is_healthy(nccl: dict[str, str]) -> None:
    """As on many workstations: Docker's and libvirt's bridges before eth0, one of Docker Compose behind it."""
    with network("n1", "n2") as hosts:
        for host in hosts:
            bridge(host, "docker0", "172.17.0.1/16", 5)
            bridge(host, "virbr0", "192.168.122.1/24", 6)
            bridge(host, "br-5c1d0f6ab3e2", "172.18.0.1/16", 30)
            host.ip("route add default via 10.77.0.1")
            for settings in (JOB, ONE_NODE, {}, {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", **JOB}):
                snapshot = look(host, **nccl, **settings)
                assert found(snapshot) == {}
                assert taken(snapshot) == "eth0"


def test_nccl_takes_a_bridge_that_is_older_than_eth0(first: Host, nccl: dict[str, str]) -> None:
    bridge(first, "br-5c1d0f6ab3e2", "172.18.0.1/16", 5)
    snapshot = look(first, **nccl, **JOB)
    assert taken(snapshot) == "br-5c1d0f6ab3e2"
    assert set(found(snapshot)) == {"nccl-wrong-interface"}
    assert commands(snapshot, "nccl-wrong-interface") == ["export NCCL_SOCKET_IFNAME==eth0"]
    # The fix, as it stands.
    assert found(look(first, **nccl, **JOB, NCCL_SOCKET_IFNAME="=eth0")) == {}


def test_nccl_is_left_with_dockers_bridge(first: Host, nccl: dict[str, str]) -> None:
    """eth0 has lost its carrier, and so isn't there for NCCL."""
    bridge(first, "docker0", "172.17.0.1/16", 5)
    first.cut()
    snapshot = look(first, **nccl, **JOB)
    assert taken(snapshot) == "docker0"
    assert set(found(snapshot)) == {"nccl-wrong-interface"}
    assert commands(snapshot, "nccl-wrong-interface") == ["ip link show eth0"]


@pytest.mark.parametrize(
    ("value", "ill"), [("eth9", True), ("=eth", True), ("enp5s0,eno1", True), ("eth", False), ("^lo", False)]
)
def test_names_that_nccl_does_not_find(first: Host, nccl: dict[str, str], value: str, ill: bool) -> None:
    snapshot = look(first, **nccl, **JOB, NCCL_SOCKET_IFNAME=value)
    assert set(found(snapshot)) == ({"nccl-ifname-not-found"} if ill else set())
    assert taken(snapshot) == (None if ill else "eth0")
    if ill:
        assert "export NCCL_SOCKET_IFNAME==eth0" in commands(snapshot, "nccl-ifname-not-found")


def test_no_interface_but_the_loopback(first: Host, nccl: dict[str, str]) -> None:
    first.ip("link delete eth0")
    snapshot = look(first, **nccl, **{**JOB, "MASTER_ADDR": "n1"})
    assert taken(snapshot) == "lo"
    assert "nccl-no-interface" in found(snapshot)
    assert "nothing but the loopback" in found(snapshot)["nccl-no-interface"].summary
    # Ranks on this host alone can do with it.
    assert "nccl-no-interface" not in found(look(first, **nccl, **ONE_NODE))


def test_no_interface_at_all(first: Host, nccl: dict[str, str]) -> None:
    first.ip("link delete eth0")
    first.ip("link set lo down")
    snapshot = look(first, **nccl, **ONE_NODE)
    assert taken(snapshot) is None
    assert "sudo ip link set lo up" in commands(snapshot, "nccl-no-interface")
    first.ip("link set lo up")
    assert "nccl-no-interface" not in found(look(first, **nccl, **ONE_NODE))


def test_settings_that_tie_the_job_to_the_loopback(first: Host, nccl: dict[str, str]) -> None:
    tied = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    snapshot = look(first, **nccl, **JOB, **tied)
    assert set(found(snapshot)) == {"loopback-ifname"}
    assert taken(snapshot) == "lo"
    assert found(look(first, **nccl, **ONE_NODE, **tied)) == {}


@pytest.mark.parametrize("address", ["172.17.0.1", "203.0.113.7"])
def test_gloo_takes_an_address_that_is_not_the_hosts_own(first: Host, address: str) -> None:
    """Docker's bridge, and a cloud's public address, which no interface has."""
    bridge(first, "docker0", "172.17.0.1/16", 5)
    first.hosts(f"127.0.0.1 localhost\n{address} n1\n10.77.0.12 n2\n")
    snapshot = look(first, **JOB)
    assert set(found(snapshot)) == {"gloo-wrong-interface"}
    assert "export GLOO_SOCKET_IFNAME=eth0" in commands(snapshot, "gloo-wrong-interface")
    assert found(look(first, **JOB, GLOO_SOCKET_IFNAME="eth0")) == {}


def test_a_master_of_the_other_family(first: Host) -> None:
    sysctl(first, "net/ipv6/conf/all/disable_ipv6", "1")
    first.hosts("127.0.0.1 localhost\n10.77.0.11 n1\nfd00:7::12 n2\n")
    assert set(found(look(first, **JOB))) == {"ipv6-mismatch"}
    first.hosts("127.0.0.1 localhost\n10.77.0.11 n1\nfd00:7::12 n2\n10.77.0.12 n2\n")
    assert found(look(first, **JOB)) == {}


@pytest.mark.parametrize("named", [{}, {"NCCL_SOCKET_IFNAME": "eth0"}])
def test_nccl_is_told_a_family_that_is_not_here(first: Host, nccl: dict[str, str], named: dict[str, str]) -> None:
    sysctl(first, "net/ipv6/conf/all/disable_ipv6", "1")
    snapshot = look(first, **nccl, **JOB, **named, NCCL_SOCKET_FAMILY="AF_INET6")
    assert set(found(snapshot)) == {"ipv6-mismatch"}
    assert taken(snapshot) is None
    assert found(look(first, **nccl, **JOB, **named, NCCL_SOCKET_FAMILY="AF_INET")) == {}
    first.ip("link delete eth0")
    # The loopback's IPv4 address is one, too.
    assert found(look(first, **nccl, **ONE_NODE, NCCL_SOCKET_FAMILY="AF_INET")) == {}


MATCHES = """
import sys
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname
print(_matches_machine_hostname(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("own", "endpoint", "ill"),
    [
        ("127.0.1.1 n1", "10.77.0.11", True),
        ("127.0.1.1 n1", "n1", False),
        ("10.78.0.11 n1", "10.77.0.11", True),
        ("10.77.0.11 n1", "10.77.0.11", False),
        ("10.77.0.11 n1.lan n1", "n1.lan", False),
        ("10.77.0.11 n1 head", "head", False),
        ("10.78.0.11 n1\n10.77.0.11 head", "head", True),
    ],
)
def test_an_endpoint_that_torchrun_does_not_know_as_its_own(first: Host, own: str, endpoint: str, ill: bool) -> None:
    """Judged as torch's own function does."""
    first.ip("address add 10.78.0.11/24 dev eth0")
    first.hosts(f"127.0.0.1 localhost\n{own}\n10.77.0.12 n2\n")
    settings = {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"{endpoint}:29400"}
    assert ("rdzv-hostname-not-self" in found(look(first, **settings))) is ill
    assert first.run(sys.executable, "-c", MATCHES, endpoint, seconds=60).stdout == f"{not ill}\n"


def test_a_look_sends_nothing(first: Host, nccl: dict[str, str]) -> None:
    """Neither the probes nor NCCL: the names are in /etc/hosts, so not even the resolver has to ask."""
    sysctl(first, "net/ipv6/conf/all/disable_ipv6", "1")  # Or the kernel itself would look for routers.
    before = sent(first)
    assert found(look(first, **nccl, **JOB)) == {}
    assert sent(first) == before
    first.run(
        sys.executable, "-c", "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'.', ('10.77.0.12', 9))"
    )
    assert sent(first) > before


def sent(host: Host) -> int:
    """How many packets have left it by eth0, as the kernel counts them."""
    rows = host.run("cat", "/proc/net/dev").stdout.splitlines()
    return next(int(row.split()[10]) for row in rows if row.split()[0] == "eth0:")


def test_few_ephemeral_ports(first: Host) -> None:
    sysctl(first, "net/ipv4/ip_local_port_range", "40000 40031")
    assert set(found(look(first, **JOB))) == {"port-range-too-small"}
    sysctl(first, "net/ipv4/ip_local_port_range", "40000 40999")
    assert found(look(first, **JOB)) == {}


@pytest.mark.parametrize("settings", [JOB, {"PET_MASTER_ADDR": "n2", "PET_NNODES": "2"}])
def test_the_hostname_means_the_loopback(first: Host, settings: dict[str, str]) -> None:
    first.hosts("127.0.0.1 localhost\n127.0.1.1 n1\n10.77.0.12 n2\n")
    assert set(found(look(first, **settings))) == {"hostname-resolves-loopback"}
    assert found(look(first, **ONE_NODE)) == {}


def test_the_hostname_means_the_loopback_on_node_0(first: Host) -> None:
    """Its name leads to the loopback here alone, and its store listens on all addresses."""
    first.hosts("127.0.0.1 localhost\n127.0.1.1 n1\n10.77.0.12 n2\n")
    assert set(found(look(first, **{**JOB, "MASTER_ADDR": "n1"}))) == {"hostname-resolves-loopback"}


def test_the_master_is_called_localhost(first: Host) -> None:
    assert set(found(look(first, **{**JOB, "MASTER_ADDR": "localhost"}))) == {"master-addr-unreachable"}


def test_a_hostname_that_nobody_knows(first: Host) -> None:
    first.hosts("127.0.0.1 localhost\n10.77.0.12 n2\n")
    assert set(found(look(first, **JOB))) == {"hostname-unresolvable"}


@pytest.mark.parametrize("variable", ["MASTER_ADDR", "PET_MASTER_ADDR"])
def test_a_master_that_nobody_knows(first: Host, variable: str) -> None:
    finding = found(look(first, **TWO_NODES, **{variable: "nowhere.example"}))
    assert set(finding) == {"master-addr-unresolvable"}
    assert finding["master-addr-unresolvable"].summary.startswith(f"{variable} names nowhere.example")


@pytest.mark.tool("nft")
def test_a_packet_filter_by_nft(first: Host) -> None:
    drop_input(first, "iif lo accept", "tcp dport { 22, 29500 } accept", policy="drop")
    assert set(found(look(first, **JOB))) == {"local-firewall"}
    drop_input(first, "ip saddr 10.77.0.0/24 accept")
    # Rules are added to the end, behind those that accept; the policy still drops the rest.
    assert found(look(first, **JOB)) == {}


@pytest.mark.tool("iptables-nft", "iptables-save", "nft")
def test_a_packet_filter_by_iptables(first: Host) -> None:
    for rule in ("-A INPUT -i lo -j ACCEPT", "-A INPUT -p tcp --dport 22 -j ACCEPT", "-A INPUT -p tcp -j REJECT"):
        first.run("iptables-nft", *rule.split())
    snapshot = look(first, **JOB)
    assert set(found(snapshot)) == {"local-firewall"}
    (command,) = commands(snapshot, "local-firewall")
    first.run(*command.removeprefix("sudo ").replace("iptables ", "iptables-nft ").split())
    assert found(look(first, **JOB)) == {}


@pytest.mark.parametrize("variable", ["MASTER_PORT", "PET_MASTER_PORT"])
def test_a_port_in_use(first: Host, variable: str) -> None:
    holder = first.start(sys.executable, "-c", LISTENER, "::", "23456")
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "listening\n"
        process = Path(f"/proc/{holder.pid}/comm").read_text().strip()
        job = {"MASTER_ADDR": "n1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}
        finding = found(look(first, **job, **{variable: "23456"}))
        assert set(finding) == {"port-in-use"}
        said = finding["port-in-use"]
        assert said.summary == f"Port 23456 ({variable}) is taken by {process} (pid {holder.pid}, root)"
        assert found(look(first, **job, **{variable: "23457"})) == {}
        # Where the store is to be on the other host, the port here doesn't matter.
        assert found(look(first, **{**job, "MASTER_ADDR": "n2"}, **{variable: "23456"})) == {}
    finally:
        holder.kill()
        holder.wait()


AS_NOBODY = """
import os, sys
from torch.distributed import TCPStore
from ddpdoctor.probes.taken_ports import error_of_bind
os.setgid(65534); os.setuid(65534)
try:
    TCPStore("127.0.0.1", 443, 1, True)
    print("served")
except Exception as error:
    print(str(error).partition("\\n")[0])
print(os.strerror(error_of_bind(443)), error_of_bind(4430))
"""


def test_a_port_that_is_for_root(first: Host) -> None:
    """torch's own store agrees, also where the kernel lets everybody have such ports, as in Docker's containers."""
    said, ours = first.run(sys.executable, "-c", AS_NOBODY, seconds=60).stdout.splitlines()
    assert "code: -13, name: EACCES" in said
    assert ours == f"{os.strerror(13)} 0"
    sysctl(first, "net/ipv4/ip_unprivileged_port_start", "0")
    said, ours = first.run(sys.executable, "-c", AS_NOBODY, seconds=60).stdout.splitlines()
    assert said == "served"
