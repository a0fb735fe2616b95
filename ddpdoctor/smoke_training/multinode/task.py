"""`ddpdoctor smoke` over several nodes: they meet as for netcheck, and then train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Catalogue, Result, Subject
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import RankEnding, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.node_facts import FACT_GROUPS
from ddpdoctor.network_check.node_session import NodeSession, PhaseCoordinator
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.network_check.results import ProgressListener
from ddpdoctor.network_check.task import Worker
from ddpdoctor.smoke_training.analysis.verdict import checks_of_plans
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.multinode.coordinator import CoordinatorOptions, TrainingCoordinator
from ddpdoctor.smoke_training.multinode.remote_training import NodeOptions, RemoteTraining

FAMILIES: Final = ("join", "compare", "smoke")
MAY_SAY_WHY: Final = "network"
"""Judged as well where the nodes didn't meet, or their training failed."""

LEAST_SECONDS: Final = 3600.0
"""That the others give node 0, whose --timeout they don't know."""


class JointProgressListener(ProgressListener, Protocol):
    """Who is told how a training over several hosts goes: first who comes, then how far this host's own ranks are.

    has_shown: the report has been told already.
    """

    has_shown: bool

    def heard(self, watch: RankMonitor) -> None:
        """How far the ranks are has changed."""


class SmokeTask:
    """share: of this node; terms: of node 0, which count for all. heard: as for `running.run`."""

    command: str = "smoke"
    groups: Sequence[str] = FACT_GROUPS

    def __init__(
        self,
        share: NodeOptions,
        terms: CoordinatorOptions,
        catalogue: Catalogue,
        on_progress: Callable[[RankMonitor], None] = lambda monitor: None,
    ) -> None:
        self.catalogue = catalogue
        self._share = share
        self._terms = terms
        self._on_progress = on_progress
        self.seconds = max(LEAST_SECONDS, 2 * (terms.import_seconds + len(terms.stages) * terms.seconds))

    def meeting(self, meeting: Meeting) -> Meeting:
        return msgspec.structs.replace(meeting, nproc=self._share.nproc)

    def programme(self, company: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        return TrainingCoordinator(company, self._terms, self.catalogue, master=master, store_port=store_port)

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> Worker:
        return RemoteTraining(self._share, snapshot, master, python, environ, self._on_progress)

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        """Each node's own findings: of a rank on the node that runs it, of the whole on node 0."""
        families = FAMILIES if all(map(_went_well, snapshots)) else (*FAMILIES, MAY_SAY_WHY)
        checks = [check for check in self.catalogue.checks if check.family in families]
        of_plans = [check for check in checks_of_plans(self.catalogue) if check not in checks]
        return [
            own_part(examine(snapshot, _ranks_here(snapshot), [*checks, *(of_plans if _has_a_plan(snapshot) else [])]))
            for snapshot in snapshots
        ]


def _has_a_plan(snapshot: Snapshot) -> bool:
    """Whether it was settled what the node runs, or was to run: what its launcher started may see other GPUs than it does."""
    return isinstance(snapshot.smoke, Smoke) and bool(snapshot.smoke.ranks or snapshot.smoke.world_size)


def _ranks_here(snapshot: Snapshot) -> int | None:
    """How many ranks the node runs, or was to run; None where that was never settled."""
    smoke, meeting = snapshot.smoke, snapshot.meeting
    if not isinstance(smoke, Smoke) or not isinstance(meeting, Meeting):
        return None
    if not smoke.ranks:
        # The launcher itself is the better source of the same number.
        by_launcher = meeting.launched and plan_for(snapshot).nproc == smoke.world_size
        return None if by_launcher else smoke.world_size or None
    return sum(rank.node == meeting.node_rank for rank in smoke.ranks) or None


def _went_well(snapshot: Snapshot) -> bool:
    smoke = snapshot.smoke
    if not isinstance(smoke, Smoke) or not smoke.ranks:
        # The others aren't there, or aren't met.
        return isinstance(snapshot.meeting, Meeting) and snapshot.meeting.joined
    return all(rank.ending is RankEnding.FINISHED for rank in smoke.ranks)


def own_part(examination: Examination) -> Examination:
    """It without what the family smoke says of the ranks of other nodes, whose facts lie in every node's; a plan is a node's own."""
    snapshot = examination.snapshot
    if not isinstance(snapshot.smoke, Smoke) or not isinstance(snapshot.meeting, Meeting):
        return examination
    node = snapshot.meeting.node_rank
    ranks = snapshot.smoke.ranks
    own = {rank.rank for rank in ranks if rank.node == node}

    def mine(result: Result) -> Result:
        if result.check.family != "smoke" or Subject.OWN_HOST in result.check.judges or not ranks:
            return result
        kept = (finding for finding in result.findings if (node == 0 if finding.rank is None else finding.rank in own))
        return msgspec.structs.replace(result, findings=tuple(kept))

    return msgspec.structs.replace(examination, results=tuple(map(mine, examination.results)))
