"""Predicts which interface NCCL and gloo will take: their rules over this host's interfaces. Pure: looks at facts alone.

NCCL walks getifaddrs: the IPv4 addresses of all interfaces in the kernel's order, then the IPv6 ones. gloo asks the
resolver for the hostname's addresses and takes the first that it can bind.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, NotKnown
from ddpdoctor.facts.network import Interface

NEWEST = (99,)
"""Stands for a version of NCCL that isn't known: judged by the newest rules."""

FIRST_VERSION_THAT_NEEDS_A_CARRIER = (2, 28, 3)
"""Since then NCCL wants IFF_RUNNING, and ranks virbr* behind docker* and lo."""

INET, INET6 = 4, 6

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class InterfaceChoice(msgspec.Struct, frozen=True):
    """An interface and the address on it (without a prefix length). `reason` says by which rule it was taken."""

    interface: str
    address: str
    reason: str


class CandidateInterface(msgspec.Struct, frozen=True):
    """One address of one interface, in the order in which getifaddrs gives them."""

    interface: Interface
    address: str

    @property
    def family(self) -> int:
        """4 or 6."""
        return as_address(self.address).version


@cache
def as_address(text: str) -> Address:
    """An address written with or without a prefix length or a zone ("fe80::1%eth0/64"). It raises what `network_around` does."""
    return _with_prefix(text.partition("/")[0]).ip


