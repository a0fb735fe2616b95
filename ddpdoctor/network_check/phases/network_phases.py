"""netcheck's programme: who reaches whom, how good the links are, and the real store with its collectives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from ddpdoctor.facts.fleet import Cell, Fleet, Link, Node, Passed, Reach, TriedCollective
from ddpdoctor.network_check.analysis.collective_preconditions import why_no_gloo, why_no_nccl
from ddpdoctor.network_check.analysis.link_quality import best_of, doubtful_links, hopeless_nodes, is_like
from ddpdoctor.network_check.listen_address import node_0_address
from ddpdoctor.network_check.node_session import ONLY_ONE_NODE, FleetFacts, NodeSession
from ddpdoctor.network_check.phases.reach_phase import ReachResult, count_failures, who_reaches_whom
from ddpdoctor.network_check.phases.schedule import rounds
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.messages import (
    MAX_WORDS_LENGTH,
    Answer,
    Collect,
    Collected,
    ListenAddress,
    Measure,
    Measured,
    OrderFailed,
    Peer,
)

MOST_ROUNDS = 16
"""Of the tournament: with more than 17 nodes each meets 16 others, not all."""
PAIR_SECONDS = 0.25
MOST_LOOKS = 4
"""At a link that stands out, after the tournament."""
ROUNDS_SECONDS, LINKS_SECONDS = 5.0, 7.0
"""When no further round begins, and no further look: where packets are lost, above all on node 0, whom all answer, each may
take seconds. What has begun is ended."""
LOOKS_SECONDS = 1.0
"""For further looks in any case: the links that the slow rounds have nothing to do with come first, and are quick."""
FEWEST_ROUNDS = 3
"""After which each node has met two peers: one's word blames nobody."""
COLLECTIVE_SECONDS = 60.0
"""Of gloo and of NCCL, with the import of torch, which may take half of it over NFS. What is known to hang isn't started;
who fails ends the others' waiting; of what hangs without a word, an InfiniBand that doesn't answer takes longest: its
hardware gives up after 30 s (NCCL_IB_TIMEOUT=20, seven times)."""
NOT_REACHED = "the nodes don't reach each other"


