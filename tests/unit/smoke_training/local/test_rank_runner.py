"""How long the doctor waits: until there is news, and never past what has been heard already."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import _Run
from ddpdoctor.smoke_training.training_order import TrainingOrder

STAGES = ("import", "shutdown")
AGO = 100.0
"""Since when the doctor was stopped; a stage may take 1 s."""


def all_end(watch: RankMonitor) -> None:
    now = time.monotonic()
    for rank in watch.ranks:
        watch.hear(rank, {"stage": "shutdown", "state": "passed"}, now)
        watch.hear(rank, {"finished": True}, now)
        watch.gone(rank, now)
    watch.engine_ended(0, now)


def one_fails(watch: RankMonitor) -> None:
    watch.hear(1, {"stage": "shutdown", "state": "failed", "error": "ValueError: odd"}, time.monotonic())
    watch.hear(0, {"stage": "shutdown", "state": "begun"}, time.monotonic())
    for rank in watch.ranks:
        watch.gone(rank, time.monotonic())


@pytest.mark.parametrize("backlog", [all_end, one_fails])
def test_what_is_heard_while_the_backlog_is_heard_is_not_missed(backlog: Callable[[RankMonitor], None]) -> None:
    """Of a doctor who was stopped, or had no core, for longer than a stage may take."""
    run = _Run(
        TrainingOrder(nproc=2, world_size=2, stages=STAGES, seconds=1.0, import_seconds=1.0),
        sys.executable,
        {},
        lambda watch: None,
    )
    watch = run._watch
    for rank in watch.ranks:
        assert watch.introduced(rank, 2**22 + rank)
        watch.hear(rank, {"stage": "import", "state": "begun"}, time.monotonic() - AGO)
    assert watch.late(time.monotonic())

    def news() -> None:
        backlog(watch)
        run._tell()

    async def go() -> None:
        asyncio.get_running_loop().call_later(0.01, news)
        await asyncio.wait_for(run._until_over(), 8.0)

    asyncio.run(go())
    assert run._late == []
