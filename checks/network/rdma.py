"""InfiniBand and RoCE: the state of the ports, their error counters, and which address NCCL takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, if_known, known
from ddpdoctor.engine.registry import check, judged_apart, required, requires
from ddpdoctor.facts.rdma import Gid, Rdma, RdmaPort
from ddpdoctor.facts.snapshot import Environment, Nccl, Network
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.job_intent import several_nodes
from ddpdoctor.knowledge.network_fixes import setting
from ddpdoctor.knowledge.wheels import older

ACTIVE = "ACTIVE"
ROCE = "Ethernet"
VERSION_2 = "RoCE v2"
IPV4_MAPPED = "0000:0000:0000:0000:0000:ffff:"
LINK_LOCAL = "fe80:"

NO_DEVICE = "no InfiniBand or RoCE device on this host"

PORTS = "/sys/class/infiniband/*/ports/*"
"""Every host has that, and few have ibstat or show_gids."""

THRESHOLDS = {
    # Physical errors: a good link has next to none, but the cable's plugging in and the start of its peer leave some.
    "symbol_error": 100,
    "port_rcv_errors": 100,
    "port_rcv_remote_physical_errors": 100,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 10,
    # Every restart of the switch, and every re-plugging, takes the link down once.
    "link_downed": 5,
    "link_error_recovery": 5,
    # Each is a packet that was waited for in vain. A peer that was killed leaves dozens, lossy fabrics without flow control
    # thousands.
    "local_ack_timeout_err": 1000,
    "packet_seq_err": 1000,
    # Each took a connection down ("error 12"), up to one for each of a killed job's connections.
    "req_transport_retries_exceeded": 100,
}
"""Counts since the driver was loaded from which on an error counter is worth a look. out_of_sequence isn't among them: with
adaptive routing packets overtake each other all the time."""

CHOOSES_BY_ITSELF = "2.21"
"""From here on NCCL takes a RoCE v2 address of the right family by itself where NCCL_IB_GID_INDEX isn't set."""


def _in_use(rdma: Rdma, environment: Environment) -> tuple[RdmaPort, ...]:
    """The ports of this host; ends the check where NCCL is kept from them."""
    ports = known(rdma.ports)
    requires(ports, NO_DEVICE)
    off = infiniband_off(environment)
    requires(not off, f"{off} keeps NCCL from these devices")
    return ports


@check("ib-link-error", severity=WARN, owner=Owner.NODE)
def ib_link_error(rdma: Rdma, environment: Environment, network: Network) -> Iterator[Finding]:
    """An InfiniBand or RoCE port is down, or counts errors.

    ## What breaks
    NCCL passes over ports that aren't active: the node has fewer links than its peers and slows all down, or goes over TCP
    alone. A port with errors ends in "Got completion with error 12", minutes or hours into the training.

    ## Why
    A pulled or bad cable, a switch port that is off, no subnet manager (state INIT), a failing transceiver, or a lossy
    Ethernet without flow control. Counters run since the driver was loaded, so old troubles show in them, too.

    ## Fix
    `ibstat` or `rdma link` shows the ports. Re-seat or change the cable; ask the administrator to look at the switch's port.
    Until then `NCCL_IB_HCA` names the good ports, on each node its own.
    Where a RoCE port fails as soon as it connects, it is rather its address: `ddpdoctor check --select roce-gid-index`.
    """
    ports, hca = _in_use(rdma, environment), environment.get("NCCL_IB_HCA")
    wanted = [port for port in ports if wanted_by(port, hca)]
    requires(wanted, "NCCL_IB_HCA leaves all these devices out")
    looks = (_ports_down(rdma, wanted, hca, environment, network), _ports_with_errors(rdma, wanted))
    yield from judged_apart(looks)


def _ports_down(
    rdma: Rdma, ports: Sequence[RdmaPort], hca: str, environment: Environment, network: Network
) -> Iterator[Finding]:
    down = [port for port in ports if port not in active(ports) and port.state]
    if not down:
        return
    severity = max(
        (_weight(port, ports, hca, environment, network) for port in down), key=lambda severity: -severity.rank
    )
    first = down[0]
    others = f" and {plural(len(down) - 1, 'other port')}" if len(down) > 1 else ""
    yield Finding.of(
        f"{called(first)}{others} {'is' if len(down) == 1 else 'are'} {first.state} ({first.physical or 'no reason told'}), "
        f"{len(active(ports))} of {plural(len(ports), 'port')} active",
        (told(rdma, "ports", _state(port)) for port in down[:8]),
        setting(environment, "NCCL_IB_HCA") if hca else None,
        Fix(
            "See what the ports say, and look at the cables of those that are down",
            (f"grep . {PORTS}/state {PORTS}/phys_state",),
        ),
        () if severity is INFO else _only_good(ports, down),
        cause=_why_down(first, ports, severity),
        severity=severity,
    )
    known(network)


