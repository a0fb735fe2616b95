"""Blame for a matrix of who reaches whom: whole nodes first, then whole subnets, then single links. Pure.

A node is to blame for what comes in where at least 80 % of those who dialled it failed, and for what goes out where at
least 80 % of those whom it dialled failed: what one peer says of one other proves nothing. Where the matrix leaves it
open (two nodes alone, or all of them), the kernels' counters of IP packets decide, where those of an idle time show that
little else happened and as many packets went as were lost: hosts drop other things, too.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.facts.fleet import Cell, Fleet, Node, Reach
from ddpdoctor.knowledge.interface_choice import as_address

MIN_FAILED_SHARE: Final = 0.8
MIN_PEERS: Final = 2
"""Peers on whose word a node is blamed, unless its own kernel says so as well."""

BLOCKED: Final = "".join(cell.value for cell in (Cell.SILENT, Cell.REFUSED, Cell.PROHIBITED, Cell.RESET, Cell.OTHER))
COUNTED_DIALS: Final = 3
"""Times that a port which failed is dialled while it is counted. Each loses one packet (SYN)."""

NOISE: Final = 0.25
"""Of as many packets as were lost: with more that came and went while nobody dialled, the counters prove nothing."""

NOISE_OF_ANSWERS: Final = 0.4
"""The same where a filter takes answers (SYN-ACK) as well: those to earlier tries are sent again for a while."""

MAX_COUNTED_FACTOR: Final = 1.3
"""Times the packets that were lost. A kernel that took away more of them took something else."""

Pair = tuple[int, int]
"""Who dialled, and whom: places in `Fleet.nodes`."""


class Way(str, Enum):
    """One direction of a node's traffic."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"

    @property
    def other(self) -> Way:
        return Way.OUTBOUND if self is Way.INBOUND else Way.INBOUND


class LostPackets(str, Enum):
    """Verdict of the node's own kernel, by its counters, on the lost packets: the first ones of connections (SYN) of one way,
    or the answers to them (SYN-ACK), which go the other way."""

    HERE = "here"
    """It took them away itself."""
    ANSWERS = "answers"
    """It took away the answers: they are for its filter on the other way."""
    ELSEWHERE = "elsewhere"
    """It took away neither the packets nor the answers."""
    DOUBTFUL = "doubtful"
    """It let the packets pass; whether it took away the answers isn't told."""
    UNTOLD = "untold"


class Block(msgspec.Struct, frozen=True):
    """A node whose inbound or outbound connections fail.

    peers: those of the pairs that failed, of `tried` ones. ports: whether each of the tried ports failed for any of
    them. cells: what they met, the most frequent first. other_way: how its other direction does; None: it can't be told.
    """

    node: int
    way: Way
    peers: tuple[int, ...]
    tried: int
    ports: tuple[bool, ...]
    cells: str
    where: LostPackets
    other_way: bool | None


class NetworkCut(msgspec.Struct, frozen=True):
    """Pairs that fail although no whole node is to blame: all of `here` dialling all of `there`.

    both: the other direction fails as well. ports, cells: as in `Block`. where_here: whether the dialling side's kernel
    took packets or answers away, by its filter on `way_here`; where_there, way_there: the same of the other side. Of single
    links only.
    """

    here: tuple[int, ...]
    there: tuple[int, ...]
    both: bool
    ports: tuple[bool, ...]
    cells: str
    where_here: LostPackets = LostPackets.UNTOLD
    where_there: LostPackets = LostPackets.UNTOLD
    way_here: Way = Way.OUTBOUND
    way_there: Way = Way.INBOUND


class BehindNat(msgspec.Struct, frozen=True):
    """A node that node 0 sees at another address than the one at which it listens, and the peers that don't meet it there."""

    node: int
    peers: tuple[int, ...]


class ReachFaults(msgspec.Struct, frozen=True):
    """All that fails on the way by which the nodes meet the master."""

    blocks: tuple[Block, ...] = ()
    cuts: tuple[NetworkCut, ...] = ()
    behind_nat: tuple[BehindNat, ...] = ()


