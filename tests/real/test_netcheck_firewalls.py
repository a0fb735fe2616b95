"""Packet filters between hosts: `netcheck` names the node and the direction, and what it prints opens the way.

Needs nft, iptables, ufw and firewalld (apt-get install nftables iptables ufw firewalld).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.namespaces import NETNS_ETC, Host, add_ipv6, network, take_ipv4
from tests.support.netcheck_hosts import MASTER, Ran, carry_out, netcheck, sudo_shim

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft", "iptables", "ufw", "firewalld", "dbus-daemon")]

BLOCKED, ONE_WAY = "firewall-blocked-ports", "one-way-firewall"
SECONDS = 15.0
"""Within which a single fault is named, from the last join."""
AT_ONCE = 5
"""Networks at a time: where packets are dropped, netcheck mostly waits."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to `number` hosts, and what is to be found: slug to the nodes and a part of the summary."""

    number: int = 2
    harm: Callable[[list[Host]], None]
    found: Mapping[str, tuple[tuple[str, ...], str]]
    mended: bool = True
    """The first fix that is printed, carried out, makes the next run pass. False: these hosts can't mend it."""
    code: int = 1
    ipv6: bool = False
    """The hosts have no other addresses."""


def nft(host: Host, hook: str, *rules: str, policy: str = "accept", family: str = "inet") -> None:
    lines = "; ".join(rules)
    chain = f"chain {hook} {{ type filter hook {hook} priority 0; policy {policy}; {lines}; }};"
    host.run("nft", f"table {family} filter {{ {chain} }}")


STORE_ONLY = ("ct state established,related accept", "iif lo accept", "tcp dport { 22, 29500 } accept")
SENDS_TO_STORE_ONLY = ("ct state established,related accept", "oif lo accept", "tcp dport 29500 accept")


def lets_in_the_store_only(*at: int, then: str = "drop") -> Callable[[list[Host]], None]:
    def harm(hosts: list[Host]) -> None:
        for one in at:
            nft(hosts[one], "input", *STORE_ONLY, f"meta l4proto tcp {then}")

    return harm


def sends_to_the_store_only(at: int, then: str) -> Callable[[list[Host]], None]:
    return lambda hosts: nft(hosts[at], "output", *SENDS_TO_STORE_ONLY, f"meta l4proto tcp {then}")


def rules(at: int, *written: str, tool: str = "iptables") -> Callable[[list[Host]], None]:
    """Rules of iptables on one of the hosts."""

    def harm(hosts: list[Host]) -> None:
        for rule in written:
            hosts[at].run(tool, *rule.split())

    return harm


def dropped_between(*pairs: tuple[int, int]) -> Callable[[list[Host]], None]:
    """The switch drops connections to high ports from one host to another: neither of them can know."""
    written = [
        f"ip saddr 10.77.0.{11 + source} ip daddr 10.77.0.{11 + target} tcp dport 30000-65535 tcp flags syn / syn,ack drop"
        for source, target in pairs
    ]

    def harm(hosts: list[Host]) -> None:
        assert hosts[0].cable
        nft(hosts[0].cable[0], "forward", *written, family="bridge")

    return harm


def both(*harms: Callable[[list[Host]], None]) -> Callable[[list[Host]], None]:
    def harm(hosts: list[Host]) -> None:
        for one in harms:
            one(hosts)

    return harm


STARTED: list[subprocess.Popen[str]] = []
"""What goes on until the last test has ended."""

BUS = "DBUS_SYSTEM_BUS_ADDRESS"
BUS_CONFIG = """<busconfig><type>system</type><listen>unix:path={folder}/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
<allow user="*"/></policy></busconfig>"""


def with_a_folder_of_its_own(host: Host, name: str) -> None:
    """Instead of the machine's own /etc/NAME, from the next command on."""
    (NETNS_ETC / host.namespace).mkdir(parents=True, exist_ok=True)
    shutil.copytree(f"/etc/{name}", NETNS_ETC / host.namespace / name)


def ufw(*written: str) -> Callable[[list[Host]], None]:
    def harm(hosts: list[Host]) -> None:
        for folder in ("ufw", "default"):
            with_a_folder_of_its_own(hosts[1], folder)
        for command in ("allow 22/tcp", "allow 29500/tcp", *written, "--force enable"):
            hosts[1].run("ufw", *command.split())

    return harm


