"""An engine that something stops: its ranks never come, and that is told of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress

from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.command import plain_environ
from tests.support.smoke_runs import run_ranks


def test_a_stopped_engine_is_told() -> None:
    def stop(watch: RankMonitor) -> None:
        if watch.engine_pid:
            with suppress(ProcessLookupError):
                os.kill(watch.engine_pid, signal.SIGSTOP)

    order = TrainingOrder(nproc=1, world_size=1, seconds=3.0, import_seconds=8.0)
    ran = asyncio.run(run_ranks(order, environ=plain_environ(), on_progress=stop))
    assert re.fullmatch(r"no rank had begun after 8 s: torch's engine \(process \d+\) is stopped", ran.problem)
    assert [rank.process_state for rank in ran.ranks] == ["stopped"]
