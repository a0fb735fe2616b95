"""Tasks for which the nodes of a job meet: netcheck itself, or another command that needs all of them."""

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


class OrderHandler(Protocol):
    """Carries out the hub's orders on one node."""

    def welcome(self, welcome: Welcome) -> None:
        """Take in as which node of which run the hub has let us in."""

    async def carry_out(self, order: Order) -> Answer:
        """Carry out one order. It raises what goes wrong beyond what an answer can say."""

    async def close(self) -> None:
        """End all that it has started."""

    def add_facts(self, snapshot: Snapshot) -> Snapshot:
        """Add to this node's facts what it found out itself."""

    def ignored_options(self) -> Iterable[str]:
        """Give a sentence for each option of this node that node 0 decided otherwise."""


class Task(Protocol):
    """Everything that is special to one command; the same on all nodes."""

    command: str
    groups: Sequence[str]
    """The groups of facts that each node brings."""
    seconds: float
    """How long it may take when all have come."""

    def meeting(self, meeting: Meeting) -> Meeting:
        """Add what the others are to know of this node's options."""

    def coordinator(self, session: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        """Make what leads the phases on node 0. master, store_port: where torch's own store shall listen."""

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> OrderHandler:
        """Make the worker of a node; arguments as for `NetcheckWorker`."""

    @property
    def catalogue(self) -> Catalogue:
        """All checks: what another node's ddpdoctor says is shown with their pages."""

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        """Judge each node's facts, with those of the fleet in them."""

    def end_early(self, number: int) -> bool:
        """Have what takes long end soon and with a result, for that signal; False where it can't."""


class Netcheck:
    """The task of `ddpdoctor netcheck`; a quick one runs nothing of torch."""

    command: str = "netcheck"
    groups: Sequence[str] = FACT_GROUPS
    seconds = 1800.0
    """Thousands of nodes take some minutes."""

    def __init__(self, catalogue: Catalogue, *, quick: bool) -> None:
        self.catalogue = catalogue
        self._quick = quick

    def meeting(self, meeting: Meeting) -> Meeting:
        return meeting

    def coordinator(self, session: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        return NetworkCoordinator(session, quick=self._quick, master=master, store_port=store_port)

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> OrderHandler:
        return NetcheckWorker(snapshot, address, master, python, environ, quick=self._quick)

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        return judge(snapshots, self.catalogue)

    def end_early(self, number: int) -> bool:
        return False
