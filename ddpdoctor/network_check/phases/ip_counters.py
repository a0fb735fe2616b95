"""The kernel's own counters of IP packets: they tell a packet filter on this host from one somewhere between."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.network_check.protocol.messages import Counted

FOLDER = Path("/proc/self/net")
"""Of this network namespace."""


def count(address: str, folder: Path = FOLDER) -> Counted:
    """Packets since boot that were received and not handed on, and that were to be sent and weren't, of the address's
    family (IPv4, IPv6): the nodes dial each other over no other.

    Only the growth between two calls says something, and it may be less than nothing: the kernel's counters aren't read at
    one moment. Multicasts for nobody here count as undelivered; an idle time shows how many there are. None where the files
    can't be read, or don't have the figure: OutTransmits exists since Linux 6.8.
    """
    try:
        found = _ipv6(folder) if ":" in address else _ipv4(folder)
        return Counted(undelivered=_undelivered(found), untransmitted=_untransmitted(found))
    except (OSError, ValueError):
        return Counted(undelivered=None, untransmitted=None)


def _ipv4(folder: Path) -> dict[str, int]:
    """Two lines, "Ip: Forwarding DefaultTTL ..." and "Ip: 1 64 ..."."""
    lines = (folder / "snmp").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("Ip:"))
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def _ipv6(folder: Path) -> dict[str, int]:
    """Lines like "Ip6InReceives 123", under IPv4's names."""
    pairs = (line.split() for line in (folder / "snmp6").read_text().splitlines() if line.startswith("Ip6"))
    found = {name.removeprefix("Ip6"): int(value) for name, value in pairs}
    return {**found, "ForwDatagrams": found.get("OutForwDatagrams", 0)}


def _undelivered(of: dict[str, int]) -> int | None:
    if "InReceives" not in of or "InDelivers" not in of:
        return None
    # Fragments are received one by one, and delivered as one packet.
    joined = of.get("ReasmReqds", 0) - of.get("ReasmOKs", 0)
    return of["InReceives"] - of["InDelivers"] - of.get("ForwDatagrams", 0) - joined


def _untransmitted(of: dict[str, int]) -> int | None:
    if "OutRequests" not in of or "OutTransmits" not in of:
        return None
    return of["OutRequests"] + of.get("ForwDatagrams", 0) - of["OutTransmits"]
