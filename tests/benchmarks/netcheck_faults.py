"""Faults of a network of two hosts, n1 and n2, that `ddpdoctor netcheck` is to name."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from tests.support.command import ROOT
from tests.support.namespaces import Host, drop_input
from tests.support.pythons import fake_torch

PORT = 29500
Settings = Mapping[str, Mapping[str, str]]
"""By hostname."""
Lay = Callable[[list[Host]], AbstractContextManager[Settings]]

NEW = f"tcp dport != {PORT} ct state new"
"""Connections to all ports but the job's."""

FIVE_TIMES = "150 min (5 x 30 min)"
ONCE = "30 min"
AT_ONCE = "the same"
NEVER = "never"


def filtered(rule: str, *numbers: int) -> Lay:
    @contextmanager
    def lay(hosts: list[Host]) -> Iterator[Settings]:
        for number in numbers:
            drop_input(hosts[number], rule)
        yield {}

    return lay


def setting(**chosen: str) -> Lay:
    @contextmanager
    def lay(hosts: list[Host]) -> Iterator[Settings]:
        yield {"n2": chosen}

    return lay


@contextmanager
def nothing(hosts: list[Host]) -> Iterator[Settings]:
    yield {}


@contextmanager
def outbound_dropped(hosts: list[Host]) -> Iterator[Settings]:
    text = f"table inet filter {{ chain output {{ type filter hook output priority 0;\n{NEW} drop\n}}\n}}\n"
    hosts[1].run("sh", "-ec", f"printf %s {shlex.quote(text)} | nft -f -")
    yield {}


@contextmanager
def hostname_is_loopback(hosts: list[Host]) -> Iterator[Settings]:
    """As Debian writes it. On 192.168.x: on 10.x it is masked, since the side with the larger address dials."""
    for number, host in enumerate(hosts, 1):
        host.ip("address flush dev eth0")
        host.ip(f"address add 192.168.77.{10 + number}/24 dev eth0")
        host.hosts("127.0.0.1 localhost\n192.168.77.11 n1\n192.168.77.12 n2\n")
    hosts[1].hosts("127.0.0.1 localhost\n192.168.77.11 n1\n127.0.1.1 n2\n")
    yield {}


@contextmanager
def slow(hosts: list[Host]) -> Iterator[Settings]:
    hosts[1].run("sh", "-c", "tc qdisc add dev eth0 root tbf rate 2mbit burst 16kb latency 400ms")
    yield {}


@contextmanager
def ipv6_on_one_side(hosts: list[Host]) -> Iterator[Settings]:
    hosts[0].ip("address add fd77::11/64 dev eth0 nodad")
    hosts[1].run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    yield {}


@contextmanager
def another_torch(hosts: list[Host]) -> Iterator[Settings]:
    """What says of itself that it is another release."""
    with tempfile.TemporaryDirectory() as folder:
        fake_torch(Path(folder), "", "2.4.1+cpu")
        yield {"n2": {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}}


HTTP = f"import http.server as h; h.SimpleHTTPRequestHandler.log_message = lambda *_: None; h.HTTPServer(('', {PORT}), h.SimpleHTTPRequestHandler).serve_forever()"
LISTENS = f"for i in $(seq 200); do ss -ltn | grep -q :{PORT} && exit 0; sleep 0.05; done; exit 1"


@contextmanager
def squatted(hosts: list[Host]) -> Iterator[Settings]:
    server = hosts[0].start(sys.executable, "-c", HTTP)
    try:
        hosts[0].run("sh", "-c", LISTENS)
        yield {}
    finally:
        server.kill()
        server.communicate()


