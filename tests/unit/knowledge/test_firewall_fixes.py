"""What is to be typed to open a host's packet filter, as far as its user may see who filters there."""

from __future__ import annotations

import pytest

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.checks.catalogue import select
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.network import Interface, Network
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.firewall_fixes import job_subnet, of_family, opening
from ddpdoctor.knowledge.privileges import NEEDS_ROOT

HERE = ("10.77.0.0/24",)
TEXT = "Let in all TCP from 10.77.0.0/24"
HIDDEN = Unknown("reading the packet filter needs root")


def unreadable(service: str | None) -> Firewall:
    return Firewall(tool=HIDDEN, input_policy=HIDDEN, drops_new=HIDDEN, enabled_service=service)


@pytest.mark.parametrize(
    ("service", "inbound", "commands"),
    [
        ("ufw", True, ("sudo ufw prepend allow proto tcp from 10.77.0.0/24",)),
        ("ufw", False, ("sudo ufw prepend allow out proto tcp to 10.77.0.0/24",)),
        (
            "firewalld",
            True,
            (
                "sudo firewall-cmd --permanent --zone=trusted --add-source=10.77.0.0/24",
                "sudo firewall-cmd --reload",
            ),
        ),
    ],
)
def test_the_service_that_anybody_can_see_goes_first(service: str, inbound: bool, commands: tuple[str, ...]) -> None:
    first, second = opening(TEXT, unreadable(service), HERE, inbound=inbound)
    assert first.commands == commands
    assert first.text.startswith(f"{TEXT}: in the words of {service}, which is switched on there")
    assert first.text.endswith(NEEDS_ROOT)
    assert second.commands == ("sudo nft list ruleset",)


@pytest.mark.parametrize("firewall", [unreadable(None), HIDDEN])
def test_where_nothing_is_known_a_look_comes_first_and_each_tool_by_itself(firewall: Maybe[Firewall]) -> None:
    look, *tools = opening(TEXT, firewall, HERE, inbound=True)
    assert look.commands == ("sudo nft list ruleset",)
    firsts = [tool.commands[0].split()[1] for tool in tools]
    assert firsts == ["firewall-cmd", "ufw", "iptables", "nft"]
    for fix, word in zip(tools, ("firewalld", "ufw", "iptables", "nft"), strict=True):
        assert f"it is {word}" in fix.text
        assert not any("#" in command for command in fix.commands)


def test_firewalld_s_zone_lets_in_more_and_that_is_said() -> None:
    known = Firewall(tool="firewalld", input_policy="drop", drops_new=True)
    (only,) = opening(TEXT, known, HERE, inbound=True)
    assert "not TCP alone" in only.text
    (out,) = opening("Let out all TCP", known, HERE, inbound=False)
    assert "not TCP alone" not in out.text


@pytest.mark.parametrize(
    ("tool", "chain", "command"),
    [
        ("iptables", "ip6tables INPUT", "sudo ip6tables -I INPUT -p tcp -s fd77::/64 -j ACCEPT"),
        ("nft", "ip6 mine in", "sudo nft insert rule ip6 mine in ip6 saddr fd77::/64 meta l4proto tcp accept"),
        (
            "nft",
            "inet filter input",
            "sudo nft insert rule inet filter input ip6 saddr fd77::/64 meta l4proto tcp accept",
        ),
    ],
)
def test_ipv6_has_a_filter_of_its_own(tool: str, chain: str, command: str) -> None:
    six = Firewall(tool=tool, input_policy="drop", drops_new=True, input_chains=(chain,))
    four = Firewall(tool="iptables", input_policy="drop", drops_new=True, input_chains=("iptables INPUT",), ipv6=six)
    (only,) = opening("Let in all TCP", four, ("fd77::/64",), inbound=True)
    assert only.commands == (command,)
    (other,) = opening("Let in all TCP", four, HERE, inbound=True)
    assert other.commands == ("sudo iptables -I INPUT -p tcp -s 10.77.0.0/24 -j ACCEPT",)


@pytest.mark.parametrize(
    ("addresses", "subnet", "slugs"),
    [
        (("fd77::12/64", "fe80::1%eth0/64"), "fd77::/64", ["local-firewall"]),
        (("10.77.0.12/24", "fd77::12/64"), "10.77.0.0/24", []),
        (("fe80::1%eth0/64",), "", []),
    ],
)
def test_a_host_is_judged_by_the_family_of_its_network(
    addresses: tuple[str, ...], subnet: str, slugs: list[str]
) -> None:
    six = Firewall(tool="nft", input_policy="drop", drops_new=True, input_chains=("ip6 filter input",))
    interface = Interface(name="eth0", addresses=addresses)
    network = Network(
        hostname="n1", fqdn="n1", own_name=Unknown("not asked"), interfaces=(interface,), default_interface="eth0"
    )
    assert job_subnet(network) == subnet
    firewall = Firewall(tool=None, input_policy=None, drops_new=False, ipv6=six)
    snapshot = Snapshot(network=network, firewall=firewall, fleet=Fleet())
    results = [result for result in diagnose(snapshot, Plan(1, "--nproc"), select(["network"])) if result.findings]
    found = [result for result in results if result.check.slug == "local-firewall"]
    assert [one.check.slug for one in found] == slugs
    for one in found:
        assert one.findings[0].fixes[0].commands == (
            f"sudo nft insert rule ip6 filter input ip6 saddr {subnet} meta l4proto tcp accept",
        )


def test_a_filter_of_ipv6_that_nobody_read_isnt_none() -> None:
    four = Firewall(tool=None, input_policy=None, drops_new=False)
    assert isinstance(of_family(four, "fd77::1"), Unknown)
    assert of_family(four, "10.77.0.1") == four
    look, *_ = opening("Let in all TCP", four, ("fd77::/64",), inbound=True)
    assert look.commands == ("sudo nft list ruleset",)


def test_no_rule_in_the_way_needs_no_command() -> None:
    assert opening(TEXT, Firewall(tool=None), HERE, inbound=True) == ()
