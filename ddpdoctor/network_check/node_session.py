"""The nodes that have met, as a programme works with them on node 0, and the record of the phases that they go through."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from ddpdoctor.facts.fleet import Fleet, Node, Passed, Phase
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.node_facts import node_of
from ddpdoctor.network_check.listen_address import node_0_address
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import Answer

A = TypeVar("A", bound=Answer)

ONLY_ONE_NODE = "only one node is there"


class ImpossibleError(Exception):
    """What the nodes were told to do can't be done by all of them together; the text says why."""


class FleetFacts(msgspec.Struct, frozen=True):
    """All that the phases gave: the fleet, each node's own facts, and when the last node had joined (time.monotonic)."""

    fleet: Fleet
    snapshots: dict[int, Snapshot]
    joined_at: float


class NodeSession:
    """members: the ranks of all that came, lost or not. snapshots: their own facts."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.members: list[int] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.phases: list[Phase] = []

    @property
    def there(self) -> list[int]:
        """Ranks of the nodes that came and aren't lost."""
        return [rank for rank in self.members if not self.hub.peers[rank].lost]

    def node(self, rank: int) -> Node:
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

    def ended(self, name: str, passed: Passed, began: float, reason: str = "") -> None:
        """began: by time.monotonic()."""
        self.phases.append(Phase(name=name, passed=passed, seconds=round(time.monotonic() - began, 3), reason=reason))

    def not_tested(self, name: str, reason: str) -> None:
        self.phases.append(Phase(name=name, passed=Passed.NOT_TESTED, reason=reason))

    async def ask(self, orders: Mapping[int, object], kind: type[A], seconds: float) -> dict[int, A]:
        """The answers of that type; a node that can't carry out the order has none."""
        answers = await self.hub.ask(orders, seconds)  # type: ignore[arg-type]
        return {rank: answer for rank, answer in answers.items() if isinstance(answer, kind)}


class PhaseCoordinator(Protocol):
    """What the nodes do once they have met and have been compared."""

    async def go(self) -> None:
        """Goes through its phases, each of which is recorded. Nodes that are lost on the way stay lost.

        Raises:
            ImpossibleError: there will be no verdict.
        """

    def told(self, gathered: FleetFacts) -> FleetFacts:
        """With all that the phases found out."""
