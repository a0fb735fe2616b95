"""How packet filters are read. That the kernel does the same is tested in tests/real/test_network.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.probes.context import Context
from ddpdoctor.probes.firewall import enabled_service
from ddpdoctor.probes.packet_filter_rules import (
    IPV6,
    Chain,
    Reading,
    opaque_tables,
    read_filters,
    read_iptables_save,
    read_nft,
    shut_ranges,
)

EPHEMERAL = (32768, 60999)

UFW = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
:ufw-user-input - [0:0]
:ufw-logging-deny - [0:0]
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -m comment --comment "let me in" -j ACCEPT
{extra}
COMMIT
"""


def iptables(text: str) -> Reading:
    return read_filters([read_iptables_save(text)], EPHEMERAL)


def rules(*lines: str, policy: str = "ACCEPT") -> Reading:
    return iptables("*filter\n:INPUT " + policy + " [0:0]\n" + "\n".join(lines) + "\nCOMMIT\n")


def test_ufw() -> None:
    found = iptables(UFW.format(extra=""))
    assert (found.drops_new, found.policy, found.managers) == (True, "drop", ("ufw",))
    assert found.open_ports == ("22",)
    opened = iptables(UFW.format(extra="-A ufw-user-input -s 10.0.0.0/24 -p tcp -j ACCEPT"))
    assert opened.drops_new is True
    assert opened.open_sources == ("10.0.0.0/24",)
    assert iptables(UFW.format(extra="-A ufw-user-input -p tcp --dport 1024:65535 -j ACCEPT")).drops_new is False


@pytest.mark.parametrize(
    ("lines", "policy", "drops"),
    [
        ((), "ACCEPT", False),
        ((), "DROP", True),
        (("-A INPUT -p udp -j DROP", "-A INPUT -p tcp --dport 25 -j REJECT"), "ACCEPT", False),
        (("-A INPUT -s 203.0.113.7/32 -j DROP",), "ACCEPT", False),
        (("-A INPUT -m set --match-set banned src -j DROP",), "ACCEPT", None),
        (("-A INPUT -m limit --limit 5/sec -j ACCEPT",), "DROP", None),
        (("-A INPUT -m limit --limit 5/sec -j LOG",), "DROP", True),
        (("-A INPUT ! -i eth0 -j ACCEPT", "-A INPUT -j REJECT"), "ACCEPT", True),
        (("-A INPUT -j nowhere",), "ACCEPT", None),
        (("-A INPUT -m mark --mark 0x8000/0x8000 -j DROP", "-A INPUT ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP"), "ACCEPT", False),
        (("-A INPUT -p tcp -m state --state NEW -j ACCEPT",), "DROP", False),
    ],
)  # fmt: skip
def test_iptables(lines: tuple[str, ...], policy: str, drops: bool | None) -> None:
    assert rules(*lines, policy=policy).drops_new is drops


def test_dockers_rules_are_no_input_filter() -> None:
    docker = (
        "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\nCOMMIT\n"
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER - [0:0]\n-A FORWARD -o docker0 -j DOCKER\n"
        "-A DOCKER ! -i docker0 -o docker0 -j DROP\nCOMMIT\n"
    )
    assert iptables(docker) == Reading()


def base(policy: str = "accept", family: str = "inet") -> dict[str, Any]:
    return {"chain": {"family": family, "table": "filter", "name": "input", "hook": "input", "policy": policy}}


def rule(*expressions: dict[str, Any], chain: str = "input", family: str = "inet") -> dict[str, Any]:
    return {"rule": {"family": family, "table": "filter", "chain": chain, "expr": list(expressions)}}