@cache
def locate_faults(fleet: Fleet) -> ReachFaults:
    """Find who is to blame for the "route" matrices of a fleet. Worked out once for each fleet."""
    return _Matrix(fleet.nodes, fleet.routes).locate_faults() if fleet.routes else ReachFaults()


class _Matrix:
    """The cells of all ports of each pair, and who explains the bad ones."""

    def __init__(self, nodes: Sequence[Node], reaches: Sequence[Reach]) -> None:
        self.nodes = nodes
        self.addresses = reaches[0].addresses
        size = range(len(nodes))
        self.cells: dict[Pair, str] = {
            (i, j): cells
            for i in size
            for j in size
            if set(cells := "".join(reach.rows[i][j] for reach in reaches)) != {Cell.NOT_TRIED.value}
        }
        self.bad: set[Pair] = {pair for pair, cells in self.cells.items() if set(cells) & set(BLOCKED)}
        self.verdicts: dict[tuple[int, Way], LostPackets] = {}
        self.takes: dict[tuple[int, Way], bool] = {}
        self.took: dict[tuple[int, Way], bool] = {}
        self.tried: dict[Way, dict[int, list[int]]] = {}
        self.failed: dict[Way, dict[int, list[int]]] = {}

    def locate_faults(self) -> ReachFaults:
        behind_nat = tuple(self._behind_nat())
        # Whoever dials an address that only its owner knows says nothing of filters.
        excused = {(peer, behind.node) for behind in behind_nat for peer in behind.peers}
        self.bad -= excused
        self.cells = {pair: cells for pair, cells in self.cells.items() if pair not in excused}
        if not self.bad:
            return ReachFaults(behind_nat=behind_nat)
        groups = list(self._cut_off_subnets())
        self.bad -= {(i, j) for here, there in groups for i in here for j in there}
        self.tried = {way: _by_node(self.cells, way) for way in Way}
        self.failed = {way: _by_node((pair for pair in self.cells if pair in self.bad), way) for way in Way}
        # Which of the two is looked at first matters where a block of one kind looks like several of the other.
        solutions = [self._culprits((Way.INBOUND, Way.OUTBOUND)), self._culprits((Way.OUTBOUND, Way.INBOUND))]
        culprits = min(solutions, key=lambda found: (len(self._left(found)), self._doubt(found)))
        left = self._left(culprits)
        blocks = tuple(self._block(node, way, culprits, left) for node, way in sorted(culprits))
        cuts = (*self._group_cuts(groups), *self._link_cuts(left))
        return ReachFaults(blocks, cuts, behind_nat)

    def _behind_nat(self) -> Iterator[BehindNat]:
        for at in sorted({pair[1] for pair in self.bad}):
            if _differ(self.addresses[at], self.nodes[at].address):
                yield BehindNat(at, tuple(peer for peer, node in sorted(self.bad) if node == at))

    # --- whole nodes --------------------------------------------------------------------------------------------------

    def _culprits(self, order: Sequence[Way]) -> list[tuple[int, Way]]:
        """Nodes that explain most of the bad pairs; those that explain nothing which others don't are left out."""
        found: list[tuple[int, Way]] = []
        left = set(self.bad)
        for way in order:
            taken = [node for node in self.failed[way] if self._may_be(node, way, left)]
            for node in taken:
                found.append((node, way))
                left -= set(self._explained((node, way)))
        covered = Counter(pair for culprit in found for pair in self._explained(culprit))
        for culprit in list(found):
            explained = self._explained(culprit)
            if all(covered[pair] > 1 for pair in explained) and self._where(*culprit) is not LostPackets.HERE:
                found.remove(culprit)
                covered -= Counter(explained)
        return found

    def _may_be(self, node: int, way: Way, left: set[Pair]) -> bool:
        failed, tried = self.failed[way][node], self.tried[way][node]
        heard = self._where(node, way) is LostPackets.HERE
        unexplained = [
            peer for peer in failed if _pair(node, peer, way) in left and (heard or not self._took_all(peer, way.other))
        ]
        explained = len(failed) - len(unexplained)
        share = len(unexplained) / max(len(tried) - explained, 1)
        return share >= MIN_FAILED_SHARE and bool(unexplained) and (len(failed) >= MIN_PEERS or heard)

    def _explained(self, culprit: tuple[int, Way]) -> list[Pair]:
        own = self._failures(*culprit)
        return [*own, *self._failures(culprit[0], culprit[1].other)] if self._takes_answers(*culprit) else own

    def _failures(self, node: int, way: Way) -> list[Pair]:
        return [_pair(node, peer, way) for peer in self.failed[way].get(node, ())]

    def _takes_answers(self, node: int, way: Way) -> bool:
        """Whether its filter on that way knows no connections, and so takes the answers to those of the other way as well."""
        if (node, way) not in self.takes:
            own, answered = self._failures(node, way), self._failures(node, way.other)
            found = bool(own) and self._silent(answered)
            self.takes[node, way] = found and self._counted(node, way, own, answered) is LostPackets.HERE
        return self.takes[node, way]

    def _silent(self, pairs: Sequence[Pair]) -> bool:
        """Whether there are any, and all of them met silence: whose answer is lost meets nothing else."""
        silence = {Cell.SILENT.value}
        return bool(pairs) and all(set(self.cells[pair]) & set(BLOCKED) == silence for pair in pairs)

    def _left(self, culprits: Iterable[tuple[int, Way]]) -> set[Pair]:
        return self.bad - {pair for culprit in culprits for pair in self._explained(culprit)}

    def _doubt(self, culprits: Iterable[tuple[int, Way]]) -> int:
        """Measure how little the counters speak for them. Equal ones: what comes in is filtered far more often."""
        weights = {
            LostPackets.HERE: 0,
            LostPackets.UNTOLD: 1,
            LostPackets.ANSWERS: 1,
            LostPackets.DOUBTFUL: 2,
            LostPackets.ELSEWHERE: 2,
        }
        return sum(weights[self._where(*culprit)] for culprit in culprits)

    def _block(self, node: int, way: Way, culprits: Sequence[tuple[int, Way]], left: set[Pair]) -> Block:
        peers = tuple(self.failed[way][node])
        pairs = self._failures(node, way)
        return Block(
            node=node,
            way=way,
            peers=peers,
            tried=len(self.tried[way][node]),
            ports=self._ports(pairs),
            cells=self._met(pairs),
            where=self._where(node, way),
            other_way=self._other_way(node, way.other, culprits, left),
        )

    def _other_way(self, node: int, way: Way, culprits: Sequence[tuple[int, Way]], left: set[Pair]) -> bool | None:
        """Whether the node's connections of that direction work, those apart for which others are to blame."""
        if (node, way) in culprits or ((node, way.other) in culprits and self._takes_answers(node, way.other)):
            return False
        pairs = [_pair(node, peer, way) for peer in self.tried[way].get(node, ())]
        asked = [pair for pair in pairs if pair not in self.bad or pair in left]
        return not left.intersection(asked) if asked else None

    # --- the kernel's counters ------------------------------------------------------------------------------------------

    def _where(self, node: int, way: Way) -> LostPackets:
        if (node, way) not in self.verdicts:
            verdict = self._counted(node, way, self._failures(node, way))
            if self._takes_answers(node, way):
                verdict = LostPackets.HERE
            elif verdict is LostPackets.ELSEWHERE:
                verdict = self._answers(node, way)
            self.verdicts[node, way] = verdict
        return self.verdicts[node, way]

    def _took_all(self, node: int, way: Way) -> bool:
        """Whether its kernel took away the first packets of all that failed there on that way."""
        if (node, way) not in self.took:
            self.took[node, way] = self._counted(node, way, self._failures(node, way)) is LostPackets.HERE
        return self.took[node, way]

    def _answers(self, node: int, way: Way) -> LostPackets:
        """Tell, of connections whose first packets that node let pass, whether its filter on the other way took the answers."""
        pairs, others = self._failures(node, way), self._failures(node, way.other)
        if self._took_all(node, way.other) and not self._takes_answers(node, way.other):
            return LostPackets.ELSEWHERE  # What it took away there was something else.
        verdict = self._counted(node, way.other, (), pairs)
        if verdict is LostPackets.HERE:
            return LostPackets.ANSWERS if not others and self._silent(pairs) else LostPackets.DOUBTFUL
        # A filter that took the answers would take what goes that way besides.
        acquitted = verdict is LostPackets.ELSEWHERE or not (others or self._counts(node, way.other))
        return LostPackets.ELSEWHERE if acquitted else LostPackets.DOUBTFUL

    def _counts(self, node: int, way: Way) -> bool:
        """Whether that kernel has such a counter at all."""
        there = self.nodes[node]
        return (there.undelivered if way is Way.INBOUND else there.untransmitted) is not None

    def _counted(self, node: int, way: Way, pairs: Iterable[Pair], answers: Iterable[Pair] = ()) -> LostPackets:
        """Whether that node's kernel took away, on that way, the first packets of those pairs and the answers of the others:
        as many, and not many more."""
        there = self.nodes[node]
        inbound = way is Way.INBOUND
        grown = there.undelivered if inbound else there.untransmitted
        idle = there.idle_undelivered if inbound else there.idle_untransmitted
        answers = list(answers)
        lost = COUNTED_DIALS * sum(cell in BLOCKED for pair in (*pairs, *answers) for cell in self.cells[pair])
        if grown is None or not lost or abs(idle) > (NOISE_OF_ANSWERS if answers else NOISE) * lost:
            return LostPackets.UNTOLD
        if MIN_FAILED_SHARE * lost <= grown - (0 if answers else idle) and grown <= MAX_COUNTED_FACTOR * lost + idle:
            return LostPackets.HERE
        return LostPackets.ELSEWHERE if grown <= (1 - MIN_FAILED_SHARE) * lost else LostPackets.UNTOLD

    def _end(self, node: int, pair: Pair, left: Mapping[Way, Mapping[int, Sequence[Pair]]]) -> tuple[LostPackets, Way]:
        """Tell what that end of a link took away, and on which way: of one link of several that fail there, since the counters
        tell of all of them together. left: the links that are to be told of, by way and node."""
        natural = Way.OUTBOUND if pair[0] == node else Way.INBOUND
        verdicts = {
            way: self._on_one_way(node, way, pair, left[way].get(node, ()), left[way.other].get(node, ()))
            for way in (natural, natural.other)
        }
        for way, where in verdicts.items():
            if where is LostPackets.HERE:
                return LostPackets.HERE, way
        return (
            LostPackets.ELSEWHERE if set(verdicts.values()) == {LostPackets.ELSEWHERE} else LostPackets.UNTOLD
        ), natural

    def _on_one_way(
        self, node: int, way: Way, pair: Pair, own: Sequence[Pair], answered: Sequence[Pair]
    ) -> LostPackets:
        """Whether that node's filter on one way took away first packets, or answers, of that pair or of its reverse.

        own: the links at that node whose first packets go that way; answered: those whose answers do."""
        both = {pair, (pair[1], pair[0])}
        own_mine, answers_mine = ([packets for packets in counts if packets in both] for counts in (own, answered))
        silent = self._silent(answers_mine)
        verdicts = [self._counted(node, way, own)] if own_mine else []
        # What came or went that way of itself is the first to be missed.
        if silent and (own_mine or not self._failures(node, way)):
            verdicts += [
                self._counted(node, way, own, counts)
                for counts in (answered, answers_mine)
                if len(own_mine) == len(own)
            ]
        if LostPackets.HERE in verdicts:
            return LostPackets.HERE
        if not own_mine and not self._counts(node, way):
            return LostPackets.ELSEWHERE  # A filter that took the answers would take what goes that way besides.
        if not own_mine and self._took_all(node, way):
            return LostPackets.ELSEWHERE  # What it took away there was something else.
        verdicts = [self._counted(node, way, own_mine)] if own_mine else []
        verdicts += [self._counted(node, way, (), answers_mine)] if answers_mine else []
        return LostPackets.ELSEWHERE if set(verdicts) == {LostPackets.ELSEWHERE} else LostPackets.UNTOLD

    # --- subnets and links ----------------------------------------------------------------------------------------------

    def _cut_off_subnets(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Subnets of several nodes each, none of which reaches any of the other, while all is well within both."""
        subnets: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            subnets.setdefault(subnet_of(node.address), []).append(at)
        whole = [
            tuple(members) for members in subnets.values() if len(members) > 1 and self._share(members, members) == 0
        ]
        for here in whole:
            for there in whole:
                if here is not there and self._share(here, there) == 1:
                    yield here, there

    def _share(self, here: Sequence[int], there: Sequence[int]) -> float:
        pairs = [(i, j) for i in here for j in there if (i, j) in self.cells]
        return sum(pair in self.bad for pair in pairs) / len(pairs) if pairs else -1.0

    def _group_cuts(self, groups: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Iterator[NetworkCut]:
        for here, there in groups:
            both = (there, here) in groups
            if both and here > there:
                continue
            pairs = [(i, j) for i in here for j in there if (i, j) in self.cells]
            yield NetworkCut(here, there, both, self._ports(pairs), self._met(pairs))

    def _link_cuts(self, left: set[Pair]) -> Iterator[NetworkCut]:
        at = {
            way: {node: [_pair(node, peer, way) for peer in peers] for node, peers in _by_node(left, way).items()}
            for way in Way
        }
        for i, j in sorted(left):
            both = (j, i) in self.bad
            if i > j and (j, i) in left:
                continue
            pairs = [(i, j)]
            (where_here, way_here), (where_there, way_there) = (self._end(end, (i, j), at) for end in (i, j))
            yield NetworkCut(
                here=(i,),
                there=(j,),
                both=both,
                ports=self._ports(pairs),
                cells=self._met(pairs),
                where_here=where_here,
                where_there=where_there,
                way_here=way_here,
                way_there=way_there,
            )

    # --- words of the cells ---------------------------------------------------------------------------------------------

    def _ports(self, pairs: Iterable[Pair]) -> tuple[bool, ...]:
        columns = zip(*(self.cells[pair] for pair in pairs), strict=True)
        return tuple(any(cell in BLOCKED for cell in column) for column in columns)

    def _met(self, pairs: Iterable[Pair]) -> str:
        seen = Counter(cell for pair in pairs for cell in self.cells[pair] if cell in BLOCKED)
        return "".join(cell for cell, _ in seen.most_common())


def _pair(node: int, peer: int, way: Way) -> Pair:
    return (peer, node) if way is Way.INBOUND else (node, peer)


def _by_node(pairs: Iterable[Pair], way: Way) -> dict[int, list[int]]:
    """Each node to its peers in those pairs, in their order."""
    found: dict[int, list[int]] = {}
    for i, j in pairs:
        node, peer = (j, i) if way is Way.INBOUND else (i, j)
        found.setdefault(node, []).append(peer)
    return found


def _differ(listens: str, seen: str) -> bool:
    """Whether both are addresses, and not the same one."""
    try:
        return as_address(listens) != as_address(seen)
    except NotKnown:
        return False


def subnet_of(address: str) -> str:
    """The /24 (IPv6: /64) that an address is in; nodes don't say how long their prefix is. "" for what is none."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(ipaddress.ip_network(f"{number}/{24 if number.version == 4 else 64}", strict=False))
