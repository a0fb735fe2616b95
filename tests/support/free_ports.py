"""Ports for servers that tests start a moment later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

HERE = "127.0.0.1"


def free_ports(count: int = 1) -> list[int]:
    """Ports that were free a moment ago, outside of the ephemeral range, so that no dialled socket is given one."""
    found: list[int] = []
    for port in random.sample(range(15_000, 32_000), 200):
        with socket.socket() as one, suppress(OSError):
            one.bind((HERE, port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def free_port() -> int:
    """One of them."""
    return free_ports()[0]