def match(left: dict[str, Any], right: object, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


PORT = {"payload": {"protocol": "tcp", "field": "dport"}}
SOURCE = {"payload": {"protocol": "ip", "field": "saddr"}}
INTERFACE = {"meta": {"key": "iifname"}}
STATE = {"ct": {"key": "state"}}
ACCEPT: dict[str, Any] = {"accept": None}
DROP: dict[str, Any] = {"drop": None}


def nft(*items: dict[str, Any]) -> Reading:
    return read_filters(read_nft({"nftables": items}).values(), EPHEMERAL)


def test_firewalld() -> None:
    def chain(name: str) -> dict[str, Any]:
        return {"chain": {"family": "inet", "table": "filter", "name": name}}

    items = [
        base(),
        chain("filter_INPUT_ZONES"),
        chain("public"),
        chain("trusted"),
        rule(match(STATE, {"set": ["established", "related"]}, "in"), ACCEPT),
        rule(match({"ct": {"key": "status"}}, "dnat", "in"), ACCEPT),
        rule(match(INTERFACE, "lo"), ACCEPT),
        rule(match(STATE, "invalid", "in"), DROP),
        rule({"jump": {"target": "filter_INPUT_ZONES"}}),
        rule({"reject": {"type": "icmpx", "expr": "admin-prohibited"}}),
        rule(match(INTERFACE, "ib0"), {"goto": {"target": "trusted"}}, chain="filter_INPUT_ZONES"),
        rule({"goto": {"target": "public"}}, chain="filter_INPUT_ZONES"),
        rule(match(PORT, 22), match(STATE, {"set": ["new", "untracked"]}, "in"), ACCEPT, chain="public"),
        rule(ACCEPT, chain="trusted"),
    ]
    found = nft(*items)
    assert found.drops_new is True
    assert found.managers == ("firewalld",)
    assert found.open_sources == ("iif ib0",)
    assert found.open_ports == ("22",)


def test_nft() -> None:
    assert nft(base("drop"), rule(match(PORT, {"range": [1024, 65535]}), ACCEPT)).drops_new is False
    partly = nft(base("drop"), rule(match(PORT, {"set": [22, {"range": [40000, 50000]}]}), ACCEPT))
    assert (partly.drops_new, partly.open_ports) == (True, ("22,40000-50000",))
    prefix = {"prefix": {"addr": "10.0.0.0", "len": 8}}
    assert nft(base("drop"), rule(match(SOURCE, prefix), ACCEPT)).open_sources == ("10.0.0.0/8",)
    assert nft(base("drop"), rule(match(SOURCE, "@nodes"), ACCEPT)).drops_new is True
    assert nft(base(), rule(match({"meta": {"key": "skuid"}}, 0), DROP)).drops_new is None
    assert nft(base("drop", family="ip6")) == Reading()


def nft_of_ipv6(*items: dict[str, Any]) -> Reading:
    return read_filters(read_nft({"nftables": items}, family=IPV6).values(), EPHEMERAL)


def test_ipv6_has_rules_of_its_own() -> None:
    source = {"payload": {"protocol": "ip6", "field": "saddr"}}
    for family in ("ip6", "inet"):
        assert nft_of_ipv6(base("drop", family=family)).drops_new is True
    assert nft_of_ipv6(base("drop", family="ip")) == Reading()
    every = base("drop", family="inet")
    assert nft(every, rule(match({"meta": {"key": "nfproto"}}, "ipv6"), ACCEPT)).drops_new is True
    assert nft_of_ipv6(every, rule(match({"meta": {"key": "nfproto"}}, "ipv6"), ACCEPT)).drops_new is False
    assert nft_of_ipv6(every, rule(match(source, "fd00::1"), ACCEPT)).open_sources == ("fd00::1",)
    assert nft_of_ipv6(every, rule(match(SOURCE, "10.0.0.1"), ACCEPT)).open_sources == ()
    not_that = match({"payload": {"protocol": "icmpv6", "field": "type"}}, 255)
    not_that["match"]["op"] = "!="
    assert nft_of_ipv6(every, rule(not_that, ACCEPT)).drops_new is True


def test_ufw_of_ipv6() -> None:
    text = UFW.replace("ufw-", "ufw6-").replace(
        "-p icmp -m icmp --icmp-type 8", "-p ipv6-icmp -m icmp6 --icmpv6-type 128"
    )
    found = iptables(
        text.format(extra="").replace(
            "-i lo -j ACCEPT", "-i lo -j ACCEPT\n-A ufw6-before-input -m rt --rt-type 0 -j DROP"
        )
    )
    assert (found.drops_new, found.managers) == (True, ("ufw",))


def test_every_table_must_let_it_through() -> None:
    open_one = {"input": Chain("input", (), hooked=True, policy="accept")}
    shut = {"input": Chain("input", (), hooked=True, policy="drop")}
    assert read_filters([open_one, shut], EPHEMERAL).drops_new is True
    assert read_filters([open_one, open_one], EPHEMERAL).policy is None


def test_what_iptables_hides_from_nft() -> None:
    hidden = rule({"xt": {"type": "match", "name": "multiport"}}, ACCEPT, family="ip")
    assert opaque_tables({"nftables": [hidden]}) == {"ip filter"}
    assert nft(base("drop", family="ip"), hidden).drops_new is None


def test_chains_that_call_each_other_end() -> None:
    found = rules(":a - [0:0]", ":b - [0:0]", "-A INPUT -j a", "-A a -j b", "-A b -j a", policy="DROP")
    assert found.drops_new is True


def test_a_service_that_is_switched_on(tmp_path: Path) -> None:
    context = Context("python", root=tmp_path)
    assert enabled_service(context) is None
    (tmp_path / "etc/ufw").mkdir(parents=True)
    (tmp_path / "etc/ufw/ufw.conf").write_text("# on boot\nENABLED=no\n")
    assert enabled_service(context) is None
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "firewalld.service").symlink_to("/usr/lib/systemd/system/firewalld.service")
    for pid, name in ((1, "systemd"), (77, "firewall-cmd")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
    assert enabled_service(context) is None  # It is set to start, and doesn't run.
    (tmp_path / "proc/77/comm").write_text("firewalld\n")
    assert enabled_service(context) == "firewalld"
    (tmp_path / "proc/77/comm").unlink()
    hidden = tmp_path / "sys/fs/cgroup/system.slice/firewalld.service"
    hidden.mkdir(parents=True)
    assert enabled_service(context) == "firewalld"
    (tmp_path / "etc/ufw/ufw.conf").write_text("ENABLED=yes\n")
    assert enabled_service(context) == "ufw"


@pytest.mark.parametrize(
    ("lines", "shut"),
    [
        ((), ()),
        (("-A INPUT -p tcp --dport 40000:65535 -j DROP",), ("40000-60999",)),
        (("-A INPUT -p tcp -m multiport --dports 33000,40000:40009,40010 -j REJECT",), ("33000", "40000-40010")),
        # The first rule that fits counts.
        (
            ("-A INPUT -p tcp --dport 45000:50000 -j ACCEPT", "-A INPUT -p tcp -j DROP"),
            ("32768-44999", "50001-60999"),
        ),
        (("-A INPUT -p tcp --dport 22 -j DROP",), ()),
        (("-A INPUT -p udp --dport 40000:65535 -j DROP",), ()),
        (("-A INPUT -s 10.0.0.7 -p tcp --dport 40000:65535 -j DROP",), ()),
    ],
)
def test_parts_of_the_range_that_are_shut(lines: tuple[str, ...], shut: tuple[str, ...]) -> None:
    text = "\n".join(("*filter", ":INPUT ACCEPT [0:0]", *lines, "COMMIT", ""))
    assert shut_ranges([read_iptables_save(text)], EPHEMERAL) == shut