class NetworkCoordinator:
    """quick: no collectives. master, store_port: where the real store shall listen."""

    def __init__(self, session: NodeSession, *, quick: bool, master: str, store_port: int) -> None:
        self._company = session
        self._quick = quick
        self._master = master
        self._store_port = store_port
        self._found = ReachResult()
        self._measured_links: tuple[Link, ...] = ()
        self._ran: tuple[TriedCollective, ...] = ()

    async def go(self) -> None:
        self._found = await self._reach()
        self._measured_links = await self._links(self._found.reach)
        self._ran = await self._collectives(self._found.reach, self._measured_links)

    def told(self, gathered: FleetFacts) -> FleetFacts:
        fleet = msgspec.structs.replace(
            gathered.fleet,
            nodes=tuple(map(self._told_of, gathered.fleet.nodes)),
            reach=self._found.reach,
            links=self._measured_links,
            collectives=self._ran,
        )
        return msgspec.structs.replace(gathered, fleet=fleet)

    def _node(self, rank: int) -> Node:
        return self._told_of(self._company.node(rank))

    def _nodes_there(self) -> list[Node]:
        return [self._node(rank) for rank in self._company.there]

    def _told_of(self, node: Node) -> Node:
        """It with what was found out about it when all dialled all."""
        node = msgspec.structs.replace(node, troubles=self._found.troubles.get(node.rank, ()))
        packets = self._found.packets.get(node.rank)
        if packets is None:
            return node
        return msgspec.structs.replace(
            node,
            undelivered=packets.dialling.undelivered,
            untransmitted=packets.dialling.untransmitted,
            idle_undelivered=packets.idle.undelivered or 0,
            idle_untransmitted=packets.idle.untransmitted or 0,
        )

    async def _reach(self) -> ReachResult:
        if len(self._company.there) < 2:
            self._company.not_tested("reach", ONLY_ONE_NODE)
            return ReachResult()
        began = time.monotonic()
        self._company.hub.announce("reach")
        found = await who_reaches_whom(self._company.hub, self._company.members)
        self._company.ended("reach", Passed.PASS if found.whole else Passed.FAIL, began, found.untested)
        return found

    async def _links(self, reach: Sequence[Reach]) -> tuple[Link, ...]:
        if reason := self._no_sense(reach):
            self._company.not_tested("links", reason)
            return ()
        began = time.monotonic()
        self._company.hub.announce("links")
        there = self._company.there
        found: list[Link] = []
        peers = {peer.node: peer for peer in self._good_peers(reach)}
        planned = list(rounds(there, MOST_ROUNDS))
        played = 0
        for pairs in planned:
            if played >= FEWEST_ROUNDS and time.monotonic() > began + ROUNDS_SECONDS:
                break
            done = hopeless_nodes(found)
            found += await self._measured([pair for pair in pairs if done.isdisjoint(pair)], peers)
            played += 1
        nodes = tuple(self._node(rank) for rank in self._company.members)
        until = max(began + LINKS_SECONDS, time.monotonic() + LOOKS_SECONDS)
        await self._look_again(found, peers, Fleet(nodes=nodes, reach=tuple(reach)), until)
        failed = [link for link in found if link.error]
        reason = "" if played == len(planned) else f"{played} of {len(planned)} rounds in {ROUNDS_SECONDS:.0f} s"
        self._company.ended("links", Passed.FAIL if failed or not found else Passed.PASS, began, reason)
        return tuple(found)

    async def _look_again(self, found: list[Link], peers: Mapping[int, Peer], fleet: Fleet, until: float) -> None:
        """Measures the links that stand out once more, each by itself, and again where that gave something else: a CPU
        that was busy for a moment is no slow link. until: no look begins later (time.monotonic())."""
        settled: set[tuple[int, int]] = set()
        for _ in range(MOST_LOOKS):
            for link in doubtful_links(msgspec.structs.replace(fleet, links=tuple(found))):
                pair = (link.a, link.b)
                if time.monotonic() >= until:
                    return
                for again in () if pair in settled else await self._measured([pair], peers):
                    found[found.index(link)] = best_of(link, again)
                    if is_like(link, again):
                        settled.add(pair)

    async def _measured(self, pairs: Sequence[tuple[int, int]], peers: Mapping[int, Peer]) -> list[Link]:
        """The links between the pairs, all at once; those of lost nodes are left out."""
        orders = {
            low: Measure(peer=peers[high], seconds=PAIR_SECONDS)
            for low, high in (sorted(pair) for pair in pairs)
            if not self._company.hub.peers[low].lost and not self._company.hub.peers[high].lost
        }
        answers = await self._company.ask(orders, Measured, 30.0)
        # A node speaks of the link that it was told to measure, and of no other nodes'.
        return [
            msgspec.structs.replace(link, error=plain(link.error, MAX_WORDS_LENGTH))
            for low, one in answers.items()
            if (link := one.link) is not None and (link.a, link.b) == (low, _peer_of(orders[low]))
        ]

    def _good_peers(self, reach: Sequence[Reach]) -> list[Peer]:
        """Every node with the places that everybody reaches: the data of a job goes to NCCL's."""
        good = (Cell.OK.value, Cell.NOT_TRIED.value)
        return [
            Peer(
                node=rank,
                host=self._company.hub.peers[rank].host,
                places=tuple(
                    ListenAddress(one.kind, one.addresses[column], (one.ports[column],))
                    for one in reach
                    if one.ports[column] and all(row[column] in good for row in one.rows)
                ),
            )
            for column, rank in enumerate(self._company.members)
        ]

    def _no_sense(self, reach: Sequence[Reach]) -> str:
        """Why there is no sense in going on to transfers and collectives; "" where there is."""
        if len(self._company.there) < 2:
            return ONLY_ONE_NODE
        if self._found.untested:
            return self._found.untested
        return NOT_REACHED if count_failures([one for one in reach if one.kind == "route"]) else ""

    async def _collectives(self, reach: Sequence[Reach], links: Sequence[Link]) -> tuple[TriedCollective, ...]:
        snapshots = self._company.snapshots
        nodes = self._nodes_there()
        reason = "--quick" if self._quick else self._no_sense(reach) or why_no_gloo(nodes, snapshots, reach, links)
        if reason:
            self._company.not_tested("gloo", reason)
            self._company.not_tested("nccl", reason)
            return ()
        await self._company.hub.close_door()
        ran = await self._collective("gloo")
        reason = why_no_nccl(self._nodes_there(), snapshots, reach)
        if reason or not all(tried_collective.ok for tried_collective in ran):
            self._company.not_tested("nccl", reason or "gloo failed")
            return ran
        return (*ran, *await self._collective("nccl"))

    async def _collective(self, backend: str) -> tuple[TriedCollective, ...]:
        began = time.monotonic()
        self._company.hub.announce(backend)
        there, seconds = self._company.there, COLLECTIVE_SECONDS
        orders = {
            rank: Collect(
                backend=backend,
                master=node_0_address(self._company.hub, self._master),
                port=self._store_port,
                rank=number,
                world_size=len(there),
                seconds=seconds,
            )
            for number, rank in enumerate(there)
        }
        answers = await self._company.hub.ask(orders, seconds + 10, _failed)
        # Where one node can't even try, the others have waited for it; where none can, nothing was tested.
        if there and all(isinstance(answers.get(rank), OrderFailed) for rank in there):
            self._company.not_tested(
                backend,
                "; ".join(dict.fromkeys(answer.why for answer in answers.values() if isinstance(answer, OrderFailed))),
            )
            return ()
        ran = tuple(_collective(rank, backend, answers.get(rank), self._company.hub.peers[rank].lost) for rank in there)
        self._company.ended(
            backend, Passed.PASS if all(tried_collective.ok for tried_collective in ran) else Passed.FAIL, began
        )
        return ran


def _peer_of(order: Measure) -> int:
    assert order.peer is not None
    return order.peer.node


def _failed(answer: Answer) -> bool:
    """Whether the other ranks of a collective wait in vain after this one's answer."""
    return not (isinstance(answer, Collected) and answer.ok)


def _collective(rank: int, backend: str, answer: Answer | None, lost: str) -> TriedCollective:
    if isinstance(answer, Collected):
        return TriedCollective(
            node=rank,
            backend=backend,
            stage=answer.stage,
            ok=answer.ok,
            words=answer.words,
            seconds=answer.seconds,
            hung=answer.hung,
        )
    words = answer.why if isinstance(answer, OrderFailed) else lost or "no answer"
    return TriedCollective(node=rank, backend=backend, stage="start", ok=False, words=words)
