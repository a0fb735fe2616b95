"""Evidence and fixes that several checks of the network share. Pure."""

from __future__ import annotations

import shlex

from ddpdoctor.base.findings import Evidence, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Unknown, if_known
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge.interface_choice import as_address, network_around
from ddpdoctor.knowledge.job_intent import address_of, way_to_the_others
from ddpdoctor.knowledge.privileges import by_root

PING_COMES_IN = "ping is in the package iputils-ping, on RHEL iputils"
"""Minimal images have none."""


def setting(environment: Environment, name: str) -> Evidence:
    """The evidence that a setting gives."""
    found = if_known(lambda: environment.setting(name), default=None)
    return Evidence(f"{name}={found.value if found else ''}", found.origin if found else "environment")


def intent(sign: str) -> Evidence:
    return Evidence(f"a job over several nodes: {sign}", "settings")


def resolved(name: Resolution) -> Evidence:
    return Evidence(f"{name.name}: {name.error or listed(name.addresses)}", "getaddrinfo")


def interface_settings(name: str) -> tuple[str, ...]:
    """Settings that make gloo and NCCL take that interface and no other."""
    quoted = shlex.quote(name)
    return (f"export GLOO_SOCKET_IFNAME={quoted}", f"export NCCL_SOCKET_IFNAME=={quoted}")


def hosts_fix(network: Network) -> tuple[Fix, ...]:
    """Give the hostname its real address in /etc/hosts; nothing where it has it, or where we don't know it.

    Other names on its lines (often "localhost") stay; a line that has none left goes. Written through a copy, since in containers the file is a mount.
    """
    way = if_known(way_to_the_others, network, default=None)
    address = (way and network.met_at) or (way and address_of(way, network))
    own = network.own_name
    if not (way and address) or (isinstance(own, Resolution) and own.addresses[:1] == (address,)):
        return ()
    text = f"Give {network.hostname} its address on {way} in /etc/hosts"
    long = network.fqdn if network.fqdn.startswith(f"{network.hostname}.") else ""
    line = shlex.quote(" ".join(name for name in (address, long, network.hostname) if name))
    lines = network.hosts_lines
    if isinstance(lines, tuple) and not any(network.hostname in line.split() for line in lines):
        return (by_root(text, (f"echo {line} | sudo tee -a /etc/hosts",)),)
    name = network.hostname.replace(".", r"\.")
    taken_out = rf":a;s/[[:space:]]{name}\(\.[^[:space:]]*\)\{{0,1\}}\([[:space:]]\|$\)/\2/;ta"
    nameless = r"/^[[:space:]]*[0-9a-fA-F:.]\{1,\}[[:space:]]*\(#.*\)\{0,1\}$/d"
    script = shlex.quote(f"{taken_out};{nameless}")
    copy = f"{{ sed {script} /etc/hosts; echo {line}; }} > ~/hosts.new"
    return (by_root(text, (copy, "sudo cp ~/hosts.new /etc/hosts")),)


def without_root(network: Network, *, suffices: bool = False) -> tuple[Fix, ...]:
    """suffices: it cures the illness, and doesn't only make it harmless to some."""
    way = if_known(way_to_the_others, network, default=None)
    if not way:
        return ()
    text = f"Without root: name {way} yourself, on every node the interface it has there (== means exactly this name)"
    return (Fix(text, interface_settings(way), appliable=suffices),)


def hosts_lines(network: Network) -> Evidence:
    """The lines of /etc/hosts that speak of this host."""
    lines = network.hosts_lines
    text = lines.reason if isinstance(lines, Unknown) else listed(lines) or "no line names this host"
    return Evidence(text, "/etc/hosts")


def shared_network(address: str, network: Network) -> str:
    """The network of an interface here that the address is of, too, "10.0.0.0/24"; "" where there is none."""
    there = as_address(address)
    subnets = (network_around(text) for interface in network.interfaces for text in interface.addresses)
    return next((str(subnet) for subnet in subnets if there in subnet), "")


def own_network(address: str, network: Network) -> str:
    """From where packets to that address come: the network that both are in, else the one of the way to the others."""
    way = way_to_the_others(network)
    ours = (interface.addresses for interface in network.interfaces if interface.name == way)
    theirs = [text for text in next(ours, ()) if (":" in text) == (":" in address)]
    return shared_network(address, network) or (str(network_around(theirs[0])) if theirs else "")


def addresses(network: Network) -> Evidence:
    """The interfaces that have an address."""
    interfaces = if_known(lambda: network.interfaces, default=None)
    with_address = [interface for interface in interfaces or () if interface.addresses]
    words = (f"{interface.name} {', '.join(interface.addresses)}" for interface in with_address)
    none = "not known" if interfaces is None else "none has an address"
    return network.seen("interfaces", listed(words, most=8) or none)
