"""Leads the fleet through its phases, on node 0: nodes meet and are compared, and then go through a programme."""

from __future__ import annotations

import time

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Fleet, Passed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.version_agreement import versions_unknown
from ddpdoctor.network_check.analysis.node_facts import GROUPS
from ddpdoctor.network_check.node_session import ALONE, FleetFacts, NodeSession, Programme
from ddpdoctor.network_check.protocol.peer_connection import PeerConnection


class Conductor:
    """One run.

    wait: seconds until it begins without those who haven't come.
    programme: what the company does when it has met.
    """

    def __init__(self, company: NodeSession, *, wait: float, programme: Programme) -> None:
        self._company = company
        self._hub = company.hub
        self._wait = wait
        self._programme = programme

    async def lead(self) -> FleetFacts:
        """Goes through all phases. Nodes that are lost on the way stay lost; the others go on."""
        await self._join()
        joined_at = time.monotonic()
        company = self._company
        await self._programme.go()
        fleet = Fleet(
            nodes=tuple(map(company.node, company.members)),
            seat=self._hub.seat,
            expected=self._hub.nnodes,
            absent=tuple(self._hub.absent()),
            doubles=tuple(self._hub.doubles),
            strangers=tuple(self._hub.strangers),
            phases=tuple(company.phases),
        )
        return self._programme.told(FleetFacts(fleet, company.snapshots, joined_at))

    async def _join(self) -> None:
        began = time.monotonic()
        company = self._company
        self._hub.announce("join")
        await self._hub.gather(self._wait)
        for rank, name in self._hub.names.items():
            guest = self._hub.guests[rank]
            guest.host = name
            company.snapshots[rank] = msgspec.structs.replace(guest.facts or _without_facts(guest), host=name)
        company.members = sorted(company.snapshots)
        there = len(company.there)
        whole = there == self._hub.nnodes
        reason = "" if whole else f"{there} of {self._hub.nnodes} came"
        company.ended("join", Passed.PASS if whole else Passed.FAIL, began, reason)
        if there < 2:
            company.not_tested("compare", ALONE)
        elif unknown := versions_unknown([company.node(rank) for rank in company.there]):
            company.not_tested("compare", f"{unknown}; settings and clocks were compared")
        else:
            company.ended("compare", Passed.PASS, time.monotonic())


def _without_facts(guest: PeerConnection) -> Snapshot:
    """Of a node that came, and was lost before it had said anything of its host."""
    why = Unknown(f"{guest.host} was {guest.lost}")
    return msgspec.structs.replace(Snapshot(host=guest.host), **dict.fromkeys(GROUPS, why))
