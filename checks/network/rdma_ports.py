"""The InfiniBand and RoCE ports that NCCL would use, and those of a RoCE port's addresses that serve it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.rdma import Gid, RdmaPort

ACTIVE = "ACTIVE"
ROCE = "Ethernet"
VERSION_2 = "RoCE v2"
IPV4_MAPPED = "0000:0000:0000:0000:0000:ffff:"
LINK_LOCAL = "fe80:"


def called(port: RdmaPort) -> str:
    """ "mlx5_0", or "mlx5_0 port 2" where it isn't the first."""
    return port.device if port.port == 1 else f"{port.device} port {port.port}"


def infiniband_off(environment: Environment) -> str:
    """The setting by which NCCL leaves all these devices alone, "" where there is none."""
    if environment.get("NCCL_IB_DISABLE").strip() not in ("", "0"):
        return f"NCCL_IB_DISABLE={environment.get('NCCL_IB_DISABLE')}"
    net = environment.get("NCCL_NET").strip()
    return f"NCCL_NET={net}" if net.lower() == "socket" else ""


def named(port: RdmaPort, wanted: str) -> bool:
    """Whether NCCL_IB_HCA names this port by itself, without "^": prefixes of device names, "=" for whole ones, each with
    ":PORT" behind it where only that port is meant."""
    return bool(wanted.strip()) and not wanted.startswith("^") and _listed(port, wanted)


def wanted_by(port: RdmaPort, wanted: str) -> bool:
    """Whether NCCL, with that NCCL_IB_HCA, would use the port once it is up."""
    if not wanted.strip():
        return True
    return not _listed(port, wanted) if wanted.startswith("^") else _listed(port, wanted)


def _listed(port: RdmaPort, wanted: str) -> bool:
    text = wanted.removeprefix("^")
    exact = text.startswith("=")
    for word in text.removeprefix("=").split(","):
        device, _, number = word.strip().partition(":")
        if number and number != str(port.port):
            continue
        if device and (port.device == device if exact else port.device.startswith(device)):
            return True
    return False


def has_version_2(gid: Gid) -> bool:
    return gid.type == VERSION_2


def serves(gid: Gid) -> bool:
    """Whether it is RoCE v2 over an IPv4 address: one that routers, and networks of several switches, carry."""
    return has_version_2(gid) and gid.gid.lower().startswith(IPV4_MAPPED)


def ipv4(gid: Gid) -> str:
    """The IPv4 address in it, "10.0.0.11"; "" where it holds none."""
    if not gid.gid.lower().startswith(IPV4_MAPPED):
        return ""
    digits = gid.gid.replace(":", "")[-8:]
    return ".".join(str(int(digits[at : at + 2], 16)) for at in range(0, 8, 2))


def common_index(ports: Sequence[RdmaPort]) -> int | None:
    """The lowest row that is RoCE v2 over IPv4 on all of these ports, so that one NCCL_IB_GID_INDEX serves them all."""
    rows: set[int] | None = None
    for port in ports:
        good = {gid.index for gid in port.gids if serves(gid)}
        rows = good if rows is None else rows & good
    return min(rows) if rows else None


def at(port: RdmaPort, index: int) -> Gid | None:
    return next((gid for gid in port.gids if gid.index == index), None)


def active(ports: Iterable[RdmaPort]) -> list[RdmaPort]:
    return [port for port in ports if port.state == ACTIVE]
