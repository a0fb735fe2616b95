"""The process that judges a share of a sweep's snapshots: bundles of them come in on standard input, a `Sweep` goes out."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Final

import msgspec

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.registry import Check
from ddpdoctor.fleet_sweep.judging import FleetJudge
from ddpdoctor.fleet_sweep.sources import SnapshotSource
from ddpdoctor.fleet_sweep.sweeping import Job, judge_all, read_message

OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000


def main() -> None:
    """Judge what comes in. A signal from the terminal is for the process that started this one, which then ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What was loaded stays. Checks that end by an exception leave cycles, so that collecting can't be left out.
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    job = msgspec.msgpack.decode(read_message(sys.stdin.buffer) or b"", type=Job)
    judge = FleetJudge(_checks(job), job.nproc)
    while (message := read_message(sys.stdin.buffer)) is not None:
        judge_all(judge, msgspec.msgpack.decode(message, type=list[SnapshotSource]))
    sys.stdout.buffer.write(msgspec.msgpack.encode(judge.sweep))


def _checks(job: Job) -> list[Check]:
    found = (catalogue().get(slug) for slug in job.checks)
    return [check for check in found if check]
