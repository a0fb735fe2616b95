"""The kernel's own counters of IP packets: they tell a packet filter on this host from one somewhere between."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.netcheck.messages import Counted

SNMP = Path("/proc/self/net/snmp")
"""Of this network namespace; /proc/net leads to the same."""
SNMP6 = Path("/proc/self/net/snmp6")


def count(snmp: Path = SNMP, snmp6: Path = SNMP6) -> Counted:
    """Packets since boot that were received and not handed on, and that were to be sent and weren't, over IPv4 and IPv6.

    Only the growth between two calls says something: fragments and broadcasts are among them, too. None where the files
    can't be read, or don't have the figure: OutTransmits exists since Linux 6.8.
    """
    found = _ipv4(snmp)
    if found is None:
        return Counted(undelivered=None, untransmitted=None)
    six = _ipv6(snmp6)
    return Counted(
        undelivered=_sum(_undelivered(found), _undelivered(six)),
        untransmitted=_sum(_untransmitted(found), _untransmitted(six)),
    )


def _ipv4(path: Path) -> dict[str, int] | None:
    """The two lines "Ip: Forwarding DefaultTTL ..." and "Ip: 1 64 ..."."""
    try:
        lines = [line.split()[1:] for line in path.read_text().splitlines() if line.startswith("Ip:")]
        names, values = lines
        return {name: int(value) for name, value in zip(names, values, strict=True)}
    except (OSError, ValueError):
        return None


def _ipv6(path: Path) -> dict[str, int]:
    """Lines like "Ip6InReceives 123", under IPv4's names; empty where there is no IPv6."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines() if line.startswith("Ip6")]
        found = {name.removeprefix("Ip6"): int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}
    return {**found, "ForwDatagrams": found.get("OutForwDatagrams", 0)}


def _undelivered(of: dict[str, int]) -> int | None:
    if "InReceives" not in of or "InDelivers" not in of:
        return None if of else 0
    # Fragments are received one by one, and delivered as one packet.
    joined = of.get("ReasmReqds", 0) - of.get("ReasmOKs", 0)
    return of["InReceives"] - of["InDelivers"] - of.get("ForwDatagrams", 0) - joined


def _untransmitted(of: dict[str, int]) -> int | None:
    if "OutRequests" not in of or "OutTransmits" not in of:
        return None if of else 0
    return of["OutRequests"] + of.get("ForwDatagrams", 0) - of["OutTransmits"]


def _sum(four: int | None, six: int | None) -> int | None:
    return None if four is None or six is None else four + six
