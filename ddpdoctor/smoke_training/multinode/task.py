"""The task of a meeting for `ddpdoctor smoke`: the nodes meet as for netcheck, train, and judge what came of it."""

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
from ddpdoctor.network_check.task import OrderHandler
from ddpdoctor.smoke_training.analysis.nccl_report import judge_report
from ddpdoctor.smoke_training.analysis.verdict import checks_of_plans
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.multinode.coordinator import TrainingCoordinator
from ddpdoctor.smoke_training.multinode.remote_training import RemoteTraining
from ddpdoctor.smoke_training.training_order import SmokeOptions

JUDGED_FAMILIES: Final = ("join", "compare", "smoke")
FAMILY_AFTER_FAILURE: Final = "network"
"""Judged as well where the nodes didn't meet, or their training failed."""

MIN_MEETING_SECONDS: Final = 3600.0
"""That the others give node 0, whose --timeout they don't know."""


class JointProgressListener(ProgressListener, Protocol):
    """Is told how a training over several hosts goes: first which nodes come, then how far this host's own ranks are."""

    has_shown: bool
    """Whether the report has been shown already."""

    def update(self, watch: RankMonitor) -> None:
        """Take in that the ranks have come further."""


class SmokeTask:
    """Train together."""

    command: str = "smoke"
    groups: Sequence[str] = FACT_GROUPS

    def __init__(
        self,
        options: SmokeOptions,
        catalogue: Catalogue,
        on_progress: Callable[[RankMonitor], None] = lambda monitor: None,
    ) -> None:
        self.catalogue = catalogue
        self._options = options
        self._on_progress = on_progress
        self._workers: list[RemoteTraining] = []
        self.stopped_by = 0
        """The number of the signal that has ended the burn-in here; 0: none has."""
        longest = 2 * (options.import_seconds + len(options.stages) * options.seconds) + options.duration
        self.seconds = max(MIN_MEETING_SECONDS, longest)

    def meeting(self, meeting: Meeting) -> Meeting:
        return msgspec.structs.replace(meeting, nproc=self._options.nproc)

    def coordinator(self, session: NodeSession, master: str, store_port: int) -> PhaseCoordinator:
        return TrainingCoordinator(session, self._options, self.catalogue, master=master, store_port=store_port)

    def worker(
        self, snapshot: Snapshot, address: Callable[[], str], master: Master, python: str, environ: Mapping[str, str]
    ) -> OrderHandler:
        self._workers.append(RemoteTraining(self._options, snapshot, master, environ, self._on_progress))
        return self._workers[-1]

    def end_early(self, number: int) -> bool:
        ends = any(worker.end_early(number) for worker in self._workers)
        self.stopped_by = number if ends else 0
        return ends

    def judge(self, snapshots: Sequence[Snapshot]) -> list[Examination]:
        """Judge each node: findings on a rank belong to the node that runs it, those on the whole to node 0."""
        families = JUDGED_FAMILIES if all(map(_went_well, snapshots)) else (*JUDGED_FAMILIES, FAMILY_AFTER_FAILURE)
        checks = [check for check in self.catalogue.checks if check.family in families]
        of_plans = [check for check in checks_of_plans(self.catalogue) if check not in checks]
        judged = [
            own_part(examine(snapshot, _ranks_here(snapshot), [*checks, *(of_plans if _has_a_plan(snapshot) else [])]))
            for snapshot in snapshots
        ]
        # NCCL's report speaks of all ranks, so that it stands at node 0.
        first = judged[0]
        smoke = first.snapshot.smoke
        reported = judge_report(smoke, self.catalogue) if isinstance(smoke, Smoke) else ()
        return [msgspec.structs.replace(first, results=(*first.results, *reported)), *judged[1:]]


def _has_a_plan(snapshot: Snapshot) -> bool:
    """Whether it was settled what the node runs, or was to run: the ranks of a launcher may see other GPUs than this process."""
    return isinstance(snapshot.smoke, Smoke) and bool(snapshot.smoke.ranks or snapshot.smoke.world_size)


def _ranks_here(snapshot: Snapshot) -> int | None:
    """The number of ranks that the node runs, or was to run; None where that was never settled."""
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
        # No rank was ordered: the nodes have met at least, or not even that.
        return isinstance(snapshot.meeting, Meeting) and snapshot.meeting.joined
    return all(rank.ending is RankEnding.FINISHED for rank in smoke.ranks)


def own_part(examination: Examination) -> Examination:
    """Take out what the family smoke says of the ranks of other nodes, whose facts every node has; a plan is a node's own."""
    snapshot = examination.snapshot
    if not isinstance(snapshot.smoke, Smoke) or not isinstance(snapshot.meeting, Meeting):
        return examination
    node = snapshot.meeting.node_rank
    ranks = snapshot.smoke.ranks
    own = {rank.rank for rank in ranks if rank.node == node}

    def without_others(result: Result) -> Result:
        if result.check.family != "smoke" or Subject.OWN_HOST in result.check.judges or not ranks:
            return result
        kept = (finding for finding in result.findings if (node == 0 if finding.rank is None else finding.rank in own))
        return msgspec.structs.replace(result, findings=tuple(kept))

    return msgspec.structs.replace(examination, results=tuple(map(without_others, examination.results)))
