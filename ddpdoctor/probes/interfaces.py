"""Reads this host's network interfaces in the order in which NCCL walks them: the kernel's own, by which getifaddrs lists them."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import Interface
from ddpdoctor.probes.context import Context

IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40

NETLINK_ROUTE: Final = 0
RTM_GETLINK, RTM_GETADDR, NLMSG_ERROR, NLMSG_DONE = 18, 22, 2, 3
NLM_F_REQUEST_DUMP: Final = 0x301
HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, sender."""
LINK: Final = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, type, index, flags, changed flags."""
ADDRESS: Final = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, length of the prefix, flags, scope, interface's index."""
ATTRIBUTE: Final = struct.Struct("=HH")
IFLA_IFNAME, IFLA_MTU, IFLA_QDISC = 3, 4, 6
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
NO_QDISC: Final = "noop"
"""Stands in place of a queueing discipline while an interface is down."""
NETLINK_SECONDS: Final = 2.0
"""The kernel answers at once; nothing may hang on it."""


class _Link(NamedTuple):
    name: str
    flags: int
    mtu: int
    qdisc: str


def read_interfaces(context: Context) -> tuple[Interface, ...] | Unknown:
    """All interfaces, in the kernel's order, also those without an address."""
    try:
        links = dict(_links())
        addresses = list(_addresses(links))
    except (OSError, struct.error, AttributeError) as error:
        return Unknown(f"rtnetlink: {getattr(error, 'strerror', None) or error}")
    names = [link.name for link in links.values()]
    # "eth0:1" is a second name for eth0, which only its address carries.
    for name, index, _ in addresses:
        if name not in names:
            names.insert(names.index(links[index].name) + 1, name)
    by_name = {link.name: link for link in links.values()} | {name: links[index] for name, index, _ in addresses}
    return tuple(
        _interface(context, name, by_name[name], [address for label, _, address in addresses if label == name])
        for name in names
    )


def _interface(context: Context, name: str, link: _Link, addresses: list[str]) -> Interface:
    device = f"/sys/class/net/{link.name}"
    return Interface(
        name=name,
        addresses=tuple(addresses),
        up=bool(link.flags & IFF_UP),
        running=bool(link.flags & IFF_RUNNING),
        loopback=bool(link.flags & IFF_LOOPBACK),
        mtu=link.mtu,
        speed=context.number(f"{device}/speed", -1),
        virtual="/virtual/" in str(context.path(device).resolve()),
        qdisc=link.qdisc,
    )


def _links() -> Iterator[tuple[int, _Link]]:
    for (_, _, index, flags, _), attributes in _dump(RTM_GETLINK, LINK):
        qdisc = _text(attributes.get(IFLA_QDISC, b""))
        mtu = int.from_bytes(attributes.get(IFLA_MTU, b""), sys.byteorder) or 1500
        yield index, _Link(_text(attributes[IFLA_IFNAME]), flags, mtu, "" if qdisc == NO_QDISC else qdisc)


def _addresses(links: dict[int, _Link]) -> Iterator[tuple[str, int, str]]:
    """The interface's name, or the address's own, the interface's index, and "10.0.0.1/24"."""
    for (family, prefix, _, _, index), attributes in _dump(RTM_GETADDR, ADDRESS):
        # Of a link between two hosts the first is the other's.
        raw = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        if raw and index in links and family in (socket.AF_INET, socket.AF_INET6):
            label = _text(attributes.get(IFA_LABEL, b"")) or links[index].name
            yield label, index, f"{socket.inet_ntop(family, raw)}/{prefix}"


def _dump(question: int, body: struct.Struct) -> Iterator[tuple[tuple[int, ...], dict[int, bytes]]]:
    """Ask the kernel for a whole table: of each row the fields of its head, and its attributes by their number.

    Raises:
        OSError: the kernel refuses.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as kernel:
        kernel.settimeout(NETLINK_SECONDS)
        kernel.send(HEADER.pack(HEADER.size + body.size, question, NLM_F_REQUEST_DUMP, 1, 0) + bytes(body.size))
        while True:
            data = kernel.recv(1 << 16)
            while len(data) >= HEADER.size:
                length, kind, *_ = HEADER.unpack_from(data)
                if kind == NLMSG_DONE or length < HEADER.size:
                    return
                row = data[HEADER.size : length]
                if kind == NLMSG_ERROR:
                    number = -int.from_bytes(row[:4], sys.byteorder, signed=True)
                    raise OSError(number, os.strerror(number))
                yield body.unpack_from(row), dict(_attributes(row, body.size))
                data = data[_aligned(length) :]


def _attributes(row: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + ATTRIBUTE.size <= len(row):
        length, kind = ATTRIBUTE.unpack_from(row, at)
        yield kind, row[at + ATTRIBUTE.size : at + length]
        at += max(_aligned(length), ATTRIBUTE.size)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _text(raw: bytes) -> str:
    return os.fsdecode(raw.rstrip(b"\0"))
