"""The commands that open this host's packet filter for the other nodes, in the words of the tool that manages it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.network import Interface, Network
from ddpdoctor.knowledge.interface_choice import as_address, network_around
from ddpdoctor.knowledge.job_intent import way_to_the_others
from ddpdoctor.knowledge.privileges import by_root

LOOK = ("sudo nft list ruleset",)
TRUSTED = "; its zone trusted lets in whatever comes from there, not TCP alone"

MAX_SINGLE_ADDRESSES = 8
"""Addresses outside of this host's own subnet that are let in one by one; of more, the /24 (IPv6: /64) around each."""


def job_subnet(network: Network) -> str:
    """The network of the interface that leads to the other nodes, "10.0.0.0/24", of IPv6 where it has no other; "" where it
    isn't known."""
    way = way_to_the_others(network)
    addresses = next((interface.addresses for interface in network.interfaces if interface.name == way), ())
    own = [network_around(address) for address in addresses]
    usable = [subnet for subnet in own if subnet.version == 4 or not subnet.is_link_local]
    return next((str(subnet) for subnet in sorted(usable, key=lambda subnet: subnet.version)), "")


def subnets_of(own: str, peers: Iterable[str], interfaces: Sequence[Interface]) -> tuple[str, ...]:
    """Find networks that hold the peers' addresses: this host's own one around `own`, and those of the peers outside of it."""
    here = as_address(own)
    texts = (text for interface in interfaces for text in interface.addresses if "/" in text)
    home = next((network_around(text) for text in texts if as_address(text) == here), None)
    others = [as_address(peer) for peer in dict.fromkeys(peers) if peer]
    outside = [address for address in others if home is None or address not in home]
    many = len(outside) > MAX_SINGLE_ADDRESSES
    around = [
        network_around(f"{address}/{24 if address.version == 4 else 64}") if many else address for address in outside
    ]
    found = [str(home)] if home is not None and len(outside) < len(others) else []
    return (*found, *dict.fromkeys(str(subnet) for subnet in around))


def of_family(firewall: Maybe[Firewall], address: str) -> Maybe[Firewall]:
    """Choose the packet filter of that address's, or subnet's, family."""
    if ":" not in address or isinstance(firewall, Unknown) or isinstance(firewall.tool, Unknown):
        return firewall
    return Unknown("IPv6's packet filter was not read") if firewall.ipv6 is None else firewall.ipv6


def opening(text: str, firewall: Maybe[Firewall], subnets: Sequence[str], *, inbound: bool) -> tuple[Fix, ...]:
    """Advise how all TCP from or to those networks is let pass on this host, before any rule that drops it.

    First come the very commands of the tool that filters here or, where only root could see that, of the one that is switched
    on; where nothing is known, how to see it, and then each tool's. () where the rules are known and none is in the way.
    text: the same in words. inbound: from there, else to there.
    """
    firewall = of_family(firewall, next(iter(subnets), ""))
    tool = Unknown("not looked at") if isinstance(firewall, Unknown) else firewall.tool
    if isinstance(firewall, Firewall) and not isinstance(tool, Unknown):
        chains = firewall.input_chains if inbound else firewall.output_chains
        commands = _commands(tool, subnets, chains, inbound=inbound)
        return (by_root(text + _beyond(tool, inbound=inbound), commands),) if commands else ()
    service = None if isinstance(firewall, Unknown) else firewall.enabled_service
    if service is None:
        return _whatever_it_is(text, subnets, inbound=inbound)
    return (
        by_root(
            f"{text}: in the words of {service}, which is switched on there{_beyond(service, inbound=inbound)}",
            _commands(service, subnets, (), inbound=inbound),
        ),
        by_root(f"If that doesn't help, something beside {service} filters: look for rules that drop or reject", LOOK),
    )


def _beyond(tool: str | None, *, inbound: bool) -> str:
    return TRUSTED if tool == "firewalld" and inbound else ""


