"""The C library's own list of this host's addresses, whose order NCCL goes by."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator


class SocketAddress(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class InterfaceAddress(ctypes.Structure):
    pass


InterfaceAddress._fields_ = (
    ("next", ctypes.POINTER(InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(SocketAddress)),
)


def addresses() -> Iterator[tuple[str, str]]:
    """(interface, address) of each entry that has an address."""
    library = ctypes.CDLL(None, use_errno=True)
    entry = ctypes.POINTER(InterfaceAddress)()
    assert library.getifaddrs(ctypes.byref(entry)) == 0
    while entry:
        address = entry.contents.address.contents if entry.contents.address else None
        data = bytes(address.data) if address else b""
        if address and address.family == socket.AF_INET:
            yield entry.contents.name.decode(), socket.inet_ntop(socket.AF_INET, data[2:6])
        elif address and address.family == socket.AF_INET6:
            yield entry.contents.name.decode(), socket.inet_ntop(socket.AF_INET6, data[6:22])
        entry = entry.contents.next
