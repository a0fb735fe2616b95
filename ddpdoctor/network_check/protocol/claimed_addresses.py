"""Addresses where a node may say that it listens. Pure.

All others dial there several times over, so a node that was broken into must not send them to a victim: what it says of its own
interfaces proves nothing, and the end of its connection to the hub does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ddpdoctor.engine.sanitize_facts import is_address
from ddpdoctor.facts.network import Network
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.interface_choice import as_address
from ddpdoctor.network_check.protocol.messages import ListenAddress
from ddpdoctor.network_check.protocol.tokens import is_private_address

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

NEAR_PREFIX_LENGTHS: Final = {4: 24, 6: 64}
"""Bits of a public address that one of the same subnet shares at the least."""

LOWEST_PORT: Final = 1024
"""The kernel gives none below to whoever doesn't ask for it."""

CLOUD_SERVICES: Final = frozenset(
    {
        "169.254.169.254",  # metadata of AWS, Azure, Google Cloud, Oracle, OpenStack and others
        "169.254.169.253",  # AWS: names
        "169.254.169.123",  # AWS: time
        "169.254.170.2",  # AWS: credentials of containers
        "169.254.170.23",
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle, of old
        "fd00:ec2::254",  # AWS
        "fd00:ec2::253",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google Cloud
    }
)
"""Addresses at which a cloud tells a host its secrets: no node has them."""


def plain_address(text: str) -> str:
    """The address without a zone and a prefix's length; of an IPv4 address in IPv6's clothes ("::ffff:10.0.0.1") the IPv4 one."""
    address = as_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)


def addresses_of(snapshot: Snapshot | None) -> frozenset[str]:
    """Those that a host says it has."""
    return frozenset(map(plain_address, _written(snapshot)))


def networks_of(snapshot: Snapshot | None) -> tuple[IpNetwork, ...]:
    """Those that a host says it is in."""
    without_zones = (re.sub(r"%[^/]*", "", address) for address in _written(snapshot))
    return tuple(ipaddress.ip_interface(without_zone).network for without_zone in without_zones if "/" in without_zone)


def _written(snapshot: Snapshot | None) -> Iterator[str]:
    network = snapshot.network if snapshot is not None else None
    if isinstance(network, Network):
        for interface in network.interfaces:
            yield from interface.addresses


def near_network(address: str) -> IpNetwork:
    """The addresses around it."""
    plain = plain_address(address)
    return ipaddress.ip_network(f"{plain}/{NEAR_PREFIX_LENGTHS[as_address(plain).version]}", strict=False)


def why_no_listen_address(place: ListenAddress) -> str:
    """Why no node listens there, whichever it is; "" where one may."""
    if not is_address(place.address) or "/" in place.address:
        return f"it listens at {place.address[:40]!a}, which is no address"
    address = plain_address(place.address)
    number = as_address(address)
    odd = number.is_multicast or number.is_unspecified or address in CLOUD_SERVICES
    if odd or (number.version == 4 and number.is_reserved) or address.startswith("0."):
        return f"it says that it listens at {place.address}, which is no host's address"
    if low := [port for port in place.ports if port < LOWEST_PORT]:
        return f"it says that it listens at {place.address} on port {low[0]}, which is no port for that"
    return ""


def why_not_its_address(
    place: ListenAddress, seen: str, claimed: Collection[str], others: Collection[str], networks: Iterable[IpNetwork]
) -> str:
    """Why a node may not listen there; "" where it may.

    seen: its end of the connection to the hub. claimed: the addresses that it says it has. others: the ends of the other
    nodes' connections. networks: those that node 0 itself is in.
    """
    if why := why_no_listen_address(place):
        return why
    address = plain_address(place.address)
    if address == seen:
        return ""
    where = f"it says that it listens at {place.address}"
    if as_address(address).is_loopback:
        # A hostname that resolves to 127.0.1.1 is an illness to name, and it is of gloo; lo takes all of 127.0.0.0/8.
        needed = place.kind != "route" or as_address(seen).is_loopback
        return "" if needed else f"{where}, which is every node's own"
    if address not in claimed:
        return f"{where}, which isn't an address of its own"
    if address in others:
        return f"{where}, which is another node's address"
    number = ipaddress.ip_address(address)
    near = near_network(seen)
    if is_private_address(address) or any(number.version == net.version and number in net for net in (near, *networks)):
        return ""
    return f"{where}, which is a public address outside of the job's networks"
