"""The nodes that have met, as node 0 leads them through the phases, and the record of these."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Fleet, Node, Passed, Phase
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.version_agreement import versions_unknown
from ddpdoctor.network_check.analysis.node_facts import FACT_GROUPS, node_of
from ddpdoctor.network_check.listen_address import node_0_address
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import Answer

A = TypeVar("A", bound=Answer)

ONLY_ONE_NODE = "only one node is there"


class ImpossibleError(Exception):
    """The nodes can't do together what they were told to do; the text says why."""


class FleetFacts(msgspec.Struct, frozen=True):
    """Everything that the phases gave: the fleet, each node's own facts, and when the last node had joined (time.monotonic)."""

    fleet: Fleet
    snapshots: dict[int, Snapshot]
    joined_at: float


class PhaseCoordinator(Protocol):
    """Leads the nodes of one command through its phases, once they have met and have been compared."""

    async def run(self) -> None:
        """Go through the phases and record each. Nodes that are lost on the way stay lost.

        Raises:
            ImpossibleError: there will be no verdict.
        """

    def add_results(self, gathered: FleetFacts) -> FleetFacts:
        """Add what the phases found out."""


class NodeSession:
    """All nodes of one run.

    Attributes:
        members: the ranks of all that came, lost or not.
        snapshots: their own facts, by rank.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.members: list[int] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.phases: list[Phase] = []

    @property
    def present(self) -> list[int]:
        """Ranks of the nodes that came and aren't lost."""
        return [rank for rank in self.members if not self.hub.peers[rank].lost]

    def node(self, rank: int) -> Node:
        """The node of that rank, as its facts and its connection show it."""
        peer = self.hub.peers[rank]
        return node_of(
            self.snapshots[rank],
            rank=rank,
            host=peer.host,
            address=peer.address if rank else node_0_address(self.hub, peer.address),
            offset=peer.offset,
            error=peer.error,
            lost=peer.lost,
        )

    def record(self, name: str, passed: Passed, began: float, reason: str = "") -> None:
        """Record a phase that has ended; it began at `began` (time.monotonic())."""
        self.phases.append(Phase(name=name, passed=passed, seconds=round(time.monotonic() - began, 3), reason=reason))

    def not_tested(self, name: str, reason: str) -> None:
        """Record a phase that isn't run."""
        self.phases.append(Phase(name=name, passed=Passed.NOT_TESTED, reason=reason))

    async def ask(self, orders: Mapping[int, object], kind: type[A], seconds: float) -> dict[int, A]:
        """Give the answers of that type by rank; a node that can't carry out the order has none."""
        answers = await self.hub.ask(orders, seconds)  # type: ignore[arg-type]
        return {rank: answer for rank, answer in answers.items() if isinstance(answer, kind)}

    async def run_phases(self, coordinator: PhaseCoordinator, wait: float) -> FleetFacts:
        """Go through all phases, beginning after `wait` seconds without those who haven't come."""
        await self._join(wait)
        joined_at = time.monotonic()
        await coordinator.run()
        fleet = Fleet(
            nodes=tuple(map(self.node, self.members)),
            seat=self.hub.seat,
            expected=self.hub.nnodes,
            absent=tuple(self.hub.absent()),
            doubles=tuple(self.hub.doubles),
            strangers=tuple(self.hub.strangers),
            phases=tuple(self.phases),
        )
        return coordinator.add_results(FleetFacts(fleet, self.snapshots, joined_at))

    async def _join(self, wait: float) -> None:
        began = time.monotonic()
        self.hub.announce("join")
        await self.hub.gather(wait)
        for rank, name in self.hub.names.items():
            peer = self.hub.peers[rank]
            peer.host = name
            # One that was lost before it had sent any facts has none.
            lost = Unknown(f"{name} was {peer.lost}")
            facts = peer.facts or Snapshot(**dict.fromkeys(FACT_GROUPS, lost))  # type: ignore[arg-type]
            self.snapshots[rank] = msgspec.structs.replace(facts, host=name)
        self.members = sorted(self.snapshots)
        count = len(self.present)
        if count == self.hub.nnodes:
            self.record("join", Passed.PASS, began)
        else:
            self.record("join", Passed.FAIL, began, f"{count} of {self.hub.nnodes} came")
        if count < 2:
            self.not_tested("compare", ONLY_ONE_NODE)
        elif unknown := versions_unknown([self.node(rank) for rank in self.present]):
            self.not_tested("compare", f"{unknown}; settings and clocks were compared")
        else:
            self.record("compare", Passed.PASS, time.monotonic())
