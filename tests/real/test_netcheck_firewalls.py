"""Packet filters between hosts: `netcheck` names the node and the direction, and what it prints opens the way.

Needs nft and iptables (apt-get install nftables iptables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.real.namespaces import Host, network
from tests.real.netcheck_hosts import Ran, carry_out, netcheck, sudo_shim

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft", "iptables")]

BLOCKED, ONE_WAY = "firewall-blocked-ports", "one-way-firewall"
SECONDS = 15.0
"""Within which a single fault is named, from the last join."""
AT_ONCE = 3
"""Networks at a time: where packets are dropped, netcheck mostly waits."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to `number` hosts, and what is to be found: slug to the nodes and a part of the summary."""

    number: int = 2
    harm: Callable[[list[Host]], None]
    found: Mapping[str, tuple[tuple[str, ...], str]]
    mended: bool = True
    """What is printed, carried out, makes the next run pass. False: these hosts can't mend it."""


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


def rules(at: int, *written: str) -> Callable[[list[Host]], None]:
    """Rules of iptables on one of the hosts."""

    def harm(hosts: list[Host]) -> None:
        for rule in written:
            hosts[at].run("iptables", *rule.split())

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
    "iptables, output": Case(
        harm=rules(0, "-A OUTPUT -p tcp -m conntrack --ctstate NEW --dport 30000:65535 -j DROP"),
        found={ONE_WAY: (("n0",), f"n0 drops outbound {RANGE}")},
    ),
    "between two, one way": Case(
        harm=dropped_between((0, 1)),
        found={ONE_WAY: (("n0",), f"n0 can't reach n1 on {RANGE} (times out; the other way passes)")},
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


def outcome(case: Case, shim: Path) -> Outcome:
    with network(*(f"n{number}" for number in range(case.number))) as hosts:
        case.harm(hosts)
        ran = netcheck(hosts)
        if not case.mended:
            return Outcome(ran, [])
        for finding in ran[0].report["findings"]:
            host = next(one for one in hosts if one.hostname == finding["node"])
            carry_out(host, [command for fix in finding["fixes"] for command in fix["commands"]], shim)
        return Outcome(ran, netcheck(hosts))


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All cases that were chosen, some at a time."""
    chosen = [name for name in CASES if any(f"[{name}]" in item.name for item in request.session.items)]
    shim = sudo_shim(tmp_path_factory.mktemp("shim"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(outcome, CASES[name], shim) for name in chosen}


@pytest.mark.parametrize("name", CASES)
def test_a_filter_is_named_and_what_is_printed_opens_it(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    case, came = CASES[name], outcomes[name].result()
    ran = came.ran
    assert ran[0].slugs == set(case.found)
    for slug, (nodes, says) in case.found.items():
        assert ran[0].nodes(slug) == list(nodes)
        assert all(says in one["summary"] for one in ran[0].findings(slug))
    for one in ran[1:]:
        assert one.slugs == {slug for slug, (nodes, _) in case.found.items() if one.host in nodes}
    assert {one.code for one in ran} == {1}
    assert max(one.seconds for one in ran) < SECONDS
    if case.mended:
        assert came.mended[0].report["findings"] == []
        assert {one.code for one in came.mended} == {0}


def test_healthy_hosts_have_nothing() -> None:
    with network("n0", "n1", "n2") as hosts:
        for _ in range(10):
            ran = netcheck(hosts)
            assert ran[0].report["findings"] == []
            assert {one.code for one in ran} == {0}
