"""Leads the fleet through its phases, on node 0, and writes down what they came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.fleet import Cell, Collective, Fleet, Link, Node, Passed, Phase, Reach
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.fleet_words import names_by_rank
from ddpdoctor.knowledge.link_figures import alike, better, condemned, doubtful
from ddpdoctor.knowledge.version_agreement import versions_unknown
from ddpdoctor.netcheck.foregone import why_no_gloo, why_no_nccl
from ddpdoctor.netcheck.guests import Guest
from ddpdoctor.netcheck.hub import Hub
from ddpdoctor.netcheck.manifests import GROUPS, node_of
from ddpdoctor.netcheck.messages import (
    Answer,
    Cannot,
    Collect,
    Collected,
    Measure,
    Measured,
    Peer,
    Place,
)
from ddpdoctor.netcheck.reach_phase import FoundOut, bad, who_reaches_whom
from ddpdoctor.netcheck.schedule import rounds
from ddpdoctor.netcheck.standing import met_at

A = TypeVar("A", bound=Answer)

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
ALONE = "only one node is there"


class Gathered(msgspec.Struct, frozen=True):
    """All that the phases gave: the fleet, each node's own facts, and when the last node had joined (time.monotonic)."""

    fleet: Fleet
    snapshots: dict[int, Snapshot]
    joined_at: float


