"""Links and nodes of a fleet that are out of the ordinary, by what was measured. Pure.

One TCP connection shows what a link can do up to about 10 Gbit/s; beyond that it shows what a CPU can do, so rates are
compared only up to there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.facts.fleet import Cell, Fleet, Link, Node

MAX_COMPARED_RATE: Final = 10_000.0
"""Mbit/s that one TCP connection shows for sure."""
SLOW_RATE: Final = 100.0
"""Mbit/s: less is slow whatever the fleet is used to."""
USELESS_RATE: Final = 10.0
CLAIMED_SHARE: Final = 0.1
"""Of what its interfaces claim: less is not what they are."""
NOMINAL_OF_VIRTUAL: Final = 10_000
"""What a virtual interface says of its speed for want of anything better."""

LOSS, HEAVY_LOSS = 0.01, 0.1
"""Shares of segments that had to be sent again."""
LATE_FACTOR, LATE_SECONDS = 10.0, 0.001
"""A round trip so many times the usual one, and longer than this, is out of the ordinary."""

MEDIAN_ABSOLUTE_DEVIATIONS: Final = 3.0
FAR_BELOW, FAR_BELOW_AS_CPUS_GO = 0.5, 0.25
"""Of the usual rate: out of the ordinary. Where no interface says what it can do, a rate may be that of a busy CPU."""
MIN_LINKS: Final = 4
"""To compare a link with the others."""
MIN_NODES: Final = 3
"""To compare a node with the others."""
LARGE_FLEET_NODES: Final = 6
WORSE, WORSE_AMONG_FEW = 0.8, 0.5
"""A straggler has less than this of the usual rate: with few nodes, the usual one is not known so well."""

MIN_BAD_SHARE: Final = 0.8
"""So large a share of a node's links in trouble is the node's trouble."""

LIMITING_QDISCS: Final = ("tbf", "htb", "hfsc", "cbq", "cake", "netem")
"""Queueing disciplines that hold packets back or lose them, and that nothing but a command puts at an interface's root."""

MAX_DOUBTFUL_LINKS: Final = 16
"""Links that are measured once more, one after the other."""
MAX_RATIO_OF_LIKE_LINKS: Final = 1.3

Pair = tuple[int, int]
"""Two nodes' ranks, the lower one first."""


class Straggler(msgspec.Struct, frozen=True):
    """A node whose links are all slower than those of the others: medians, Mbit/s. `links`: its own, with those that could
    not be measured; `usual`: of the links between others."""

    rank: int
    rate: float
    usual: float
    links: tuple[Link, ...]

    @property
    def fails(self) -> bool:
        """Whether one of its links would fail by itself."""
        return any(link.error or (rate_of(link) or 0.0) < USELESS_RATE for link in self.links)


class LinkTrouble(msgspec.Struct, frozen=True):
    """Trouble of one link: what is out of the ordinary about it, the figures that it is measured by, and how bad it is.

    usual: the median of the fleet's rates (Mbit/s) and round trips (s).
    """

    link: Link
    lossy: bool = False
    slow: bool = False
    fails: bool = False
    usual_rate: float = 0.0
    usual_trip: float = 0.0

    @property
    def pair(self) -> Pair:
        return self.link.a, self.link.b

    @property
    def badness(self) -> tuple[bool, bool, float]:
        """The worst has the largest."""
        return self.fails, bool(self.link.error), -(rate_of(self.link) or 0.0)


class CommonNodes(msgspec.Struct, frozen=True):
    """Pairs in trouble, by whom they have in common: nodes with the pairs that each explains, and the pairs left over.

    everywhere: so many nodes would be to blame that none is.
    """

    nodes: dict[int, tuple[Pair, ...]]
    pairs: tuple[Pair, ...]
    everywhere: bool = False


def rate_of(link: Link) -> float | None:
    """Its slower direction, Mbit/s. None: neither was measured."""
    return min((rate for rate in (link.forth, link.back) if rate >= 0), default=None)


