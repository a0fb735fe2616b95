"""Whether packets of full size pass between the nodes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Cell, Fleet, Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.network_fixes import PING_COMES_IN
from ddpdoctor.knowledge.node_words import NO_FLEET, called, why_not_run
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.network_check.analysis.link_quality import Pair, find_common_nodes
from ddpdoctor.network_check.analysis.tried_addresses import DIALLED

USUAL_MTUS = (1500, 1400, 1280)
"""Of Ethernet; of what every usual tunnel leaves of it; the least that IPv6 allows."""
HEADERS = {4: 28, 6: 48}
"""Bytes of IP and ICMP around what `ping -s` sends."""
MAX_SHOWN_NODES = 6


class Stall(msgspec.Struct, frozen=True):
    """Pairs of nodes (ranks) between whose addresses of one kind large messages never arrive.

    Args:
        kind: whose addresses: "route", "nccl" or "gloo".
        pairs: those of which at least one way is stalled.
        ways: who sent to whom.
        tried: all pairs that small messages passed between.
    """

    kind: str
    pairs: tuple[Pair, ...]
    ways: tuple[Pair, ...]
    tried: tuple[Pair, ...]


@check("mtu-mismatch", severity=FAIL, owner=Owner.FABRIC)
def mtu_mismatch(fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    """Packets of full size don't pass between nodes, or the nodes' MTUs differ.

    ## What breaks
    Connections come about, the store and small all_reduces pass, and the first large transfer hangs until the timeout: often
    `DDP()` itself, which sends the model's weights.

    ## Why
    Nodes send packets as long as their interface's MTU. A switch's port, a tunnel or a VPN in between that takes less drops
    them, and the ICMP message which would say so is filtered, or isn't sent because a switch sends none. Where only the
    nodes' MTUs differ, TCP agrees on the smaller one for each connection; RoCE, UDP and a switch that is set for one of
    them don't.

    ## Fix
    The same MTU on all nodes and all that lies between: `sudo ip link set dev eth0 mtu 1500`. `ping -M do -s 8972 PEER`
    shows what passes (its size plus 28 is the MTU). As a stopgap, TCP finds the size by itself after
    `sudo sysctl -w net.ipv4.tcp_mtu_probing=2`.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.reach, why_not_run(fleet, ("reach",), "nobody dialled another node"))
    stall = next((found for kind in ("route", "nccl", "gloo") if (found := _stall(fleet, kind)).pairs), None)
    if stall is not None:
        yield from _black_holes(stall, fleet, meeting)
        return
    known = [node for node in fleet.nodes if node.interface and node.mtu]
    requires(len(known) > 1, "the nodes don't tell their MTUs")
    yield from _odd_ones(known, meeting)


def _stall(fleet: Fleet, kind: str) -> Stall:
    ranks = [node.rank for node in fleet.nodes]
    passing, ways = set(), set()
    for reach in fleet.reach:
        if reach.kind != kind:
            continue
        for rank, row in zip(ranks, reach.rows, strict=False):
            for peer, cell in zip(ranks, row, strict=False):
                if cell in (Cell.OK.value, Cell.STALLED.value):
                    passing.add((min(rank, peer), max(rank, peer)))
                if cell == Cell.STALLED.value:
                    ways.add((rank, peer))
    pairs = {(min(way), max(way)) for way in ways}
    return Stall(kind, tuple(sorted(pairs)), tuple(sorted(ways)), tuple(sorted(passing)))


# --- large messages never arrive -----------------------------------------------------------------------------------------


