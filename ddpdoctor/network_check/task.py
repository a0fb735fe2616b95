"""What the nodes of a job meet for: netcheck itself, or another command that needs all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.node_facts import FACT_GROUPS
from ddpdoctor.network_check.analysis.verdicts import judge
from ddpdoctor.network_check.node_session import NodeSession, PhaseCoordinator
from ddpdoctor.network_check.phases.network_phases import NetworkCoordinator
from ddpdoctor.network_check.protocol.messages import Answer, Order, Welcome
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.network_check.worker import NetcheckWorker


class Worker(Protocol):
    """One node's hands: carries out the orders of the hub."""

    def welcome(self, welcome: Welcome) -> None:
        """The hub has let us in, as this node of this run."""

    async def carry_out(self, order: Order) -> Answer:
        """Does as told. What goes wrong beyond what an answer can say is raised."""

    async def close(self) -> None:
        """Nothing of it is left."""

    def told(self, snapshot: Snapshot) -> Snapshot:
        """This node's facts with what it found out itself."""

    def in_vain(self) -> Iterable[str]:
        """What was asked for here, and node 0 decided otherwise: a sentence each."""


class Task(Protocol):
    """What is special to one command; the same on all nodes."""

    command: str
    groups: Sequence[str]
    """Of facts, which each node brings."""
    seconds: float
    """That it may take, when all have come."""

    def meeting(self, meeting: Meeting) -> Meeting:
        """With what the others are to know of this node's wishes."""

    def programme(self, session: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        """On node 0. master, store_port: where torch's own store shall listen."""

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> Worker:
        """On every node; as for `NetcheckWorker`."""

    @property
    def catalogue(self) -> Catalogue:
        """All checks: what another node's ddpdoctor says is told with their pages."""

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        """Each node's facts, with those of the fleet in them."""


class Netcheck:
    """quick: without torch."""

    command: str = "netcheck"
    groups: Sequence[str] = FACT_GROUPS
    seconds = 1800.0
    """Thousands of nodes take some minutes."""

    def __init__(self, catalogue: Catalogue, *, quick: bool) -> None:
        self.catalogue = catalogue
        self._quick = quick

    def meeting(self, meeting: Meeting) -> Meeting:
        return meeting

    def programme(self, session: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        return NetworkCoordinator(session, quick=self._quick, master=master, store_port=store_port)

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> Worker:
        return NetcheckWorker(snapshot, address, master, python, environ, quick=self._quick)

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        return judge(snapshots, self.catalogue)
