"""The speed of the links between the nodes: rates, round trips, segments sent again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import bandwidth, listed, milliseconds
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Fleet, Link
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.node_words import NO_FLEET, called, why_not_run
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.network_check.analysis.link_quality import (
    HEAVY_LOSS,
    MIN_NODES,
    LinkTrouble,
    Pair,
    Straggler,
    data_interface,
    find_common_nodes,
    limiter,
    link_troubles,
    rate_of,
    stragglers,
    where_several_meet,
)

SOURCE = "ping-pong and bulk transfer over TCP"
GRADIENT_MBIT = 800.0
"""Mbit: 100 MB, the gradients of 25 million parameters in float32."""
MAX_SHOWN_LINKS = 6


@check("slow-link", severity=WARN, owner=Owner.FABRIC)
def slow_link(fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    """A link between two nodes is slow, late, or loses packets.

    ## What breaks
    Nothing fails: an all_reduce is as slow as the slowest link, so every step waits for this one. At 2 Mbit/s 100 MB of
    gradients take 7 minutes a step. Where many packets are lost, stores and collectives run into timeouts that name
    something else.

    ## Why
    A bad cable or port, a port that has agreed on a lower speed, a limiter (`tbf`, `htb`, `netem`), a way through a VPN or a
    slower network than the one meant. Links are compared with the rest of the fleet, with what their interfaces claim and
    with 100 Mbit/s; one TCP connection is measured, so beyond 10 Gbit/s nothing is said.

    ## Fix
    On both ends: `ip -s link show dev eth0` for errors and drops that grow, `cat /sys/class/net/eth0/speed` for the speed in
    Mbit/s, `tc -s qdisc show dev eth0` for a limiter; `sudo tc qdisc del dev eth0 root` takes it off.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.links, why_not_run(fleet, ("links",), "no link was measured"))
    found = {trouble.pair: trouble for trouble in link_troubles(fleet)}
    at_fault = find_common_nodes(found, [(link.a, link.b) for link in fleet.links])
    words = _LinkWords(fleet)
    for rank, pairs in at_fault.nodes.items():
        if rank == meeting.node_rank:
            each = _each(len(pairs), sum(rank in (link.a, link.b) for link in fleet.links))
            yield words.slow(f"{each} link of {words.host(rank)}", [found[pair] for pair in pairs], [rank])
    if at_fault.everywhere:
        if meeting.node_rank == fleet.nodes[0].rank:
            each = _each(len(found), len(fleet.links))
            yield words.slow(f"{each} link between the nodes", list(found.values()), [fleet.nodes[0].rank])
        return
    several, alone = where_several_meet(at_fault.pairs)
    for rank, pairs in several.items():
        if rank == meeting.node_rank:
            yield words.slow(f"More than one link of {words.host(rank)}", [found[pair] for pair in pairs], [rank])
    own = [found[pair] for pair in alone if words.speaker(pair) == meeting.node_rank]
    if own:
        worst = max(own, key=lambda trouble: trouble.badness)
        yield words.slow(f"The link between {words.host(worst.link.a)} and {words.host(worst.link.b)}", own, worst.pair)


