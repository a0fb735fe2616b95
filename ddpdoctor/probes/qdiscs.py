"""Reads which queueing discipline stands at the root of each interface, over rtnetlink: `tc` may not be installed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

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
SECONDS: Final = 2.0
"""The kernel answers at once; nothing may hang on it."""


def read_qdiscs() -> dict[str, str]:
    """Interface's name to the kind of its root discipline: {"eth0": "tbf"}. Empty where the kernel doesn't tell."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as kernel:
            kernel.settimeout(SECONDS)
            body = QDISC.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            kernel.send(HEADER.pack(HEADER.size + len(body), RTM_GETQDISC, NLM_F_REQUEST_DUMP, 1, 0) + body)
            return dict(_named(_answers(kernel)))
    except (OSError, struct.error):
        return {}


def _answers(kernel: socket.socket) -> Iterator[bytes]:
    while True:
        data = kernel.recv(1 << 16)
        while len(data) >= HEADER.size:
            length, kind, *_ = HEADER.unpack_from(data)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < HEADER.size:
                return
            yield data[HEADER.size : length]
            data = data[_aligned(length) :]


def _named(answers: Iterator[bytes]) -> Iterator[tuple[str, str]]:
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
