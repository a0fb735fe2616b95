"""How long the doctor waits: until there is news, and never past what has been heard already."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.waiting import slowdown

STAGES = ("import", "shutdown")
AGO = 100.0
"""Since when the doctor was stopped; a stage may take 1 s."""


def all_end(watch: RankMonitor) -> None:
    now = time.monotonic()
    for rank in watch.ranks:
        watch.take_rank_message(rank, {"stage": "shutdown", "state": "passed"}, now)
        watch.take_rank_message(rank, {"finished": True}, now)
        watch.note_disconnect(rank, now)
    watch.note_engine_end(0, now)


def one_fails(watch: RankMonitor) -> None:
    watch.take_rank_message(1, {"stage": "shutdown", "state": "failed", "error": "ValueError: odd"}, time.monotonic())
    watch.take_rank_message(0, {"stage": "shutdown", "state": "begun"}, time.monotonic())
    for rank in watch.ranks:
        watch.note_disconnect(rank, time.monotonic())


@pytest.mark.parametrize("backlog", [all_end, one_fails])
def test_what_is_heard_while_the_backlog_is_heard_is_not_missed(backlog: Callable[[RankMonitor], None]) -> None:
    """Of a doctor who was stopped, or had no core, for longer than a stage may take."""
    run = RankRunner(
        TrainingOrder(nproc=2, world_size=2, stages=STAGES, seconds=1.0, import_seconds=1.0),
        sys.executable,
        {},
        lambda watch: None,
    )
    watch = run.monitor
    for rank in watch.ranks:
        assert watch.introduce(rank, 2**22 + rank)
        watch.take_rank_message(rank, {"stage": "import", "state": "begun"}, time.monotonic() - AGO)
    assert watch.late_ranks(time.monotonic())

    def news() -> None:
        backlog(watch)
        run.take_news()

    async def go() -> None:
        asyncio.get_running_loop().call_later(0.01, news)
        await asyncio.wait_for(run.wait_until_over(), 8 * slowdown())

    asyncio.run(go())
    assert run.stuck == []
