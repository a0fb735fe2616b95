"""Reads this host's network interfaces in the order in which NCCL walks them: getifaddrs through the C library."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import Interface
from ddpdoctor.probes.context import Context

IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
SIOCGIFMTU = 0x8921

NETLINK_ROUTE: Final = 0
RTM_GETQDISC, NLMSG_ERROR, NLMSG_DONE = 38, 2, 3
NLM_F_REQUEST_DUMP: Final = 0x301
TC_H_ROOT: Final = 0xFFFFFFFF
TCA_KIND: Final = 1
HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, sender."""
QDISC: Final = struct.Struct("=BxxxiIII")
"""struct tcmsg: family, interface's index, handle, parent, info."""
ATTRIBUTE: Final = struct.Struct("=HH")
NETLINK_SECONDS: Final = 2.0
"""The kernel answers at once; nothing may hang on it."""


class _SocketAddress(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _InterfaceAddress(ctypes.Structure):
    pass


_InterfaceAddress._fields_ = (
    ("next", ctypes.POINTER(_InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
    ("netmask", ctypes.POINTER(_SocketAddress)),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)

Entry = tuple[str, int, str]
"""Name, flags, and "10.0.0.1/24"; an interface's own entry has "" for the address."""


def getifaddrs() -> list[Entry]:
    """Call getifaddrs, and keep its order.

    Raises:
        OSError: the C library could not ask the kernel.
    """
    library = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_InterfaceAddress)()
    if library.getifaddrs(ctypes.byref(head)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "getifaddrs failed")
    try:
        return list(_walk(head))
    finally:
        library.freeifaddrs(head)


def _walk(pointer: ctypes._Pointer[_InterfaceAddress]) -> Iterator[Entry]:
    while pointer:
        entry = pointer.contents
        name = entry.name.decode("utf-8", "replace")
        family = entry.address.contents.family if entry.address else socket.AF_UNSPEC
        if family in (socket.AF_INET, socket.AF_INET6):
            yield name, entry.flags, f"{_text(entry.address.contents)}/{_prefix(entry.netmask)}"
        else:
            yield name, entry.flags, ""
        pointer = entry.next


def _raw(address: _SocketAddress) -> bytes:
    """The address itself: behind the port in sockaddr_in, behind port and flow label in sockaddr_in6."""
    data = bytes(address.data)
    return data[2:6] if address.family == socket.AF_INET else data[6:22]


def _text(address: _SocketAddress) -> str:
    return str(ipaddress.ip_address(_raw(address)))


def _prefix(netmask: ctypes._Pointer[_SocketAddress]) -> int:
    if not netmask:
        return 32
    return int.from_bytes(_raw(netmask.contents), "big").bit_count()


def read_interfaces(context: Context) -> tuple[Interface, ...] | Unknown:
    """All interfaces, in the kernel's order, also those without an address."""
    try:
        entries = getifaddrs()
    except OSError as error:
        return Unknown(f"getifaddrs: {error.strerror}")
    names: list[str] = []
    for name, _, _ in entries:
        if name in names:
            continue
        # "eth0:1" is a second name for eth0, which only its address carries.
        base = name.partition(":")[0]
        names.insert(names.index(base) + 1 if base in names else len(names), name)
    qdiscs = read_qdiscs()
    return tuple(_interface(context, name, [entry for entry in entries if entry[0] == name], qdiscs) for name in names)


def _interface(context: Context, name: str, entries: list[Entry], qdiscs: dict[str, str]) -> Interface:
    flags = entries[0][1]
    device = context.path(f"/sys/class/net/{name.partition(':')[0]}")
    speed = context.read(f"/sys/class/net/{name.partition(':')[0]}/speed")
    return Interface(
        name=name,
        addresses=tuple(address for _, _, address in entries if address),
        up=bool(flags & IFF_UP),
        running=bool(flags & IFF_RUNNING),
        loopback=bool(flags & IFF_LOOPBACK),
        mtu=_mtu(name),
        speed=_number(speed),
        virtual="/virtual/" in str(device.resolve()),
        qdisc=qdiscs.get(name.partition(":")[0], ""),
    )


def _number(text: str | Unknown) -> int:
    with suppress(ValueError):
        return int(text) if isinstance(text, str) else -1
    return -1


def _mtu(name: str) -> int:
    """Asked of the kernel: /sys may show another network namespace's interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        answer = fcntl.ioctl(any_socket, SIOCGIFMTU, struct.pack("16sI12x", name.encode()[:15], 0))
        return int(struct.unpack("16sI12x", answer)[1])
    return 1500


def read_qdiscs() -> dict[str, str]:
    """Read over rtnetlink, since `tc` may not be installed, which queueing discipline stands at the root of each interface.

    Interface's name to the kind of its root discipline: {"eth0": "tbf"}. Empty where the kernel doesn't tell."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as kernel:
            kernel.settimeout(NETLINK_SECONDS)
            body = QDISC.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            kernel.send(HEADER.pack(HEADER.size + len(body), RTM_GETQDISC, NLM_F_REQUEST_DUMP, 1, 0) + body)
            return dict(_root_qdiscs(_netlink_answers(kernel)))
    except (OSError, struct.error):
        return {}


def _netlink_answers(kernel: socket.socket) -> Iterator[bytes]:
    while True:
        data = kernel.recv(1 << 16)
        while len(data) >= HEADER.size:
            length, kind, *_ = HEADER.unpack_from(data)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < HEADER.size:
                return
            yield data[HEADER.size : length]
            data = data[_aligned(length) :]


def _root_qdiscs(answers: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for answer in answers:
        _, index, _, parent, _ = QDISC.unpack_from(answer)
        if parent != TC_H_ROOT:
            continue
        at = QDISC.size
        while at + ATTRIBUTE.size <= len(answer):
            length, kind = ATTRIBUTE.unpack_from(answer, at)
            if kind == TCA_KIND:
                yield socket.if_indextoname(index), os.fsdecode(answer[at + ATTRIBUTE.size : at + length].rstrip(b"\0"))
                break
            at += max(_aligned(length), ATTRIBUTE.size)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