@cache
def stragglers(fleet: Fleet) -> tuple[Straggler, ...]:
    """Nodes whose median over their links is more than three median absolute deviations and 20 % below the fleet's, and
    none of whose links is like the others'. With few links, nodes must differ by half. A node that loses packets is none: slow links
    are what comes of it."""
    # Here and not above: it brings fractions and decimals along, and `check` meets no fleet.
    from statistics import median

    links = _by_node(link for link in fleet.links if rate_of(link) is not None)
    rates = {rank: median(map(_compared, own)) for rank, own in links.items() if len(own) > 1}
    if len(rates) < MIN_NODES:
        return ()
    usual = median(rates.values())
    deviation = median(abs(rate - usual) for rate in rates.values())
    limited = {node.rank for node in fleet.nodes if limiter(fleet, node)}
    virtual = {node.rank for node in fleet.nodes if node.virtual} - limited

    def share(rank: int) -> float:
        """The share of the usual rate that is enough. With few links, that rate and a node's own aren't known so well; virtual ones are as fast as a busy CPU."""
        many = len(rates) >= LARGE_FLEET_NODES and len(links[rank]) >= LARGE_FLEET_NODES - 1
        return FAR_BELOW_AS_CPUS_GO if rank in virtual else WORSE if many else WORSE_AMONG_FEW

    def elsewhere(rank: int) -> float:
        """The rate of the links without the node: among three, its own two are most of all links, and pull the median down."""
        apart = [_compared(link) for link in fleet.links if rank not in (link.a, link.b) and rate_of(link) is not None]
        return usual if rank in virtual or not apart else max(usual, median(apart))

    slow = {
        rank: rate
        for rank, rate in sorted(rates.items())
        if usual - rate > MEDIAN_ABSOLUTE_DEVIATIONS * deviation
        and max(map(_compared, links[rank])) < share(rank) * elsewhere(rank)
        and (rank in limited or median(link.resent for link in links[rank]) < HEAVY_LOSS)
    }
    others = [rate for link in fleet.links if not {link.a, link.b} & set(slow) and (rate := rate_of(link)) is not None]
    all_links = _by_node(fleet.links)
    return tuple(
        Straggler(rank, rate, median(others) if others else usual, tuple(all_links[rank]))
        for rank, rate in slow.items()
    )


@cache
def link_troubles(fleet: Fleet) -> tuple[LinkTrouble, ...]:
    """The links that are out of the ordinary, those of stragglers apart. That a lost node could not be measured is no fault
    of the link."""
    from statistics import median

    lost = {node.rank for node in fleet.nodes if node.lost}
    slow_nodes = {straggler.rank for straggler in stragglers(fleet)}
    measured = [link for link in fleet.links if not link.error]
    rates = sorted(_compared(link) for link in measured if rate_of(link) is not None)
    usual_rate = median(rates) if rates else 0.0
    deviation = median(abs(rate - usual_rate) for rate in rates) if rates else 0.0
    bound = usual_rate - MEDIAN_ABSOLUTE_DEVIATIONS * deviation if len(rates) >= MIN_LINKS else 0.0
    usual_trip = median(link.round_trip for link in measured) if measured else 0.0
    claims = {
        node.rank: -1.0 if node.virtual and node.speed == NOMINAL_OF_VIRTUAL else float(node.speed)
        for node in fleet.nodes
        if data_interface(fleet, node) == node.interface
    }
    found = []
    for link in fleet.links:
        if {link.a, link.b} & slow_nodes or (link.error and {link.a, link.b} & lost):
            continue
        slow = _is_slow(link, usual_rate, bound, claims)
        late = link.round_trip > max(LATE_FACTOR * usual_trip, LATE_SECONDS) and len(measured) >= MIN_NODES
        lossy = link.resent >= LOSS
        if slow or late or lossy or link.error:
            useless = slow and (rate_of(link) or 0.0) < USELESS_RATE
            fails = bool(link.error) or link.resent >= HEAVY_LOSS or useless
            found.append(LinkTrouble(link, lossy, slow, fails, usual_rate, usual_trip))
    return tuple(found)


def doubtful_links(fleet: Fleet) -> tuple[Link, ...]:
    """The links that stand out and should be measured once more before anybody is told, the slowest first; those of nodes
    to which several point come last, since there each measurement may take seconds. What loses many packets needs no second
    look."""
    slow = {(link.a, link.b) for node in stragglers(fleet) for link in node.links}
    bad = {trouble.pair for trouble in link_troubles(fleet)}
    blamed = {straggler.rank for straggler in stragglers(fleet)} | set(
        find_common_nodes(bad, [(link.a, link.b) for link in fleet.links]).nodes
    )
    again = [
        link for link in fleet.links if (link.a, link.b) in slow | bad and not link.error and link.resent < HEAVY_LOSS
    ]
    return tuple(
        sorted(again, key=lambda link: (bool({link.a, link.b} & blamed), rate_of(link) or 0.0))[:MAX_DOUBTFUL_LINKS]
    )