def _weight(
    port: RdmaPort, ports: Sequence[RdmaPort], hca: str, environment: Environment, network: Network
) -> Severity:
    """The severity of this port's being down. Spare ports that never had a cable are common, and no illness."""
    if named(port, hca):
        return FAIL
    alone = not active(ports)
    if alone and (environment.get("NCCL_NET").strip().upper() == "IB"):
        return FAIL
    if alone and port.link_layer != ROCE:
        # Its peers take InfiniBand, this node TCP, and NCCL doesn't mix them.
        return FAIL if if_known(several_nodes, environment, network, default="") else WARN
    interfaces = if_known(lambda: network.interfaces, default=())
    has_address = any(interface.addresses for interface in interfaces if interface.name in port.interfaces)
    was_up = dict(port.counters).get("link_downed", 0) > 0
    stuck = port.state in ("INIT", "ARMED")
    same_kind_works = any(active_port.link_layer == port.link_layer for active_port in active(ports))
    return WARN if stuck or (same_kind_works and (has_address or was_up)) else INFO


def _why_down(port: RdmaPort, ports: Sequence[RdmaPort], severity: Severity) -> str:
    if port.state in ("INIT", "ARMED"):
        return "The cable works, but no subnet manager has brought the port up: it runs on a switch, or as opensm on a node."
    if severity is INFO:
        return "If nothing is plugged in there, that is as it should be: NCCL passes over it."
    if not active(ports):
        return "Without an active port NCCL goes over TCP, many times slower; where peers use InfiniBand, it doesn't start at all."
    return "The port was up before, or is meant to be used: a pulled or bad cable, or the switch's port is off."


def _state(port: RdmaPort) -> str:
    speed = f", {port.rate}" if port.rate else ""
    return f"{called(port)}: {port.state}, {port.physical or 'physical state unknown'}, {port.link_layer}{speed}"


def _only_good(ports: Sequence[RdmaPort], bad: Sequence[RdmaPort]) -> tuple[Fix, ...]:
    good = [port for port in active(ports) if port not in bad]
    words = ",".join(port.device if port.port == 1 else f"{port.device}:{port.port}" for port in good)
    text, command = (
        "Until then use the good ones alone (== means exactly these)",
        f"export NCCL_IB_HCA=={shlex.quote(words)}",
    )
    return (Fix(text, (command,)),) if good else ()


def _ports_with_errors(rdma: Rdma, ports: Sequence[RdmaPort]) -> Iterator[Finding]:
    bad = [port for port in active(ports) if _errors(port)]
    if not bad:
        return
    first = bad[0]
    others = f" (and {plural(len(bad) - 1, 'other port')})" if len(bad) > 1 else ""
    folder = f"cd /sys/class/infiniband/{shlex.quote(first.device)}/ports/{first.port}"
    counters = "grep . counters/*err* counters/link_downed hw_counters/*err*"
    yield Finding.of(
        f"{called(first)} counts errors{others}: {listed((f'{name} {count}' for name, count in _errors(first)), most=3)}",
        (
            told(rdma, "ports", f"{called(port)}: {listed(f'{name} {count}' for name, count in _errors(port))}")
            for port in bad[:8]
        ),
        Fix("Look whether they still grow", (f"{folder}; {counters}; sleep 60; {counters}",)),
        _only_good(ports, bad),
        cause="Such counts come from a bad cable or transceiver, or a lossy fabric; they run since the driver was loaded. If they "
        "still grow while a job runs, it is ill.",
        severity=WARN,
    )


def _errors(port: RdmaPort) -> list[tuple[str, int]]:
    return [(name, count) for name, count in port.counters if name in THRESHOLDS and count >= THRESHOLDS[name]]