def _black_holes(stall: Stall, fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    at_fault = find_common_nodes(stall.pairs, stall.tried)
    nodes = fleet.by_rank
    for rank, pairs in at_fault.nodes.items():
        if rank == meeting.node_rank:
            peers = len({member for pair in stall.tried if rank in pair for member in pair}) - 1
            where = f"to or from {called(nodes[rank])} ({len(pairs)} of {peers} peers)"
            yield _black_hole(where, [nodes[rank]], pairs, stall, fleet)
    if at_fault.pairs and meeting.node_rank == at_fault.pairs[0][0]:
        involved = [nodes[rank] for rank in sorted({rank for pair in at_fault.pairs for rank in pair})]
        shown = listed((f"{called(nodes[a])} and {called(nodes[b])}" for a, b in at_fault.pairs), most=1)
        where = f"between {shown}" if len(at_fault.pairs) == 1 else f"between {len(at_fault.pairs)} pairs of nodes"
        yield _black_hole(where, involved, at_fault.pairs, stall, fleet)


def _black_hole(where: str, to_mend: Sequence[Node], pairs: Sequence[Pair], stall: Stall, fleet: Fleet) -> Finding:
    nodes = fleet.by_rank
    involved = [nodes[rank] for rank in sorted({rank for pair in pairs for rank in pair})]
    mtus = [mtu for node in involved if (mtu := _mtu(node, stall.kind))]
    size = f"of {max(mtus)} bytes" if mtus else "of full size"
    ways = [(a, b) for a, b in stall.ways if (min(a, b), max(a, b)) in pairs]
    stalled = listed((f"{called(nodes[a])} to {called(nodes[b])}" for a, b in ways), MAX_SHOWN_NODES)
    return Finding.of(
        f"Large messages never arrive {where}, small ones do: packets {size} don't fit on the way",
        Evidence(f"64 KiB never arrived: {stalled}", DIALLED),
        (_mtu_seen(node) for node in involved[:MAX_SHOWN_NODES] if _mtu(node, stall.kind)),
        _smaller(to_mend, _fitting(involved, fleet.nodes, stall.kind), stall.kind),
        _ping(to_mend[0], pairs[0], max(mtus, default=9000), stall, fleet),
        by_root(
            "As a stopgap, on every node: let TCP find out by itself what passes",
            ("sudo sysctl -w net.ipv4.tcp_mtu_probing=2",),
        ),
        cause="Something between them (a switch's port, a tunnel, a filter) drops packets that are longer than it takes, and"
        " the ICMP message that would say so doesn't come back.",
    )


def _fitting(involved: Sequence[Node], all_nodes: Sequence[Node], kind: str) -> int:
    """The MTU to try: the smallest one in the fleet, else the next smaller one that is usual."""
    largest = max((_mtu(node, kind) for node in involved), default=0) or 9000
    least = min((mtu for node in all_nodes if (mtu := _mtu(node, kind))), default=largest)
    if least < largest:
        return least
    return next((usual for usual in USUAL_MTUS if usual < largest), USUAL_MTUS[-1])


def _smaller(nodes: Sequence[Node], mtu: int, kind: str) -> Iterator[Fix]:
    """One fix for each name that the interface has."""
    too_large = [node for node in nodes if not 0 < _mtu(node, kind) <= mtu]
    by_interface: dict[str, list[Node]] = {}
    for large in too_large:
        by_interface.setdefault(_interface(large, kind), []).append(large)
    for name, there in by_interface.items():
        hosts = listed(map(called, there), MAX_SHOWN_NODES)
        text = f"On {hosts}: an MTU that fits, until the next boot; then in the network's configuration"
        yield by_root(text, (f"sudo ip link set dev {shlex.quote(name)} mtu {mtu}",))


def _ping(here: Node, pair: Pair, mtu: int, stall: Stall, fleet: Fleet) -> Fix:
    """The pings from the node of the pair that is to be mended to the other."""
    place = next(at for at, node in enumerate(fleet.nodes) if node.rank in pair and node.rank != here.rank)
    address = next(
        reach.addresses[place] for reach in fleet.reach if reach.kind == stall.kind and reach.addresses[place]
    )
    headers = HEADERS[6 if ":" in address else 4]
    return Fix(
        f"On {called(here)}: find the largest size that is answered; with {headers} added it is the MTU that fits"
        f" ({PING_COMES_IN})",
        tuple(
            f"ping -M do -c 3 -s {size - headers} {shlex.quote(address)}"
            for size in dict.fromkeys((mtu, *USUAL_MTUS))
            if size <= mtu
        ),
    )


def _interface(node: Node, kind: str) -> str:
    if kind == "route":
        return shlex.quote(node.interface)
    if kind == "nccl" and node.nccl_interface:
        return shlex.quote(node.nccl_interface)
    address = node.gloo_address if kind == "gloo" else node.nccl_address
    return f"\"$(ip -o address show to {shlex.quote(address or '')} | awk '{{print $2}}')\""


def _mtu(node: Node, kind: str) -> int:
    """The MTU of the interface that has that kind of address; 0 where it isn't known."""
    return node.mtu if kind == "route" or _interface(node, kind) == shlex.quote(node.interface) else 0


def _mtu_seen(node: Node) -> Evidence:
    return Evidence(f"MTU of {node.interface} of {called(node)}: {node.mtu}", "SIOCGIFMTU")


# --- all is well, but the MTUs differ -----------------------------------------------------------------------------------


def _odd_ones(nodes: Sequence[Node], meeting: Meeting) -> Iterator[Finding]:
    count = Counter(node.mtu for node in nodes)
    # Of equally frequent ones the smaller is taken for right: it fits everywhere.
    usual = min(count, key=lambda mtu: (-count[mtu], mtu))
    for own in nodes:
        if own.mtu == usual or own.rank != meeting.node_rank:
            continue
        others = [node for node in nodes if node.mtu == usual]
        yield Finding.of(
            f"{called(own)} sends packets of up to {own.mtu} bytes, {listed(map(called, others))} of {usual}:"
            " the MTUs differ",
            map(_mtu_seen, (own, *others[: MAX_SHOWN_NODES - 1])),
            by_root(
                f"On {called(own)}: the same MTU as the others, until the next boot; then in the network's configuration",
                (f"sudo ip link set dev {shlex.quote(own.interface)} mtu {usual}",),
            ),
            cause="Nothing failed: TCP agrees on the smaller size for each connection. RoCE and UDP don't, and a switch that"
            " is set for the smaller size drops the larger packets without a word.",
            severity=WARN,
        )