def network_around(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network that an address is in, by its prefix length. It raises `NotKnown` where it is none; a snapshot may hold anything."""
    return _with_prefix(text).network


def _with_prefix(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    try:
        return ipaddress.ip_interface(re.sub(r"%[^/]*", "", text))
    except ValueError as error:
        raise NotKnown(f"{text[:60]!r} is no IP address") from error


def version_of(version: Maybe[str | None]) -> tuple[int, ...]:
    """ "2.28.9" as (2, 28, 9); `NEWEST` where it isn't known."""
    if not isinstance(version, str):
        return NEWEST
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def in_kernel_order(interfaces: Sequence[Interface]) -> list[CandidateInterface]:
    """All addresses as getifaddrs gives them: every IPv4 address first, then every IPv6 address."""
    found = [
        CandidateInterface(interface, address.partition("/")[0])
        for interface in interfaces
        for address in interface.addresses
    ]
    return [candidate for candidate in found if candidate.family == INET] + [
        candidate for candidate in found if candidate.family == INET6
    ]


class NcclFilter(msgspec.Struct, frozen=True):
    """NCCL_SOCKET_IFNAME taken apart. `names` are prefixes unless `exact`; `exclude` turns the whole list round."""

    names: tuple[str, ...]
    exact: bool = False
    exclude: bool = False

    def takes(self, name: str) -> bool:
        """Whether an interface of that name passes. An empty list matches all names, so "^" alone passes none."""
        matched = not self.names or any(
            name == listed_name if self.exact else name.startswith(listed_name) for listed_name in self.names
        )
        return matched != self.exclude


def parse_nccl_filter(value: str) -> NcclFilter:
    """Read "eth", "=eth0,eth1", "^docker,lo" and "^=docker0". A ":port" after a name is dropped, as NCCL does here."""
    exclude, value = value.startswith("^"), value.removeprefix("^")
    exact, value = value.startswith("="), value.removeprefix("=")
    names = (token.partition(":")[0] for token in value.split(","))
    return NcclFilter(tuple(filter(None, names)), exact, exclude)


def nccl_ifname_counts(value: str) -> bool:
    """NCCL ignores a NCCL_SOCKET_IFNAME of one character or none."""
    return len(value) > 1


def nccl_family(value: str) -> int | None:
    """Read what NCCL_SOCKET_FAMILY asks for: 4, 6, or None where it is unset or says neither AF_INET nor AF_INET6."""
    return {"AF_INET": INET, "AF_INET6": INET6}.get(value)


def _nccl_candidates(
    interfaces: Sequence[Interface], version: Sequence[int], family: int | None
) -> list[CandidateInterface]:
    needs_carrier = tuple(version) >= FIRST_VERSION_THAT_NEEDS_A_CARRIER
    return [
        interface
        for interface in in_kernel_order(interfaces)
        if (family is None or interface.family == family)
        and not (interface.family == INET6 and as_address(interface.address).is_loopback)
        and (interface.interface.running or not needs_carrier)
    ]


def _automatic_rounds(version: Sequence[int]) -> Iterator[tuple[str, str]]:
    """NCCL's own order where nothing is set: a filter a round, with the reason it stands for."""
    last = ["docker", "lo"] + (["virbr"] if tuple(version) >= FIRST_VERSION_THAT_NEEDS_A_CARRIER else [])
    yield f"^{','.join(last)}", f"the first that is neither {', '.join(last[:-1])} nor {last[-1]}"
    for place, name in enumerate(last):
        yield name, f"nothing but {listed(last[place:])}"


def _host_of(comm_id: str) -> Address | None:
    """The address in NCCL_COMM_ID ("10.0.0.1:5000", "[fe80::1]:5000"); None where it is a name."""
    host = comm_id[1:].partition("]")[0] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    try:
        return as_address(host)
    except NotKnown:
        return None


def nccl_choices(
    interfaces: Sequence[Interface],
    *,
    ifname: str = "",
    family: str = "",
    comm_id: str = "",
    version: Sequence[int] = NEWEST,
) -> list[InterfaceChoice]:
    """List the interfaces that NCCL takes, best first, one address each. Bootstrap takes the first, the socket transport all.

    ifname, family: NCCL_SOCKET_IFNAME and _FAMILY. comm_id: NCCL_COMM_ID. version: NCCL's, (2, 28, 9).
    """
    if address := _host_of(comm_id):
        # Bootstrap then only looks at the subnet, whatever the other settings say, and fails where none matches.
        near = [
            candidate
            for candidate in in_kernel_order(interfaces)
            for text in candidate.interface.addresses
            if text.partition("/")[0] == candidate.address and address in network_around(text)
        ]
        return _passed(near, NcclFilter(()), "it is in the subnet of NCCL_COMM_ID")[:1]
    candidates = _nccl_candidates(interfaces, version, nccl_family(family))
    if nccl_ifname_counts(ifname):
        return _passed(candidates, parse_nccl_filter(ifname), f"NCCL_SOCKET_IFNAME={ifname}")
    if choices := _passed(candidates, parse_nccl_filter("ib"), "its name begins with ib"):
        return choices
    for text, reason in _automatic_rounds(version):
        if choices := _passed(candidates, parse_nccl_filter(text), reason):
            return choices
    return []


def left_out_by_family(
    interfaces: Sequence[Interface], *, ifname: str, family: str, version: Sequence[int] = NEWEST
) -> bool:
    """Whether NCCL_SOCKET_FAMILY alone leaves NCCL without an interface."""
    found = nccl_choices(interfaces, ifname=ifname, family=family, version=version)
    return not found and bool(nccl_choices(interfaces, ifname=ifname, version=version))


def _passed(candidates: Sequence[CandidateInterface], wanted: NcclFilter, reason: str) -> list[InterfaceChoice]:
    first: dict[str, InterfaceChoice] = {}
    for candidate in candidates:
        if wanted.takes(candidate.interface.name):
            first.setdefault(
                candidate.interface.name, InterfaceChoice(candidate.interface.name, candidate.address, reason)
            )
    return list(first.values())


def interface_with(address: str, interfaces: Sequence[Interface]) -> str | None:
    """The name of the interface on which a socket bound to that address would be; None: it can't be bound here.

    All of 127.0.0.0/8 can be bound as soon as the loopback is up.
    """
    wanted = as_address(address)
    for candidate in in_kernel_order(interfaces):
        if as_address(candidate.address) == wanted:
            return candidate.interface.name
    if wanted.version == INET and wanted.is_loopback:
        return next((interface.name for interface in interfaces if interface.loopback and interface.up), None)
    return None


def in_a_subnet_of(address: str, interfaces: Sequence[Interface]) -> bool:
    """Whether an interface other than the loopback leads to that address without a gateway."""
    wanted = as_address(address)
    own = (text for interface in interfaces if not interface.loopback for text in interface.addresses if "/" in text)
    return any(wanted in network_around(text) for text in own)


FELL_BACK = "no address of the hostname can be bound, so torch falls back to 127.0.0.1"
RESOLVED = "the hostname resolves to it"


def names_in(value: str) -> Iterator[str]:
    """The exact names in GLOO_SOCKET_IFNAME."""
    yield from (name for name in value.split(",") if name)


def gloo_choice(
    interfaces: Sequence[Interface], hostname_addresses: Sequence[str], *, ifname: str = ""
) -> InterfaceChoice | None:
    """Choose the interface that gloo takes as torch sets it up; None: it raises "Unable to find address for".

    hostname_addresses: what getaddrinfo says of the hostname, in its order. ifname: GLOO_SOCKET_IFNAME.
    """
    names = list(names_in(ifname))
    if names:
        # The first address of each counts.
        known = {found.interface.name: found.address for found in reversed(in_kernel_order(interfaces))}
        if any(name not in known for name in names):
            return None
        return InterfaceChoice(names[0], known[names[0]], f"GLOO_SOCKET_IFNAME={ifname}")
    for address in hostname_addresses:
        if name := interface_with(address, interfaces):
            return InterfaceChoice(name, address, RESOLVED)
    loopback = interface_with("127.0.0.1", interfaces)
    return InterfaceChoice(loopback, "127.0.0.1", FELL_BACK) if loopback else None