class Named(msgspec.Struct, frozen=True):
    """A finding that is to be there: on which node, and what its summary or evidence says of who and which way."""

    slug: str
    node: str
    words: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    named: what netcheck is to say of it, on all hosts together; any other failure is a wrong culprit. here: the hosts that
    take part; ranks: what each says to be. wait: netcheck's --wait. quick: netcheck is run without torch. by_default: after
    how long torch would say what it says, with the timeout of 30 min that gloo has where nobody sets one; "" where torch has
    nothing to show.
    """

    name: str
    title: str
    named: tuple[Named, ...]
    by_default: str
    lay: Lay = nothing
    master: str = "10.77.0.11"
    here: tuple[int, ...] = (0, 1)
    ranks: tuple[int, ...] = (0, 1)
    wait: int = 6
    quick: bool = False


BLOCKED, ONE_WAY = "firewall-blocked-ports", "one-way-firewall"
UNREACHABLE, MISSING = "master-addr-unreachable", "rdzv-missing-node"
ABSENT = Named(MISSING, "n1", "node 1 didn't come")
SHUT = Named(UNREACHABLE, "n1", "n1's packet filter stops the other nodes at the master's port, 29500")

FAULTS = (
    Fault(
        name="ports-dropped",
        title="both drop all ports but the job's",
        named=(
            Named(BLOCKED, "n1", "n1 drops inbound TCP"),
            Named(BLOCKED, "n2", "n2 drops inbound TCP"),
        ),
        by_default=FIVE_TIMES,
        lay=filtered(f"{NEW} drop", 0, 1),
    ),
    Fault(
        name="dropped-n1",
        title="n1 drops them",
        named=(Named(BLOCKED, "n1", "n1 drops inbound TCP 32768-60999 (its only peer times out; outbound OK)"),),
        by_default=FIVE_TIMES,
        lay=filtered(f"{NEW} drop", 0),
    ),
    Fault(
        name="dropped-n2",
        title="n2 drops them",
        named=(Named(BLOCKED, "n2", "n2 drops inbound TCP 32768-60999 (its only peer times out; outbound OK)"),),
        by_default=NEVER,
        lay=filtered(f"{NEW} drop", 1),
    ),
    Fault(
        name="reset-n1",
        title="n1 rejects them by a reset",
        named=(Named(BLOCKED, "n1", "n1 rejects inbound TCP 32768-60999 (its only peer is refused; outbound OK)"),),
        by_default=FIVE_TIMES,
        lay=filtered(f"{NEW} reject with tcp reset", 0),
    ),
    Fault(
        name="icmp-n1",
        title="n1 rejects them by ICMP",
        named=(Named(BLOCKED, "n1", "n1 rejects inbound TCP 32768-60999"),),
        by_default=FIVE_TIMES,
        lay=filtered(f"{NEW} reject with icmpx admin-prohibited", 0),
    ),
    Fault(
        name="outbound-n2",
        title="n2 drops them on the way out",
        named=(Named(ONE_WAY, "n2", "n2 drops outbound TCP 32768-60999"),),
        by_default=FIVE_TIMES,
        lay=outbound_dropped,
    ),
    Fault(
        name="hostname-loopback",
        title="n2's name is 127.0.1.1 there",
        named=(Named("hostname-resolves-loopback", "n2", "n2 resolves to 127.0.1.1"),),
        by_default=FIVE_TIMES,
        lay=hostname_is_loopback,
        master="192.168.77.11",
    ),
    Fault(
        name="gloo-lo",
        title="GLOO_SOCKET_IFNAME=lo on n2",
        named=(Named("loopback-ifname", "n2", "GLOO_SOCKET_IFNAME=lo"),),
        by_default=NEVER,
        lay=setting(GLOO_SOCKET_IFNAME="lo"),
    ),
    Fault(
        name="gloo-eth9",
        title="GLOO_SOCKET_IFNAME=eth9 on n2",
        named=(Named("gloo-ifname-not-found", "n2", "GLOO_SOCKET_IFNAME=eth9"),),
        by_default=ONCE,
        lay=setting(GLOO_SOCKET_IFNAME="eth9"),
    ),
    Fault(
        name="master-dropped",
        title="the master's port is dropped",
        named=(
            ABSENT,
            SHUT,
            Named(UNREACHABLE, "n2", "10.77.0.11 port 29500 doesn't answer n2 at all"),
        ),
        by_default=ONCE,
        lay=filtered(f"tcp dport {PORT} ip saddr != 10.77.0.11 drop", 0),
    ),
    Fault(
        name="master-rejected",
        title="the master's port is rejected",
        named=(
            ABSENT,
            SHUT,
            Named(UNREACHABLE, "n2", "10.77.0.11 port 29500 refuses n2's connections"),
        ),
        by_default=ONCE,
        lay=filtered(f"tcp dport {PORT} ip saddr != 10.77.0.11 reject with tcp reset", 0),
    ),
    Fault(
        name="nobody-listens",
        title="nobody listens there",
        named=(Named(UNREACHABLE, "n2", "10.77.0.11 port 29500 refuses n2's connections: nobody listens there"),),
        by_default=ONCE,
        here=(1,),
        ranks=(1,),
    ),
    Fault(
        name="wrong-address",
        title="a wrong address",
        named=(Named(UNREACHABLE, "n2", "No host has the address 10.77.0.99"),),
        by_default=ONCE,
        master="10.77.0.99",
        here=(1,),
        ranks=(1,),
    ),
    Fault(
        name="no-route",
        title="no route to it",
        named=(Named(UNREACHABLE, "n2", "n2 has no route to the master, 10.200.0.1"),),
        by_default=ONCE,
        master="10.200.0.1",
        here=(1,),
        ranks=(1,),
    ),
    Fault(
        name="squatted",
        title="an HTTP server holds the port",
        named=(
            Named("port-in-use", "n1", "Port 29500 (MASTER_PORT) is taken by python"),
            Named("port-squatted", "n2", "n2 finds an HTTP server at 10.77.0.11 port 29500"),
        ),
        by_default=ONCE,
        lay=squatted,
    ),
    Fault(
        name="absent",
        title="n2 never arrives",
        named=(ABSENT,),
        by_default=ONCE,
        here=(0,),
        ranks=(0,),
    ),
    Fault(
        name="double",
        title="both are node 0",
        named=(
            Named("duplicate-rank", "n1", "n2 (10.77.0.12) says node rank 0, which n1 has already"),
            Named("duplicate-rank", "n2", "node rank 0 is taken by n1"),
        ),
        by_default=ONCE,
        ranks=(0, 0),
    ),
    Fault(
        name="mtu",
        title="packets over 1400 B get lost",
        named=(Named("mtu-mismatch", "n1", "64 KiB never arrived: n2 to n1"),),
        by_default=ONCE,
        lay=filtered("ip length > 1400 drop", 0),
    ),
    Fault(
        name="loss",
        title="30 % of packets get lost",
        named=(Named("slow-link", "n1", "The link between n1 and n2 loses packets"),),
        by_default=NEVER,
        lay=filtered("numgen random mod 100 < 30 drop", 1),
        wait=20,
    ),
    Fault(
        name="slow",
        title="a link of 2 Mbit/s",
        named=(Named("slow-link", "n2", "Mbit/s from n2 to n1"),),
        by_default=NEVER,
        lay=slow,
    ),
    Fault(
        name="ipv6",
        title="the master's address is IPv6, n2 has IPv4",
        named=(
            ABSENT,
            Named("ipv6-mismatch", "n2", "MASTER_ADDR fd77::11 has only IPv6 addresses, this host only IPv4"),
        ),
        by_default=ONCE,
        lay=ipv6_on_one_side,
        master="fd77::11",
    ),
    Fault(
        name="torch-release",
        title="torch 2.4.1 on n2",
        named=(Named("torch-version-mismatch", "n2", "n2 has torch 2.4.1+cpu, n1"),),
        by_default="",
        lay=another_torch,
        quick=True,
    ),
    Fault(
        name="setting",
        title="a setting on n2 alone",
        named=(Named("env-not-propagated", "n2", "n2 has NCCL_IB_DISABLE=1; on n1 it is not set"),),
        by_default="",
        lay=setting(NCCL_IB_DISABLE="1"),
        quick=True,
    ),
)