class Conductor:
    """One run.

    wait: seconds until the test begins without those who haven't come. quick: no collectives. master, store_port: where
    the real store shall listen. command: what to type on the node of that rank.
    """

    def __init__(
        self, hub: Hub, *, wait: float, quick: bool, master: str, store_port: int, command: Callable[[int], str]
    ) -> None:
        self._hub = hub
        self._wait = wait
        self._quick = quick
        self._master = master
        self._store_port = store_port
        self._command = command
        self._phases: list[Phase] = []
        self._members: list[int] = []
        self._found = FoundOut()

    async def lead(self) -> Gathered:
        """Goes through all phases. Nodes that are lost on the way stay lost; the others go on."""
        snapshots = await self._join()
        joined_at = time.monotonic()
        self._found = await self._reach()
        reach = self._found.reach
        links = await self._links(reach, snapshots)
        collectives = await self._collectives(reach, links, snapshots)
        fleet = Fleet(
            nodes=tuple(self._node(rank, snapshots[rank]) for rank in self._members),
            expected=self._hub.nnodes,
            absent=tuple(msgspec.structs.replace(one, command=self._command(one.rank)) for one in self._hub.absent()),
            doubles=tuple(self._hub.doubles),
            strangers=tuple(self._hub.strangers),
            reach=reach,
            links=links,
            collectives=collectives,
            phases=tuple(self._phases),
        )
        return Gathered(fleet, snapshots, joined_at)

    @property
    def _there(self) -> list[int]:
        """Ranks of the nodes that came and aren't lost."""
        return [rank for rank in self._members if not self._hub.guests[rank].lost]

    def _nodes_there(self, snapshots: Mapping[int, Snapshot]) -> list[Node]:
        return [self._node(rank, snapshots[rank]) for rank in self._there]

    def _node(self, rank: int, snapshot: Snapshot) -> Node:
        guest = self._hub.guests[rank]
        node = node_of(
            snapshot,
            rank=rank,
            host=guest.host,
            address=guest.address if rank else met_at(self._hub, guest.address),
            offset=guest.offset,
            error=guest.error,
            lost=guest.lost,
        )
        node = msgspec.structs.replace(node, troubles=self._found.troubles.get(rank, ()))
        packets = self._found.packets.get(rank)
        if packets is None:
            return node
        return msgspec.structs.replace(
            node,
            undelivered=packets.dialling.undelivered,
            untransmitted=packets.dialling.untransmitted,
            idle_undelivered=packets.idle.undelivered or 0,
            idle_untransmitted=packets.idle.untransmitted or 0,
        )

    def _ended(self, name: str, passed: Passed, began: float, reason: str = "") -> None:
        self._phases.append(Phase(name=name, passed=passed, seconds=round(time.monotonic() - began, 3), reason=reason))

    def _not_tested(self, name: str, reason: str) -> None:
        self._phases.append(Phase(name=name, passed=Passed.NOT_TESTED, reason=reason))

    async def _ask(self, orders: Mapping[int, object], kind: type[A], seconds: float) -> dict[int, A]:
        """The answers of that type; a node that can't carry out the order has none."""
        answers = await self._hub.ask(orders, seconds)  # type: ignore[arg-type]
        return {rank: answer for rank, answer in answers.items() if isinstance(answer, kind)}

    async def _join(self) -> dict[int, Snapshot]:
        began = time.monotonic()
        self._hub.announce("join")
        await self._hub.gather(self._wait)
        snapshots = {}
        for rank, name in names_by_rank({rank: guest.host for rank, guest in self._hub.guests.items()}).items():
            guest = self._hub.guests[rank]
            guest.host = name
            snapshots[rank] = msgspec.structs.replace(guest.facts or _without_facts(guest), host=name)
        self._members = sorted(snapshots)
        there = len(self._there)
        whole = there == self._hub.nnodes
        reason = "" if whole else f"{there} of {self._hub.nnodes} came"
        self._ended("join", Passed.PASS if whole else Passed.FAIL, began, reason)
        if there < 2:
            self._not_tested("compare", ALONE)
        elif unknown := versions_unknown(self._nodes_there(snapshots)):
            self._not_tested("compare", f"{unknown}; settings and clocks were compared")
        else:
            self._ended("compare", Passed.PASS, time.monotonic())
        return snapshots

    async def _reach(self) -> FoundOut:
        if len(self._there) < 2:
            self._not_tested("reach", ALONE)
            return FoundOut()
        began = time.monotonic()
        self._hub.announce("reach")
        found = await who_reaches_whom(self._hub, self._members)
        self._ended("reach", Passed.PASS if found.whole else Passed.FAIL, began, found.untested)
        return found

    async def _links(self, reach: Sequence[Reach], snapshots: Mapping[int, Snapshot]) -> tuple[Link, ...]:
        if reason := self._no_sense(reach):
            self._not_tested("links", reason)
            return ()
        began = time.monotonic()
        self._hub.announce("links")
        there = self._there
        found: list[Link] = []
        peers = {peer.node: peer for peer in self._good_peers(reach)}
        planned = list(rounds(there, MOST_ROUNDS))
        played = 0
        for pairs in planned:
            if played >= FEWEST_ROUNDS and time.monotonic() > began + ROUNDS_SECONDS:
                break
            done = condemned(found)
            found += await self._measured([pair for pair in pairs if done.isdisjoint(pair)], peers)
            played += 1
        nodes = tuple(self._node(rank, snapshots[rank]) for rank in self._members)
        until = max(began + LINKS_SECONDS, time.monotonic() + LOOKS_SECONDS)
        await self._look_again(found, peers, Fleet(nodes=nodes, reach=tuple(reach)), until)
        failed = [one for one in found if one.error]
        reason = "" if played == len(planned) else f"{played} of {len(planned)} rounds in {ROUNDS_SECONDS:.0f} s"
        self._ended("links", Passed.FAIL if failed or not found else Passed.PASS, began, reason)
        return tuple(found)

    async def _look_again(self, found: list[Link], peers: Mapping[int, Peer], fleet: Fleet, until: float) -> None:
        """Measures the links that stand out once more, each by itself, and again where that gave something else: a CPU
        that was busy for a moment is no slow link. until: no look begins later (time.monotonic())."""
        settled: set[tuple[int, int]] = set()
        for _ in range(MOST_LOOKS):
            for one in doubtful(msgspec.structs.replace(fleet, links=tuple(found))):
                pair = (one.a, one.b)
                if time.monotonic() >= until:
                    return
                for again in () if pair in settled else await self._measured([pair], peers):
                    found[found.index(one)] = better(one, again)
                    if alike(one, again):
                        settled.add(pair)

    async def _measured(self, pairs: Sequence[tuple[int, int]], peers: Mapping[int, Peer]) -> list[Link]:
        """The links between the pairs, all at once; those of lost nodes are left out."""
        orders = {
            low: Measure(peer=peers[high], seconds=PAIR_SECONDS)
            for low, high in (sorted(pair) for pair in pairs)
            if not self._hub.guests[low].lost and not self._hub.guests[high].lost
        }
        answers = await self._ask(orders, Measured, 30.0)
        # A node speaks of the link that it was told to measure, and of no other nodes'.
        return [
            link
            for low, one in answers.items()
            if (link := one.link) is not None and (link.a, link.b) == (low, _peer_of(orders[low]))
        ]

    def _good_peers(self, reach: Sequence[Reach]) -> list[Peer]:
        """Every node with the places that everybody reaches: the data of a job goes to NCCL's."""
        good = (Cell.OK.value, Cell.NOT_TRIED.value)
        return [
            Peer(
                node=rank,
                host=self._hub.guests[rank].host,
                places=tuple(
                    Place(one.kind, one.addresses[column], (one.ports[column],))
                    for one in reach
                    if one.ports[column] and all(row[column] in good for row in one.rows)
                ),
            )
            for column, rank in enumerate(self._members)
        ]

    def _no_sense(self, reach: Sequence[Reach]) -> str:
        """Why there is no sense in going on to transfers and collectives; "" where there is."""
        if len(self._there) < 2:
            return ALONE
        if self._found.untested:
            return self._found.untested
        return NOT_REACHED if bad([one for one in reach if one.kind == "route"]) else ""

    async def _collectives(
        self, reach: Sequence[Reach], links: Sequence[Link], snapshots: Mapping[int, Snapshot]
    ) -> tuple[Collective, ...]:
        nodes = self._nodes_there(snapshots)
        reason = "--quick" if self._quick else self._no_sense(reach) or why_no_gloo(nodes, snapshots, reach, links)
        if reason:
            self._not_tested("gloo", reason)
            self._not_tested("nccl", reason)
            return ()
        await self._hub.close_door()
        ran = await self._collective("gloo")
        reason = why_no_nccl(self._nodes_there(snapshots), snapshots, reach)
        if reason or not all(one.ok for one in ran):
            self._not_tested("nccl", reason or "gloo failed")
            return ran
        return (*ran, *await self._collective("nccl"))

    async def _collective(self, backend: str) -> tuple[Collective, ...]:
        began = time.monotonic()
        self._hub.announce(backend)
        there, seconds = self._there, COLLECTIVE_SECONDS
        orders = {
            rank: Collect(
                backend=backend,
                master=met_at(self._hub, self._master),
                port=self._store_port,
                rank=number,
                world_size=len(there),
                seconds=seconds,
            )
            for number, rank in enumerate(there)
        }
        answers = await self._hub.ask(orders, seconds + 10, _failed)
        # Where one node can't even try, the others have waited for it; where none can, nothing was tested.
        if there and all(isinstance(answers.get(rank), Cannot) for rank in there):
            self._not_tested(
                backend, "; ".join(dict.fromkeys(one.why for one in answers.values() if isinstance(one, Cannot)))
            )
            return ()
        ran = tuple(_collective(rank, backend, answers.get(rank), self._hub.guests[rank].lost) for rank in there)
        self._ended(backend, Passed.PASS if all(one.ok for one in ran) else Passed.FAIL, began)
        return ran


def _peer_of(order: Measure) -> int:
    assert order.peer is not None
    return order.peer.node


def _without_facts(guest: Guest) -> Snapshot:
    """Of a node that came, and was lost before it had said anything of its host."""
    why = Unknown(f"{guest.host} was {guest.lost}")
    return msgspec.structs.replace(Snapshot(host=guest.host), **dict.fromkeys(GROUPS, why))


def _failed(answer: Answer) -> bool:
    """Whether the other ranks of a collective wait in vain after this one's answer."""
    return not (isinstance(answer, Collected) and answer.ok)


def _collective(rank: int, backend: str, answer: Answer | None, lost: str) -> Collective:
    if isinstance(answer, Collected):
        return Collective(
            node=rank,
            backend=backend,
            stage=answer.stage,
            ok=answer.ok,
            words=answer.words,
            seconds=answer.seconds,
            hung=answer.hung,
        )
    words = answer.why if isinstance(answer, Cannot) else lost or "no answer"
    return Collective(node=rank, backend=backend, stage="start", ok=False, words=words)