@check("straggler-node", severity=WARN, owner=Owner.NODE)
def straggler_node(fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    """One node's links are all slower than those of the others.

    ## What breaks
    Nothing fails: all ranks wait for the slowest one in every step, so one such node slows down the whole job.

    ## Why
    Its interface or its switch's port has agreed on a lower speed, a limiter stands on it, its traffic takes another way, or
    something else keeps its network or its CPUs busy. A node is a straggler where the median of its links is more than
    three median absolute deviations and a fifth below the fleet's (half, where there are few nodes), and all of its links
    are slower than usual.

    ## Fix
    On that node: `cat /sys/class/net/eth0/speed` for the speed in Mbit/s, `tc -s qdisc show dev eth0` for a limiter, `ip -s
    link show dev eth0` for errors; `sudo tc qdisc del dev eth0 root` takes a limiter off. Leave the node out until it is mended.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.links, why_not_run(fleet, ("links",), "no link was measured"))
    measured = {rank for link in fleet.links if rate_of(link) is not None for rank in (link.a, link.b)}
    requires(len(measured) >= MIN_NODES, "a straggler shows among three nodes or more")
    for straggler in stragglers(fleet):
        if straggler.rank == meeting.node_rank:
            yield _LinkWords(fleet).straggling(straggler)


def _each(part: int, whole: int) -> str:
    return "Each" if part == whole else "Nearly each"


class _LinkWords:
    """Words for the links of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.nodes = fleet.by_rank

    def host(self, rank: int) -> str:
        return called(self.nodes[rank]) if rank in self.nodes else f"node {rank}"

    def speaker(self, pair: Pair) -> int:
        """The node of the two that reports: the one with a limiter, else the first."""
        limited = [rank for rank in pair if self._limiter(rank)]
        return limited[0] if len(limited) == 1 else pair[0]

    def slow(self, where: str, found: Sequence[LinkTrouble], ends: Sequence[int]) -> Finding:
        """The finding on slow links.

        Args:
            where: the links in words, as the subject of a sentence.
            found: what is wrong with each of them.
            ends: the nodes that are to be looked at.
        """
        worst = max(found, key=lambda trouble: trouble.badness)
        return Finding.of(
            f"{where} {self._what(worst)}",
            self._figures([trouble.link for trouble in found]),
            self._limiters(ends),
            self._fixes(ends),
            severity=FAIL if any(trouble.fails for trouble in found) else WARN,
        )

    def straggling(self, straggler: Straggler) -> Finding:
        return Finding.of(
            f"{self.host(straggler.rank)} is a straggler: {bandwidth(straggler.rate)} on its links, where "
            f"{bandwidth(straggler.usual)} is usual; {_step(straggler.rate)}",
            self._figures(straggler.links),
            self._limiters([straggler.rank]),
            self._fixes([straggler.rank]),
            cause=f"All of its {len(straggler.links)} links are slow{' or could not be measured' if any(link.error for link in straggler.links) else ''}, those between the others are not: it is this"
            " node, its cable or its port.",
            severity=FAIL if straggler.fails else WARN,
        )

    def _what(self, trouble: LinkTrouble) -> str:
        link, rate = trouble.link, rate_of(trouble.link)
        if link.error:
            return f"could not be measured: {link.error[:80]}"
        if link.resent >= HEAVY_LOSS or (trouble.lossy and not trouble.slow):
            left = f"; {bandwidth(rate)} are left" if rate is not None else ""
            return f"loses packets: {_percent(link.resent)} of the segments had to be sent again{left}"
        if trouble.slow and rate is not None:
            there = link.forth == rate
            a, b = self.host(link.a), self.host(link.b)
            way = f"from {a} to {b}" if there else f"from {b} to {a}"
            usual = f", where {bandwidth(trouble.usual_rate)} is usual" if trouble.usual_rate > 2 * rate else ""
            return f"is slow: {bandwidth(rate)} {way}{usual}; {_step(rate)}"
        return f"is late: a round trip takes {milliseconds(link.round_trip)}, where {milliseconds(trouble.usual_trip)} is usual"

    def _figures(self, links: Sequence[Link]) -> Iterator[Evidence]:
        for link in sorted(links, key=lambda measured: rate_of(measured) or 0.0)[:MAX_SHOWN_LINKS]:
            a, b = self.host(link.a), self.host(link.b)
            words = [f"{bandwidth(link.forth)} from {a}"] if link.forth >= 0 else []
            words += [f"{bandwidth(link.back)} from {b}"] if link.back >= 0 else []
            words += [f"round trip {milliseconds(link.round_trip)}"] if link.round_trip else []
            words += [f"{_percent(link.resent)} sent again"] if link.resent else []
            yield Evidence(f"{a} and {b}: {link.error or ', '.join(words)}", SOURCE)

    def _limiters(self, ends: Sequence[int]) -> Iterator[Evidence]:
        for rank in ends:
            if kind := self._limiter(rank):
                yield Evidence(f"{kind} at the root of {self.nodes[rank].interface} of {self.host(rank)}", "rtnetlink")

    def _limiter(self, rank: int) -> str:
        node = self.nodes.get(rank)
        return limiter(self.fleet, node) if node else ""

    def _fixes(self, ends: Sequence[int]) -> tuple[Fix, ...]:
        limited = [self.nodes[rank] for rank in ends if self._limiter(rank)]
        if not limited:
            return tuple(self._looks(ends))
        return tuple(
            by_root(
                f"On {self.host(node.rank)}: take the limiter ({node.qdisc}) off, if nobody put it there on purpose",
                (f"sudo tc qdisc del dev {shlex.quote(node.interface)} root",),
            )
            for node in limited
        )

    def _looks(self, ends: Sequence[int]) -> Iterator[Fix]:
        """One look for each name that the interface has there."""
        by_interface: dict[str, list[str]] = {}
        for rank in ends:
            if node := self.nodes.get(rank):
                by_interface.setdefault(data_interface(self.fleet, node), []).append(self.host(rank))
        for name, hosts in by_interface.items():
            text = f"On {listed(hosts)}: errors or drops that grow mean a bad cable or port; the speed (Mbit/s) must be the port's"
            quoted = shlex.quote(name)
            # ethtool, and in containers ip, are often missing.
            counters, speed = "|| cat /proc/net/dev", f"cat /sys/class/net/{quoted}/speed"
            commands = (f"ip -s link show dev {quoted} {counters}", speed, f"tc -s qdisc show dev {quoted}")
            yield Fix(text, commands if name else (f"ip -s link show {counters}", "tc -s qdisc show"))


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.095 else f"{share * 100:.1f} %"


def _step(rate: float) -> str:
    """Say what a rate (Mbit/s) means for training."""
    seconds = GRADIENT_MBIT / max(rate, 0.001)
    if seconds >= 90:
        long = f"{seconds / 60:.0f} minutes"
    else:
        long = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s" if seconds >= 1 else milliseconds(seconds)
    return f"100 MB of gradients take {long}"
