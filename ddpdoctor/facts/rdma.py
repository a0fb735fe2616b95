"""InfiniBand and RoCE devices, as sysfs shows them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a port's table of addresses that isn't empty."""

    index: int
    gid: str
    """"fe80:0000:...", "0000:0000:0000:0000:0000:ffff:0a00:000b"."""
    type: str
    """"IB/RoCE v1", "RoCE v2"."""
    interface: str = ""
    """The network interface that it belongs to."""


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    """One port of one device."""

    device: str
    port: int
    link_layer: str
    """"InfiniBand" or "Ethernet"."""
    state: str
    """"ACTIVE", "DOWN", "INIT", "ARMED"."""
    physical: str = ""
    """"LinkUp", "Disabled", "Polling"."""
    rate: str = ""
    """"400 Gb/sec (4X NDR)"."""
    firmware: str = ""
    """Its device's: "28.39.1002"; "" unknown."""
    counters: tuple[tuple[str, int], ...] = ()
    """Error counters that aren't zero: ("symbol_error", 12)."""
    gids: tuple[Gid, ...] = ()
    interfaces: tuple[str, ...] = ()
    """Network interfaces of the same device."""


class Rdma(Facts, frozen=True, kw_only=True):
    """Empty where there is no such device."""

    ports: Annotated[Maybe[tuple[RdmaPort, ...]], Source("/sys/class/infiniband")] = ()
