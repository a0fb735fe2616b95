"""Evidence and fixes that several checks of the network share. Pure."""

from __future__ import annotations

import re
import shlex

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.findings import Evidence, Fix
from ddpdoctor.job_intent import address_of, way_to_the_others
from ddpdoctor.wording import listed


def setting(environment: Environment, name: str) -> Evidence:
    """The evidence that a setting gives."""
    origin = next((one.origin for one in environment.settings if one.name == name), "environment")
    return Evidence(f"{name}={environment.get(name)}", origin)


def intent(sign: str) -> Evidence:
    return Evidence(f"a job over several nodes: {sign}", "settings")


def resolved(one: Resolution) -> Evidence:
    return Evidence(f"{one.name}: {one.error or listed(one.addresses)}", "getaddrinfo")


def interface_settings(name: str) -> tuple[str, ...]:
    """What makes gloo and NCCL take that interface and no other."""
    return (f"export GLOO_SOCKET_IFNAME={name}", f"export NCCL_SOCKET_IFNAME=={name}")


def hosts_fix(network: Network) -> tuple[Fix, ...]:
    """Gives the hostname its real address in /etc/hosts. Written through a copy: in containers the file is a mount."""
    way = way_to_the_others(network)
    address = way and address_of(way, network)
    if not (way and address):
        return ()
    name = network.hostname
    others = rf"/^[^#]*[[:space:]]{re.escape(name)}\([[:space:]]\|$\)/d"
    return (
        Fix(
            f"Give {name} its address on {way} in /etc/hosts",
            (
                f"{{ sed {shlex.quote(others)} /etc/hosts; echo '{address} {name}'; }} > /tmp/hosts",
                "sudo cp /tmp/hosts /etc/hosts",
            ),
        ),
    )


def without_root(network: Network) -> tuple[Fix, ...]:
    way = way_to_the_others(network)
    if not way:
        return ()
    text = f"Without root: name {way} yourself, on every node the interface it has there (== means exactly this name)"
    return (Fix(text, interface_settings(way)),)


def hosts_lines(network: Network) -> Evidence:
    """The lines of /etc/hosts that speak of this host."""
    lines = network.hosts_lines
    text = lines.reason if isinstance(lines, Unknown) else listed(lines) or "no line names this host"
    return Evidence(text, "/etc/hosts")


def addresses(network: Network) -> Evidence:
    """The interfaces that have an address."""
    text = listed((f"{one.name} {', '.join(one.addresses)}" for one in network.interfaces if one.addresses), most=8)
    return network.seen("interfaces", text)
