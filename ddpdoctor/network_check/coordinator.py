"""Leads the fleet through its phases, on node 0: nodes meet and are compared, and then go through a programme."""

from __future__ import annotations

import time

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Fleet, Passed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.version_agreement import versions_unknown
from ddpdoctor.network_check.analysis.node_facts import FACT_GROUPS
from ddpdoctor.network_check.node_session import ONLY_ONE_NODE, FleetFacts, NodeSession, PhaseCoordinator
from ddpdoctor.network_check.protocol.peer_connection import PeerConnection


class Conductor:
    """One run.

    wait: seconds until it begins without those who haven't come.
    programme: what the company does when it has met.
    """

    def __init__(self, session: NodeSession, *, wait: float, programme: PhaseCoordinator) -> None:
        self._company = session
        self._hub = session.hub
        self._wait = wait
        self._programme = programme

    async def lead(self) -> FleetFacts:
        """Goes through all phases. Nodes that are lost on the way stay lost; the others go on."""
        await self._join()
        joined_at = time.monotonic()
        session = self._company
        await self._programme.go()
        fleet = Fleet(
            nodes=tuple(map(session.node, session.members)),
            seat=self._hub.seat,
            expected=self._hub.nnodes,
            absent=tuple(self._hub.absent()),
            doubles=tuple(self._hub.doubles),
            strangers=tuple(self._hub.strangers),
            phases=tuple(session.phases),
        )
        return self._programme.told(FleetFacts(fleet, session.snapshots, joined_at))

    async def _join(self) -> None:
        began = time.monotonic()
        session = self._company
        self._hub.announce("join")
        await self._hub.gather(self._wait)
        for rank, name in self._hub.names.items():
            peer = self._hub.peers[rank]
            peer.host = name
            session.snapshots[rank] = msgspec.structs.replace(peer.facts or _without_facts(peer), host=name)
        session.members = sorted(session.snapshots)
        there = len(session.there)
        whole = there == self._hub.nnodes
        reason = "" if whole else f"{there} of {self._hub.nnodes} came"
        session.ended("join", Passed.PASS if whole else Passed.FAIL, began, reason)
        if there < 2:
            session.not_tested("compare", ONLY_ONE_NODE)
        elif unknown := versions_unknown([session.node(rank) for rank in session.there]):
            session.not_tested("compare", f"{unknown}; settings and clocks were compared")
        else:
            session.ended("compare", Passed.PASS, time.monotonic())


def _without_facts(peer: PeerConnection) -> Snapshot:
    """Of a node that came, and was lost before it had said anything of its host."""
    why = Unknown(f"{peer.host} was {peer.lost}")
    return msgspec.structs.replace(Snapshot(host=peer.host), **dict.fromkeys(FACT_GROUPS, why))
