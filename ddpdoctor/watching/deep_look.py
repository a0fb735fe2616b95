"""The costly look at a job that seems to stand still: its ranks' stacks for two seconds, and what else tells whether it moves."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from ddpdoctor.facts.hang import Hang, RankLook, Watched, WatchedRank
from ddpdoctor.facts.processes import Processes
from ddpdoctor.hang.watching import watch
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.watching.counters import Counters, Helpers, count, count_helpers

SECONDS: Final = 2
"""So long the stacks are read, a hundred times a second; that takes some 0.1 s of a processor for each process."""


class DeepLook(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a job's ranks within two seconds. Times on the monotonic clock."""

    began: float
    ended: float
    hang: Hang
    before: Mapping[int, Counters] = {}
    """By pid, of the ranks."""
    after: Mapping[int, Counters] = {}
    helpers_before: Mapping[int, Helpers] = {}
    helpers_after: Mapping[int, Helpers] = {}

    def rank(self, number: int) -> WatchedRank | None:
        """What was seen of that rank."""
        return self.hang.rank(number)


async def look_deeply(
    job: TrainingJob, processes: Processes, host: str, proc: Proc, asleep: Collection[int]
) -> DeepLook:
    """Look at the ranks of a job, and at their DataLoader workers; none is held up. asleep: pids of ranks that don't run, of which
    two stacks are enough."""
    pids = [rank.pid for rank in job.ranks]
    workers = frozenset(worker.pid for rank in job.ranks for worker in job.workers_of(rank))
    began = time.monotonic()
    before, helpers_before = _count(job, proc), count_helpers(pids, workers, proc)
    hang = await watch(job, processes, host, SECONDS, proc, asleep)
    after, helpers_after = _count(job, proc), count_helpers(pids, workers, proc)
    return DeepLook(
        began=began,
        ended=time.monotonic(),
        hang=hang,
        before=before,
        after=after,
        helpers_before=helpers_before,
        helpers_after=helpers_after,
    )


def _count(job: TrainingJob, proc: Proc) -> dict[int, Counters]:
    return {rank.pid: counters for rank in job.ranks if (counters := count(rank.identity, proc))}


def whole_look(first: DeepLook, last: DeepLook) -> Hang:
    """Put two deep looks together as one that lasted from the beginning of the first to the end of the last: what was the same in
    both, and didn't move in between, has stood still for all that time."""
    if first is last:
        return last.hang
    later = last.began - first.began
    return msgspec.structs.replace(
        last.hang,
        between=round(last.hang.between + later, 3),
        ranks=tuple(_joined_rank(first.rank(rank.rank), rank, later) for rank in last.hang.ranks),
    )


def _joined_rank(first: WatchedRank | None, last: WatchedRank, later: float) -> WatchedRank:
    workers = {worker.pid: worker for worker in first.workers} if first else {}
    return msgspec.structs.replace(
        last,
        watched=_joined(first.watched if first else None, last.watched, later),
        workers=tuple(joined for worker in last.workers if (joined := _joined(workers.get(worker.pid), worker, later))),
    )


def _joined(first: Watched | None, last: Watched | None, later: float) -> Watched | None:
    if first is None or last is None or first.pid != last.pid or not first.looks or not last.looks:
        return last
    return msgspec.structs.replace(
        last,
        looks=(first.looks[0], _later(last.last, later)),
        samples=first.samples + last.samples,
        elsewhere=first.elsewhere + last.elsewhere,
        moved=first.moved + last.moved,
    )


def _later(look: RankLook, seconds: float) -> RankLook:
    return msgspec.structs.replace(look, seconds=round(look.seconds + seconds, 3))
