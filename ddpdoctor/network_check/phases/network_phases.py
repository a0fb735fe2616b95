"""netcheck's phases, in their order: who reaches whom, how good the links are, and torch's store with its collectives."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from ddpdoctor.facts.fleet import Link, Node, Passed, Reach, TriedCollective
from ddpdoctor.network_check.analysis.collective_preconditions import why_no_gloo, why_no_nccl
from ddpdoctor.network_check.listen_address import node_0_address
from ddpdoctor.network_check.node_session import ONLY_ONE_NODE, FleetFacts, NodeSession
from ddpdoctor.network_check.phases.links_phase import LinksPhase
from ddpdoctor.network_check.phases.reach_phase import ReachResult, count_failures, who_reaches_whom
from ddpdoctor.network_check.protocol.messages import Answer, Collect, Collected, OrderFailed

COLLECTIVE_SECONDS = 60.0
"""Of gloo and of NCCL, with the import of torch, which may take half of it over NFS. What is known to hang isn't started;
who fails ends the others' waiting; of what hangs without a word, an InfiniBand that doesn't answer takes longest: its
hardware gives up after 30 s (NCCL_IB_TIMEOUT=20, seven times)."""


class NetworkCoordinator:
    """The lead through netcheck's phases.

    Args:
        session: the nodes.
        quick: no collectives.
        master: where the real store shall listen.
        store_port: its port there.
    """

    def __init__(self, session: NodeSession, *, quick: bool, master: str, store_port: int) -> None:
        self._session = session
        self._quick = quick
        self._master = master
        self._store_port = store_port
        self._reach = ReachResult()
        self._links: tuple[Link, ...] = ()
        self._collectives: tuple[TriedCollective, ...] = ()

    async def run(self) -> None:
        self._reach = await self._run_reach()
        if reason := self.why_pointless():
            self._session.not_tested("links", reason)
        else:
            self._links = await LinksPhase(self._session, self._reach.reach).run()
        self._collectives = await self.run_collectives(self._reach.reach, self._links)

    def add_results(self, gathered: FleetFacts) -> FleetFacts:
        fleet = msgspec.structs.replace(
            gathered.fleet,
            nodes=tuple(map(self._with_reach, gathered.fleet.nodes)),
            reach=self._reach.reach,
            links=self._links,
            collectives=self._collectives,
        )
        return msgspec.structs.replace(gathered, fleet=fleet)

    def present_nodes(self) -> list[Node]:
        """The nodes that aren't lost, with what the first phase found out about each."""
        return [self._with_reach(self._session.node(rank)) for rank in self._session.present]

    def _with_reach(self, node: Node) -> Node:
        return msgspec.structs.replace(node, **self._reach.found.get(node.rank, {}))

    async def _run_reach(self) -> ReachResult:
        session = self._session
        if len(session.present) < 2:
            session.not_tested("reach", ONLY_ONE_NODE)
            return ReachResult()
        began = time.monotonic()
        session.hub.announce("reach")
        result = await who_reaches_whom(session.hub, session.members)
        session.record("reach", Passed.PASS if result.whole else Passed.FAIL, began, result.untested)
        return result

    def why_pointless(self) -> str:
        """Why there is no sense in going on to transfers and collectives; "" where there is."""
        if len(self._session.present) < 2:
            return ONLY_ONE_NODE
        failed = count_failures(reach for reach in self._reach.reach if reach.kind == "route")
        return self._reach.untested or ("the nodes don't reach each other" if failed else "")

    async def run_collectives(self, reach: Sequence[Reach], links: Sequence[Link]) -> tuple[TriedCollective, ...]:
        """Run gloo and then NCCL, where nothing speaks against it, and record both phases."""
        session = self._session
        snapshots = session.snapshots
        reason = "--quick" if self._quick else self.why_pointless()
        if reason := reason or why_no_gloo(self.present_nodes(), snapshots, reach, links):
            session.not_tested("gloo", reason)
            session.not_tested("nccl", reason)
            return ()
        await session.hub.close_port()
        tried = await self.run_collective("gloo")
        reason = why_no_nccl(self.present_nodes(), snapshots, reach)
        if reason or not all(outcome.ok for outcome in tried):
            session.not_tested("nccl", reason or "gloo failed")
            return tried
        return (*tried, *await self.run_collective("nccl"))

    async def run_collective(self, backend: str) -> tuple[TriedCollective, ...]:
        """Run one backend on all nodes that are there, and record the phase."""
        session = self._session
        hub, present = session.hub, session.present
        began = time.monotonic()
        hub.announce(backend)
        orders = {
            rank: Collect(
                backend=backend,
                master=node_0_address(hub, self._master),
                port=self._store_port,
                rank=number,
                world_size=len(present),
                seconds=COLLECTIVE_SECONDS,
            )
            for number, rank in enumerate(present)
        }
        answers = await hub.ask(orders, COLLECTIVE_SECONDS + 10, _is_failure)
        # Where one node can't even try, the others have waited for it; where none can, nothing was tested.
        reasons = [answer.why for answer in answers.values() if isinstance(answer, OrderFailed)]
        if present and len(reasons) == len(present):
            session.not_tested(backend, "; ".join(dict.fromkeys(reasons)))
            return ()
        tried = tuple(_outcome(rank, backend, answers.get(rank), hub.peers[rank].lost) for rank in present)
        session.record(backend, Passed.PASS if all(outcome.ok for outcome in tried) else Passed.FAIL, began)
        return tried


def _is_failure(answer: Answer) -> bool:
    """Whether the other ranks of a collective wait in vain after this one's answer."""
    return not (isinstance(answer, Collected) and answer.ok)


def _outcome(rank: int, backend: str, answer: Answer | None, lost: str) -> TriedCollective:
    if isinstance(answer, Collected):
        return TriedCollective(node=rank, backend=backend, **msgspec.structs.asdict(answer))
    words = answer.why if isinstance(answer, OrderFailed) else lost or "no answer"
    return TriedCollective(node=rank, backend=backend, stage="start", ok=False, words=words)