def _whatever_it_is(text: str, subnets: Sequence[str], *, inbound: bool) -> tuple[Fix, ...]:
    """Advise how to find out which tool it is, and for each what to type."""
    chain = "inet filter input" if inbound else "inet filter output"
    return (
        by_root(f"{text}: see what filters there, and then type only the commands of that tool, below", LOOK),
        by_root(
            f'If that shows a table "firewalld", it is firewalld{_beyond("firewalld", inbound=inbound)}',
            _firewalld(subnets, inbound=inbound),
        ),
        by_root('If it shows chains "ufw-...", it is ufw', tuple(_ufw(subnet, inbound=inbound) for subnet in subnets)),
        by_root(
            f'If it shows neither, and a table "{_family(subnets)} filter" or nothing at all, it is iptables',
            tuple(_iptables(subnet, inbound=inbound) for subnet in subnets),
        ),
        by_root(
            f'Else it is nft: the name of its table and of its chain with "hook {chain.rpartition(" ")[2]}" in place of '
            f'"{chain}"',
            tuple(_nft(chain, subnet, inbound=inbound) for subnet in subnets),
        ),
    )


def _family(subnets: Sequence[str]) -> str:
    return "ip6" if any(":" in subnet for subnet in subnets) else "ip"


def _commands(tool: str | None, subnets: Sequence[str], chains: Sequence[str], *, inbound: bool) -> tuple[str, ...]:
    if tool == "firewalld":
        return _firewalld(subnets, inbound=inbound)
    if tool == "ufw":
        return tuple(_ufw(subnet, inbound=inbound) for subnet in subnets)
    return tuple(
        command
        for chain in _named_once(chains)
        for subnet in subnets
        if (command := _in_chain(chain, subnet, inbound=inbound))
    )


def _named_once(chains: Sequence[str]) -> list[str]:
    """nft shows the chains that iptables keeps in nftables as well."""
    families = {"iptables": "ip", "ip6tables": "ip6"}
    words = [chain.split() for chain in chains]
    shown_twice = {f"{families[tool]} filter {rest[0]}" for tool, *rest in words if tool in families}
    return [chain for chain in chains if chain not in shown_twice]


def _in_chain(chain: str, subnet: str, *, inbound: bool) -> str:
    if chain.startswith(("iptables ", "ip6tables ")):
        return _iptables(subnet, inbound=inbound)
    of_another_family = chain.partition(" ")[0] == ("ip" if ":" in subnet else "ip6")
    return "" if of_another_family else _nft(chain, subnet, inbound=inbound)


def _nft(chain: str, subnet: str, *, inbound: bool) -> str:
    field = f"{_family((subnet,))} {'saddr' if inbound else 'daddr'}"
    return f"sudo nft insert rule {shlex.join(chain.split())} {field} {subnet} meta l4proto tcp accept"


def _iptables(subnet: str, *, inbound: bool) -> str:
    command = "ip6tables" if ":" in subnet else "iptables"
    return f"sudo {command} -I {'INPUT -p tcp -s' if inbound else 'OUTPUT -p tcp -d'} {subnet} -j ACCEPT"


def _ufw(subnet: str, *, inbound: bool) -> str:
    return f"sudo ufw prepend allow {'proto tcp from' if inbound else 'out proto tcp to'} {subnet}"


def _firewalld(subnets: Sequence[str], *, inbound: bool) -> tuple[str, ...]:
    if inbound:
        rules = tuple(f"--zone=trusted --add-source={subnet}" for subnet in subnets)
    else:
        rules = tuple(
            f"--direct --add-rule {'ipv6' if ':' in subnet else 'ipv4'} filter OUTPUT 0 -p tcp -d {subnet} -j ACCEPT"
            for subnet in subnets
        )
    return (*(f"sudo firewall-cmd --permanent {rule}" for rule in rules), "sudo firewall-cmd --reload")


def whom(subnets: Sequence[str]) -> str:
    """The networks in words."""
    return listed(subnets) or "the other nodes"