def hopeless_nodes(links: Iterable[Link]) -> frozenset[int]:
    """The nodes of which enough is known while the links are still being measured, which takes seconds where packets are
    lost: all of their links are bad so far, and two of the peers do well with somebody else."""
    own = _by_node(links)
    good = {
        rank
        for rank, found in own.items()
        if not all(_rate_is_useless(link) or link.resent >= HEAVY_LOSS for link in found)
    }

    def proved(rank: int) -> int:
        return sum(bool({link.a, link.b} - {rank} & good) for link in own[rank])

    return frozenset(rank for rank in own if rank not in good and proved(rank) > 1)


def _rate_is_useless(link: Link) -> bool:
    rate = rate_of(link)
    return bool(link.error) or (rate is not None and rate < USELESS_RATE)


def is_like(first: Link, second: Link) -> bool:
    """Whether two measurements of a link say about the same."""
    if first.error or second.error:
        return False
    rates = ((first.forth, second.forth), (first.back, second.back))
    trips = [max(trip, LATE_SECONDS) for trip in (first.round_trip, second.round_trip)]
    return all(max(pair) <= MAX_RATIO_OF_LIKE_LINKS * min(pair) for pair in (*rates, trips) if min(pair) > 0)


def best_of(first: Link, second: Link) -> Link:
    """The best that one link has shown in either of two measurements."""
    if first.error or second.error:
        return second if first.error else first
    return Link(
        a=first.a,
        b=first.b,
        round_trip=min(first.round_trip, second.round_trip),
        forth=max(first.forth, second.forth),
        back=max(first.back, second.back),
        resent=min(first.resent, second.resent),
    )


def _is_slow(link: Link, usual: float, bound: float, claims: dict[int, float]) -> bool:
    rate = rate_of(link)
    if rate is None:
        return False
    claimed = min((claims[rank] for rank in (link.a, link.b) if claims.get(rank, 0) > 0), default=0.0)
    below = FAR_BELOW if claimed else FAR_BELOW_AS_CPUS_GO
    return rate < max(SLOW_RATE, CLAIMED_SHARE * min(claimed, MAX_COMPARED_RATE), min(bound, below * usual))


def data_interface(fleet: Fleet, node: Node) -> str:
    """The interface that a job's data, and so the measurement, goes through: NCCL's where all others reach it there."""
    place = fleet.nodes.index(node)
    good = (Cell.OK.value, Cell.NOT_TRIED.value)
    for reach in fleet.reach:
        if reach.kind == "nccl" and reach.addresses[place] and all(row[place] in good for row in reach.rows):
            return node.nccl_interface or ""
    return node.interface


def limiter(fleet: Fleet, node: Node) -> str:
    """The kind of the limiter on the interface that was measured through; "" where there is none."""
    return node.qdisc if node.qdisc in LIMITING_QDISCS and data_interface(fleet, node) == node.interface else ""


def find_common_nodes(bad: Collection[Pair], tried: Collection[Pair]) -> CommonNodes:
    """Whom the bad pairs have in common: a node most of whose pairs are bad, on the word of at least two peers."""
    nodes = {rank for pair in bad for rank in pair}
    own = {rank: [pair for pair in tried if rank in pair] for rank in nodes}
    failed = {rank: [pair for pair in bad if rank in pair] for rank in nodes}
    blamed = [
        rank
        for rank in sorted(nodes)
        if len(failed[rank]) > 1 and len(failed[rank]) / max(len(own[rank]), 1) >= MIN_BAD_SHARE
    ]
    if 2 * len(blamed) > len({rank for pair in tried for rank in pair}):
        return CommonNodes({}, tuple(sorted(bad)), everywhere=True)
    explained = {pair for rank in blamed for pair in failed[rank]}
    return CommonNodes({rank: tuple(failed[rank]) for rank in blamed}, tuple(sorted(set(bad) - explained)))


def where_several_meet(pairs: Collection[Pair]) -> tuple[dict[int, tuple[Pair, ...]], tuple[Pair, ...]]:
    """The nodes at which several of these pairs meet, with these, and the pairs that are left over. In a chain or a ring
    nobody is in the middle."""
    left, met = set(pairs), {}
    while left:
        counts = Counter(rank for pair in left for rank in pair)
        rank, most = counts.most_common(1)[0]
        if most < 2 or any(counts[a] == counts[b] == most for a, b in left):
            break
        met[rank] = tuple(sorted(pair for pair in left if rank in pair))
        left -= set(met[rank])
    return met, tuple(sorted(left))


def _compared(link: Link) -> float:
    return min(rate_of(link) or 0.0, MAX_COMPARED_RATE)


def _by_node(links: Iterable[Link]) -> dict[int, list[Link]]:
    found: dict[int, list[Link]] = {}
    for link in links:
        found.setdefault(link.a, []).append(link)
        found.setdefault(link.b, []).append(link)
    return found