@check("roce-gid-index", severity=FAIL, owner=Owner.USER)
def roce_gid_index(rdma: Rdma, environment: Environment, nccl: Maybe[Nccl]) -> Iterator[Finding]:
    """NCCL takes an address of a RoCE port that doesn't lead to the other nodes.

    ## What breaks
    "Got completion with error 12" or "ibv_modify_qp failed" as soon as NCCL connects, although every other test of the
    network passes.

    ## Why
    A RoCE port has a table of addresses (GIDs), one for each of its IP addresses and RoCE versions. NCCL_IB_GID_INDEX picks
    the row, and the rows differ from node to node and change with drivers. An empty row, RoCE v1 or a link-local address
    doesn't pass a router. NCCL before 2.21 takes row 0 where nothing is set.

    ## Fix
    With NCCL 2.21 or newer, leave NCCL_IB_GID_INDEX unset. Else set it, on each node, to the row that `show_gids` shows as v2
    with the node's IPv4 address.
    """
    ports = _in_use(rdma, environment)
    used = [
        port for port in active(ports) if port.link_layer == ROCE and wanted_by(port, environment.get("NCCL_IB_HCA"))
    ]
    requires(used, "no active RoCE port that NCCL would use")
    chosen, reason = _index(environment, nccl)
    index = required(chosen, "NCCL picks the address by itself")
    bad = [port for port in used if not _good(gid_at(port, index), port)]
    if not bad:
        return
    first = bad[0]
    gid = gid_at(first, index)
    others = f" (and {plural(len(bad) - 1, 'other port')})" if len(bad) > 1 else ""
    yield Finding.of(
        f"{reason}: on {called(first)}{others} that is {_kind(gid)}",
        setting(environment, "NCCL_IB_GID_INDEX") if environment.get("NCCL_IB_GID_INDEX") else None,
        (_table(rdma, port) for port in bad[:4]),
        _right_row(used, nccl),
        cause=_why_bad(gid, first),
        severity=FAIL if gid is None else WARN,
    )


def _index(environment: Environment, nccl: Maybe[Nccl]) -> tuple[int | None, str]:
    """The row that NCCL takes, and by whose word; None where it chooses by itself, or the setting is no number."""
    text = environment.get("NCCL_IB_GID_INDEX").strip()
    if text.isdecimal():
        return int(text), f"NCCL_IB_GID_INDEX={text}"
    version = known(known(nccl).version) if text in ("", "-1") else None
    if version and older(version, CHOOSES_BY_ITSELF):
        return 0, f"NCCL {version} takes row 0 where NCCL_IB_GID_INDEX isn't set"
    return None, ""


def _good(gid: Gid | None, port: RdmaPort) -> bool:
    """Whether the row serves, or is no worse than the others of that port."""
    if gid is None:
        return False
    # RoCE v2 over an IPv6 address that isn't link-local serves as well.
    routable = has_version_2(gid) and not gid.gid.lower().startswith(LINK_LOCAL)
    return routable or serves(gid) or not any(serves(gid) for gid in port.gids)


def _kind(gid: Gid | None) -> str:
    if gid is None:
        return "an empty row"
    if not has_version_2(gid):
        return f"a row of RoCE v1 ({ipv4(gid) or gid.gid})"
    return f"a link-local address ({gid.gid})"


def _why_bad(gid: Gid | None, port: RdmaPort) -> str:
    if gid is None:
        return "NCCL can't make a connection from an address that isn't there."
    better = next((gid for gid in port.gids if serves(gid)), None)
    where = f" Row {better.index} is RoCE v2 with {ipv4(better)}." if better else ""
    return f"It works within one Ethernet segment at best, and not where peers use another version.{where}"


def _table(rdma: Rdma, port: RdmaPort) -> Evidence:
    rows = (
        f"{gid.index} {gid.type} {ipv4(gid) or gid.gid}{f' ({gid.interface})' if gid.interface else ''}"
        for gid in port.gids
    )
    return told(rdma, "ports", f"{called(port)}: {listed(rows, most=8) or 'no rows'}")


def _right_row(used: Sequence[RdmaPort], nccl: Maybe[Nccl]) -> Fix:
    version = nccl.version if isinstance(nccl, Nccl) else None
    if isinstance(version, str) and not older(version, CHOOSES_BY_ITSELF):
        text = f"NCCL {version} finds the right row by itself: leave it to that, on every node"
        return Fix(text, ("unset NCCL_IB_GID_INDEX",), appliable=True)
    index = common_index(used)
    if index is not None:
        text = "Name the row of RoCE v2 with the IPv4 address; on other nodes, theirs"
        return Fix(text, (f"export NCCL_IB_GID_INDEX={index}",), appliable=True)
    # show_gids comes with the vendor's driver alone. Most rows are empty, and reading the type of such a one is an error.
    rows = f"grep -Hv 0000:0000:0000:0000:0000:0000:0000:0000 {PORTS}/gids/*"
    types = f"grep -H . {PORTS}/gid_attrs/types/* 2>/dev/null"
    return Fix("See which rows there are (v2 with an IPv4 address is the one)", (rows, types))


# --- ports and their addresses ------------------------------------------------------------------------------------------


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


def gid_at(port: RdmaPort, index: int) -> Gid | None:
    return next((gid for gid in port.gids if gid.index == index), None)


def active(ports: Iterable[RdmaPort]) -> list[RdmaPort]:
    return [port for port in ports if port.state == ACTIVE]
