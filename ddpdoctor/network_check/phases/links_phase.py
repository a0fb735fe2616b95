"""The phase in which pairs of nodes measure the links between them, in a tournament in which no two links share an end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.facts.fleet import Fleet, Link, Passed, Reach
from ddpdoctor.network_check.analysis.link_quality import best_of, doubtful_links, hopeless_nodes, is_like
from ddpdoctor.network_check.node_session import NodeSession
from ddpdoctor.network_check.phases.reach_phase import GOOD
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.messages import MAX_WORDS_LENGTH, ListenAddress, Measure, Measured, Peer

MAX_ROUNDS = 16
"""Of the tournament: with more than 17 nodes each measures links to 16 others, not to all."""
MIN_ROUNDS = 3
"""After these each node has measured with two peers: the word of one blames nobody."""
PAIR_SECONDS = 0.25
ROUNDS_SECONDS = 5.0
"""No further round begins after these: where packets are lost, above all on node 0, whom all answer, each may take seconds.
What has begun is ended."""
PHASE_SECONDS = 7.0
"""No link is measured again after these ..."""
MIN_AGAIN_SECONDS = 1.0
"""... but so long in any case: the links that the slow rounds have nothing to do with come first, and are quick."""
MAX_MEASUREMENTS_AGAIN = 4
"""Of a link that stands out, after the tournament."""
ANSWER_SECONDS = 30.0

Pair = tuple[int, int]
"""Two nodes, the one that comes first in the given order first."""


def tournament_rounds(nodes: Sequence[int], most: int | None = None) -> Iterator[tuple[Pair, ...]]:
    """Give rounds of disjoint pairs by the circle method: over all rounds each pair meets exactly once.

    N nodes take N - 1 rounds; an odd number takes N, in which each sits out once. With `most`, only so many rounds, spread
    evenly: each node meets that many different peers, near ones and far ones.
    """
    count = len(nodes)
    if count < 2:
        return
    # All but the last of an even number stand in a circle; those whose places add up to the round's number (modulo the
    # circle) meet. The one who would meet himself meets the one outside, or sits out.
    circle = count - 1 if count % 2 == 0 else count
    played = circle if most is None else min(most, circle)
    for turn in range(played):
        yield tuple(_pairs(nodes, circle, turn * circle // played))


def _pairs(nodes: Sequence[int], circle: int, number: int) -> Iterator[Pair]:
    for place in range(circle):
        opposite = (number - place) % circle
        if place < opposite:
            yield nodes[place], nodes[opposite]
        elif place == opposite and circle < len(nodes):
            yield nodes[place], nodes[circle]


class LinksPhase:
    """The links between the nodes of a session, as they are measured.

    Args:
        session: the nodes, of which each knows already where the others listen.
        reach: who reaches whom there.
    """

    def __init__(self, session: NodeSession, reach: Sequence[Reach]) -> None:
        self._session = session
        self._reach = tuple(reach)
        self._peers: dict[int, Peer] = {}
        """Every node with the addresses that everybody reaches: the data of a job goes to NCCL's."""
        for column, rank in enumerate(session.members):
            places = tuple(
                ListenAddress(reach.kind, reach.addresses[column], (reach.ports[column],))
                for reach in self._reach
                if reach.ports[column] and all(row[column] in GOOD for row in reach.rows)
            )
            self._peers[rank] = Peer(node=rank, host=session.hub.peers[rank].host, places=places)

    async def run(self) -> tuple[Link, ...]:
        """Run and record the phase."""
        session = self._session
        began = time.monotonic()
        session.hub.announce("links")
        links: list[Link] = []
        planned = list(tournament_rounds(session.present, MAX_ROUNDS))
        played = 0
        for pairs in planned:
            if played >= MIN_ROUNDS and time.monotonic() > began + ROUNDS_SECONDS:
                break
            hopeless = hopeless_nodes(links)
            links += await self.measure([pair for pair in pairs if hopeless.isdisjoint(pair)])
            played += 1
        fleet = Fleet(nodes=tuple(map(session.node, session.members)), reach=self._reach)
        await self.measure_again(links, fleet, max(began + PHASE_SECONDS, time.monotonic() + MIN_AGAIN_SECONDS))
        passed = bool(links) and not any(link.error for link in links)
        reason = "" if played == len(planned) else f"{played} of {len(planned)} rounds in {ROUNDS_SECONDS:.0f} s"
        session.record("links", Passed.PASS if passed else Passed.FAIL, began, reason)
        return tuple(links)

    async def measure_again(self, links: list[Link], fleet: Fleet, until: float) -> None:
        """Measure the links that stand out once more, each by itself, and again where that gave something else.

        A CPU that was busy for a moment is no slow link. None begins after `until` (time.monotonic()).
        """
        settled: set[Pair] = set()
        for _ in range(MAX_MEASUREMENTS_AGAIN):
            for link in doubtful_links(msgspec.structs.replace(fleet, links=tuple(links))):
                pair = (link.a, link.b)
                if time.monotonic() >= until:
                    return
                for again in () if pair in settled else await self.measure([pair]):
                    links[links.index(link)] = best_of(link, again)
                    if is_like(link, again):
                        settled.add(pair)

    async def measure(self, pairs: Sequence[Pair]) -> list[Link]:
        """Measure the links between the pairs, all at once; those of lost nodes are left out."""
        peers = self._session.hub.peers
        wanted = [(low, high) for low, high in map(sorted, pairs) if not peers[low].lost and not peers[high].lost]
        orders = {low: Measure(peer=self._peers[high], seconds=PAIR_SECONDS) for low, high in wanted}
        answers = await self._session.ask(orders, Measured, ANSWER_SECONDS)
        # A node speaks of the link that it was told to measure, and of no other nodes'.
        return [
            msgspec.structs.replace(link, error=plain(link.error, MAX_WORDS_LENGTH))
            for low, high in wanted
            if low in answers and (link := answers[low].link) is not None and (link.a, link.b) == (low, high)
        ]
