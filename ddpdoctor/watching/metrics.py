"""What is watched as metrics for Prometheus: how long each job and rank has been still, who holds the others up, alarms, and our own cost."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from ddpdoctor.base.version import __version__
from ddpdoctor.report.metrics import MeasuredGauges


class RankMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """idle: seconds since its main thread ran. holds_up: seconds for which the others have waited for it, 0.0 if they don't."""

    rank: int
    idle: float
    holds_up: float = 0.0


class JobMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """still: seconds since the job moved, as far as its stacks were read; 0.0 where it moves."""

    job: str
    still: float
    hangs: bool
    ranks: tuple[RankMeasure, ...]


def watch_metrics(jobs: Iterable[JobMeasure], *, alarms: int, processor_seconds: float) -> str:
    """Build the metrics of one look.

    Args:
        jobs: that are watched.
        alarms: since the watch began.
        processor_seconds: that it has used, with what it has started.
    """
    gauges = MeasuredGauges()
    gauges.add("build_info", "The ddpdoctor that ran; always 1.", "version").add_metric((__version__,), 1)
    gauges.add("watch_last_look_timestamp_seconds", "When the jobs were looked at, in seconds since 1970.").add_metric(
        (), time.time()
    )
    gauges.add("watch_alarms", "Jobs that stopped moving since the watch began.").add_metric((), alarms)
    gauges.add("watch_processor_seconds", "Processor time of the watch itself, with what it starts.").add_metric(
        (), processor_seconds
    )
    still = gauges.add(
        "watch_job_still_seconds", "Since the job moved, as far as stacks were read; 0: it moves.", "job"
    )
    hangs = gauges.add("watch_job_hangs", "1 from the alarm until the job moves again.", "job")
    idle = gauges.add(
        "watch_rank_idle_seconds", "Since the rank's main thread ran: it waits, in a collective as well.", "job", "rank"
    )
    holds_up = gauges.add(
        "watch_rank_holds_up_seconds", "For so long the others have waited for this rank, which works.", "job", "rank"
    )
    for job in jobs:
        still.add_metric((job.job,), job.still)
        hangs.add_metric((job.job,), float(job.hangs))
        for rank in job.ranks:
            idle.add_metric((job.job, str(rank.rank)), rank.idle)
            holds_up.add_metric((job.job, str(rank.rank)), rank.holds_up)
    return gauges.text()