def firewalld(hosts: list[Host]) -> None:
    """With a bus of its own, since there is one for all namespaces."""
    with_a_folder_of_its_own(hosts[1], "firewalld")
    folder = Path(tempfile.mkdtemp())
    config = folder / "bus.conf"
    config.write_text(BUS_CONFIG.format(folder=folder))
    os.environ[BUS] = f"unix:path={folder}/bus"
    STARTED.append(hosts[1].start("dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"))
    eventually(lambda: (folder / "bus").exists())
    STARTED.append(hosts[1].start("firewalld", "--nofork", "--nopid"))
    eventually(lambda: subprocess.run(["firewall-cmd", "--state"], capture_output=True, check=False).returncode == 0)
    for command in ("--permanent --add-port=29500/tcp", "--reload"):
        hosts[1].run("firewall-cmd", *command.split())


def eventually(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


NOISE = """
import socket, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    one.sendto(b"noise", ("{to}", 9))
    time.sleep(0.025)
"""


def noise(source: int, target: int) -> Callable[[list[Host]], None]:
    """About as many packets as the others' dialling loses, which the host drops all the time."""

    def harm(hosts: list[Host]) -> None:
        nft(hosts[target], "input", "udp dport 9 drop")
        STARTED.append(hosts[source].start(sys.executable, "-c", NOISE.format(to=f"10.77.0.{11 + target}")))

    return harm


MULTICAST = """
import socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group, own = (socket.inet_aton(text) for text in ("224.0.0.251", sys.argv[1]))
one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + own)
one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
while True:
    one.sendto(b"noise", ("224.0.0.251", 5353))
    time.sleep(0.01)
"""


def multicasts(*members: int) -> Callable[[list[Host]], None]:
    """Members of a group that talk to each other: much of what comes in there is a multicast, and is delivered."""

    def harm(hosts: list[Host]) -> None:
        for at in members:
            STARTED.append(hosts[at].start(sys.executable, "-c", MULTICAST, f"10.77.0.{11 + at}"))

    return harm


def few_files(hosts: list[Host]) -> None:
    """A hard limit of open files on n1 that leaves it some sockets, and not enough of them."""
    command = hosts[1].command
    hosts[1].command = lambda *words: command("sh", "-c", f'ulimit -n {FEW_FILES}; exec "$@"', "sh", *words)  # type: ignore[method-assign]


FEW_FILES = 24
RANGE = "TCP 32768-60999"
REPLIES = "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
STORE = "-A INPUT -p tcp --dport 29500 -j ACCEPT"

CASES = {
    # Two hosts: the kernel's counters say whose filter it is.
    "only the master port is open on both": Case(
        harm=lets_in_the_store_only(0, 1),
        found={BLOCKED: (("n0", "n1"), f"drops inbound {RANGE} (its only peer times out)")},
    ),
    # gloo passes here: the host with the larger address dials.
    "on the other one alone": Case(
        harm=lets_in_the_store_only(1),
        found={BLOCKED: (("n1",), f"n1 drops inbound {RANGE} (its only peer times out; outbound OK)")},
    ),
    "on the master alone": Case(
        harm=lets_in_the_store_only(0), found={BLOCKED: (("n0",), f"n0 drops inbound {RANGE}")}
    ),
    "rejected by a reset": Case(
        harm=lets_in_the_store_only(1, then="reject with tcp reset"),
        found={BLOCKED: (("n1",), f"n1 rejects inbound {RANGE} (its only peer is refused; outbound OK)")},
    ),
    "rejected on both": Case(
        harm=lets_in_the_store_only(0, 1, then="reject with tcp reset"),
        found={BLOCKED: (("n0", "n1"), f"rejects inbound {RANGE} (its only peer is refused)")},
    ),
    "rejected by ICMP": Case(
        harm=lets_in_the_store_only(1, then="reject"),
        found={BLOCKED: (("n1",), f"n1 rejects inbound {RANGE} (its only peer is refused; outbound OK)")},
    ),
    "rejected as firewalld does": Case(
        harm=lets_in_the_store_only(1, then="reject with icmp type admin-prohibited"),
        found={
            BLOCKED: (("n1",), f'n1 rejects inbound {RANGE} (its only peer is told "no route to host"; outbound OK)')
        },
    ),
    "the other one's output dropped": Case(
        harm=sends_to_the_store_only(1, "drop"),
        found={ONE_WAY: (("n1",), f"n1 drops outbound {RANGE} (towards its only peer it times out; inbound OK)")},
    ),
    "the master's output dropped": Case(
        harm=sends_to_the_store_only(0, "drop"), found={ONE_WAY: (("n0",), f"n0 drops outbound {RANGE}")}
    ),
    "the other one's output rejected": Case(
        harm=sends_to_the_store_only(1, "reject with tcp reset"),
        found={ONE_WAY: (("n1",), f"n1 rejects outbound {RANGE}")},
    ),
    "one's input, the other's output": Case(
        harm=both(lets_in_the_store_only(0), sends_to_the_store_only(0, "drop")),
        found={BLOCKED: (("n0",), f"n0 drops inbound {RANGE}"), ONE_WAY: (("n0",), f"n0 drops outbound {RANGE}")},
    ),
    "iptables, dropped by policy": Case(
        harm=rules(1, REPLIES, "-A INPUT -i lo -j ACCEPT", STORE, "-P INPUT DROP"),
        found={BLOCKED: (("n1",), f"n1 drops inbound {RANGE}")},
    ),
    "iptables, replies as well": Case(
        harm=rules(0, "-A INPUT ! -i lo -p tcp --dport 30000:65535 -j DROP"),
        found={BLOCKED: (("n0",), f"n0 drops inbound {RANGE} (its only peer times out; outbound fails, too)")},
    ),
    "iptables, a part of the range": Case(
        harm=rules(1, "-A INPUT -p tcp -m conntrack --ctstate NEW --dport 45000:65535 -j REJECT"),
        found={BLOCKED: (("n1",), "n1 rejects inbound TCP 45000-60999 (its only peer is refused")},
    ),
    # Too few ports for one of them to be dialled: the rules alone tell.
    "nft, a few ports": Case(
        harm=lambda hosts: nft(hosts[1], "input", "ct state new tcp dport 40001-40003 drop"),
        found={BLOCKED: (("n1",), "n1's packet filter shuts TCP 40001-40003 to the other nodes; the 10 ports that")},
        code=0,
    ),
    "nft, the upper part of the output": Case(
        harm=lambda hosts: nft(hosts[0], "output", "ct state new tcp dport 40000-60999 drop"),
        found={ONE_WAY: (("n0",), "n0 drops outbound TCP 40000-60999 (towards its only peer it times out")},
    ),
    "ufw": Case(
        harm=ufw(), found={BLOCKED: (("n1",), f"n1 drops inbound {RANGE} (its only peer times out; outbound OK)")}
    ),
    "ufw, output": Case(
        harm=ufw("allow from 10.77.0.0/24", "default deny outgoing", "allow out 29500/tcp"),
        found={ONE_WAY: (("n1",), f"n1 drops outbound {RANGE} (towards its only peer it times out; inbound OK)")},
    ),
    "firewalld": Case(
        harm=firewalld,
        found={BLOCKED: (("n1",), f'n1 rejects inbound {RANGE} (its only peer is told "no route to host"')},
    ),
    "iptables, output": Case(
        harm=rules(0, "-A OUTPUT -p tcp -m conntrack --ctstate NEW --dport 30000:65535 -j DROP"),
        found={ONE_WAY: (("n0",), f"n0 drops outbound {RANGE}")},
    ),
    "IPv6, ip6tables": Case(
        ipv6=True,
        harm=rules(1, REPLIES, "-A INPUT -p ipv6-icmp -j ACCEPT", STORE, "-A INPUT -p tcp -j DROP", tool="ip6tables"),
        found={BLOCKED: (("n1",), f"n1 drops inbound {RANGE} (its only peer times out; outbound OK)")},
    ),
    "IPv6, nft, output": Case(
        ipv6=True,
        harm=lambda hosts: nft(hosts[0], "output", "tcp dport 30000-65535 ct state new drop", family="ip6"),
        found={ONE_WAY: (("n0",), f"n0 drops outbound {RANGE} (towards its only peer it times out; inbound OK)")},
    ),
    "between two, one way": Case(
        harm=dropped_between((0, 1)),
        found={ONE_WAY: (("n0",), f"n0 can't reach n1 on {RANGE} (times out; the other way passes)")},
        mended=False,
    ),
    "between two, and the one drops as much of something else": Case(
        harm=both(dropped_between((0, 1)), noise(0, 1)),
        found={ONE_WAY: (("n0",), f"n0 can't reach n1 on {RANGE} (times out; the other way passes)")},
        mended=False,
    ),
    "no files for the peers' connections": Case(
        harm=few_files,
        found={"peers-not-dialled": (("n1",), "n1 could not listen for the other nodes, or dial them: ")},
        mended=False,
    ),
    "between two, the other way": Case(
        harm=dropped_between((1, 0)), found={ONE_WAY: (("n0",), f"n1 can't reach n0 on {RANGE}")}, mended=False
    ),
    "between two, both ways": Case(
        harm=dropped_between((0, 1), (1, 0)),
        found={BLOCKED: (("n0",), f"n0 and n1 don't reach each other on {RANGE}")},
        mended=False,
    ),
    # More of them: the matrix says it.
    "one of three": Case(
        number=3,
        harm=lets_in_the_store_only(2),
        found={BLOCKED: (("n2",), f"n2 drops inbound {RANGE} (both peers time out; outbound OK)")},
    ),
    "all of three": Case(
        number=3,
        harm=lets_in_the_store_only(0, 1, 2, then="reject"),
        found={BLOCKED: (("n0", "n1", "n2"), f"rejects inbound {RANGE} (both peers are refused)")},
    ),
    "one of three sends nothing": Case(
        number=3,
        harm=sends_to_the_store_only(1, "drop"),
        found={ONE_WAY: (("n1",), f"n1 drops outbound {RANGE} (towards both peers it times out; inbound OK)")},
    ),
    "a rule for one peer": Case(
        number=3,
        harm=lambda hosts: nft(hosts[2], "input", "ip saddr 10.77.0.12 tcp dport 30000-65535 ct state new reject"),
        found={ONE_WAY: (("n2",), f"n1 can't reach n2 on {RANGE} (is refused; the other way passes)")},
    ),
    # It rejects the replies to n2's own connections, too.
    "a rule for one peer that knows no connections": Case(
        number=3,
        harm=lambda hosts: nft(hosts[2], "input", "ip saddr 10.77.0.12 tcp dport 30000-65535 reject"),
        found={BLOCKED: (("n2",), f"n1 and n2 don't reach each other on {RANGE}")},
    ),
    "one of three, where multicasts are heard": Case(
        number=3,
        harm=both(lets_in_the_store_only(1), multicasts(0, 2)),
        found={BLOCKED: (("n1",), f"n1 drops inbound {RANGE} (both peers time out; outbound OK)")},
    ),
    "the same on the one that dials first": Case(
        number=3,
        harm=lambda hosts: nft(hosts[1], "input", "ip saddr 10.77.0.13 tcp dport 30000-65535 drop"),
        found={BLOCKED: (("n1",), f"n1 and n2 don't reach each other on {RANGE}")},
    ),
    "an output filter that knows no connections": Case(
        number=3,
        harm=lambda hosts: nft(hosts[1], "output", "tcp dport 29500 accept", "meta l4proto tcp drop"),
        found={ONE_WAY: (("n1",), f"n1 drops outbound {RANGE} (towards both peers it times out; inbound fails, too)")},
    ),
    "a filter before one of three": Case(
        number=3,
        harm=dropped_between((0, 2), (1, 2)),
        found={BLOCKED: (("n2",), f"n2: inbound {RANGE} is dropped before it arrives there (both peers time out")},
        mended=False,
    ),
    "two of eight": Case(
        number=8,
        harm=both(lets_in_the_store_only(3), sends_to_the_store_only(6, "drop")),
        found={
            BLOCKED: (("n3",), f"n3 drops inbound {RANGE} (all 7 peers time out; outbound OK)"),
            ONE_WAY: (("n6",), f"n6 drops outbound {RANGE} (towards all 7 peers it times out; inbound OK)"),
        },
    ),
}


class Outcome(msgspec.Struct, frozen=True):
    """What netcheck said, and what it said once its commands were carried out."""

    ran: list[Ran]
    mended: list[Ran]


def only_ipv6(hosts: list[Host]) -> str:
    """Leaves them without IPv4; the first one's address."""
    addresses = [add_ipv6(host) for host in hosts]
    names = "".join(f"{address} {host.hostname}\n" for address, host in zip(addresses, hosts, strict=True))
    for host in hosts:
        take_ipv4(host)
        host.hosts(f"::1 localhost\n{names}")
    return addresses[0]


def outcome(case: Case, shim: Path) -> Outcome:
    with network(*(f"n{number}" for number in range(case.number))) as hosts:
        master = only_ipv6(hosts) if case.ipv6 else MASTER
        case.harm(hosts)
        ran = netcheck(hosts, "--master-addr", master)
        if not case.mended:
            return Outcome(ran, [])
        for finding in ran[0].report["findings"]:
            host = next(host for host in hosts if host.hostname == finding["node"])
            carry_out(host, finding["fixes"][0]["commands"], shim)
        return Outcome(ran, netcheck(hosts, "--master-addr", master))


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All cases that were chosen, some at a time."""
    chosen = [name for name in CASES if any(f"[{name}]" in item.name for item in request.session.items)]
    shim = sudo_shim(tmp_path_factory.mktemp("shim"))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield {name: pool.submit(outcome, CASES[name], shim) for name in chosen}
    finally:
        os.environ.pop(BUS, None)
        for process in STARTED:
            process.kill()
            process.wait()


FURTHER = {
    "on the other one alone",
    "a rule for one peer",
    "iptables, output",
    "iptables, replies as well",
    "a rule for one peer that knows no connections",
    "on the master alone",
    "rejected on both",
    "rejected as firewalld does",
    "the other one's output rejected",
    "nft, the upper part of the output",
    "ufw, output",
    "between two, the other way",
    "all of three",
    "the same on the one that dials first",
    "a filter before one of three",
    "two of eight",
}
"""Of which the others are likenesses."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in FURTHER else ()) for name in CASES]
)
def test_a_filter_is_named_and_what_is_printed_opens_it(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    case, came = CASES[name], outcomes[name].result()
    ran = came.ran
    assert ran[0].slugs == set(case.found)
    for slug, (nodes, says) in case.found.items():
        assert ran[0].nodes(slug) == list(nodes)
        assert all(says in finding["summary"] for finding in ran[0].findings(slug))
    for one in ran[1:]:
        assert one.slugs == {slug for slug, (nodes, _) in case.found.items() if one.host in nodes}
    assert {run.code for run in ran} == {case.code}
    assert ran[0].report["seconds"] < SECONDS
    if case.mended:
        assert came.mended[0].report["findings"] == []
        assert {one.code for one in came.mended} == {0}


@contextmanager
def container_on(host: Host) -> Iterator[Host]:
    """One with a network of its own, as docker makes it without --network=host: the host writes its own address on what the
    container sends."""
    inner = Host("c1")
    try:
        subprocess.run(["ip", "netns", "add", inner.namespace], check=True)
        inner.ip(f"link add eth0 type veth peer name docker0 netns {host.namespace}")
        host.ip("address add 172.17.0.1/16 dev docker0")
        host.ip("link set docker0 up")
        inner.ip("address add 172.17.0.2/16 dev eth0")
        inner.ip("link set eth0 up")
        inner.ip("link set lo up")
        inner.ip("route add default via 172.17.0.1")
        inner.hosts("127.0.0.1 localhost\n172.17.0.2 c1\n")
        host.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        masquerade = "ip saddr 172.17.0.0/16 oif eth0 masquerade"
        host.run("nft", f"table ip nat {{ chain out {{ type nat hook postrouting priority 100; {masquerade}; }}; }}")
        yield inner
    finally:
        subprocess.run(["ip", "netns", "delete", inner.namespace], check=False, capture_output=True)
        shutil.rmtree(NETNS_ETC / inner.namespace, ignore_errors=True)


@pytest.mark.parametrize("number", [2, 3])
def test_a_container_behind_nat_is_told_so(number: int) -> None:
    with network("n0", "n1", "n2") as hosts, container_on(hosts[1]) as inner:
        hosts[0].ip("route add blackhole 172.17.0.0/16")
        ran = netcheck([hosts[0], inner, *hosts[2:number]])
        assert ran[0].slugs == ran[1].slugs == {"node-behind-nat"}
        (found,) = ran[0].findings("node-behind-nat")
        assert found["node"] == "c1"
        assert "c1 is behind NAT: it listens at 172.17.0.2, and node 0 sees it as 10.77.0.12" in found["summary"]
        assert "--network=host" in found["fixes"][0]["text"]
        assert not found["fixes"][0]["commands"]
        assert {run.code for run in ran} == {1}
