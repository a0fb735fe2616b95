"""Reads InfiniBand and RoCE devices from sysfs: the state of their ports, error counters, addresses. Opens no device."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.rdma import Gid, Rdma, RdmaPort
from ddpdoctor.probes.context import Context, by_number

DEADLINE = 10.0
"""Reading a counter asks the device's firmware, which may be stuck."""

DEVICES = "/sys/class/infiniband"
GIDS_MOST = 256
"""Entries of a port's table that are looked at; mlx5 has 255."""

ERROR_COUNTERS = {
    "counters": (
        "symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
        "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    ),
    "hw_counters": ("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "req_transport_retries_exceeded"),
}  # fmt: skip
"""Those that count something gone wrong. Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, and
NVIDIA's "Understanding mlx5 Linux counters"."""


def probe(context: Context) -> Rdma:
    ports = _ports(context)
    return Rdma(ports=ports if isinstance(ports, Unknown) else tuple(ports))


def _ports(context: Context) -> list[RdmaPort] | Unknown:
    try:
        devices = sorted(os.listdir(context.path(DEVICES)), key=by_number)  # noqa: PTH208 (names are enough)
    except FileNotFoundError:
        return []
    except OSError as error:
        return Unknown(f"{DEVICES}: {error.strerror or error}")
    return [
        _port(context, device, int(port))
        for device in devices
        for port in context.names(f"{DEVICES}/{device}/ports")
        if port.isdecimal()
    ]


def _port(context: Context, device: str, port: int) -> RdmaPort:
    folder = f"{DEVICES}/{device}/ports/{port}"
    return RdmaPort(
        device=device,
        port=port,
        link_layer=context.text(f"{folder}/link_layer"),
        state=_word(context.text(f"{folder}/state")),
        physical=_word(context.text(f"{folder}/phys_state")),
        rate=context.text(f"{folder}/rate"),
        firmware=context.text(f"{DEVICES}/{device}/fw_ver"),
        counters=tuple(_counters(context, folder, f"{DEVICES}/{device}")),
        gids=tuple(_gids(context, folder)),
        interfaces=tuple(context.names(f"{DEVICES}/{device}/device/net")),
    )


def _counters(context: Context, port: str, device: str) -> Iterator[tuple[str, int]]:
    """Those that aren't zero. Older drivers keep hw_counters beside the ports."""
    for kind, names in ERROR_COUNTERS.items():
        for name in names:
            folders = (port, device) if kind == "hw_counters" else (port,)
            text = next(filter(None, (context.text(f"{folder}/{kind}/{name}") for folder in folders)), "")
            if text.isdecimal() and int(text):
                yield name, int(text)


def _gids(context: Context, port: str) -> Iterator[Gid]:
    rows = [int(name) for name in context.names(f"{port}/gids") if name.isdecimal()]
    for index in rows[:GIDS_MOST]:
        # An empty row of the table gives EINVAL.
        gid = context.text(f"{port}/gids/{index}")
        if gid.strip("0:"):
            yield Gid(
                index=index,
                gid=gid,
                type=context.text(f"{port}/gid_attrs/types/{index}"),
                interface=context.text(f"{port}/gid_attrs/ndevs/{index}"),
            )


def _word(text: str) -> str:
    """ "4: ACTIVE" as "ACTIVE"."""
    return text.partition(":")[2].strip() or text
