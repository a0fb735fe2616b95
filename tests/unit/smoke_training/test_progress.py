"""How a smoke training goes while it goes: the live table's drawing, and the lines of a log."""

from __future__ import annotations

import io
import os
import pty
import time
from contextlib import suppress

import pytest
from rich.console import Console

from ddpdoctor.report.live import LineView, LiveView, show_on
from ddpdoctor.report.live_drawing import LiveDrawing
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.progress import SmokeProgress
from ddpdoctor.smoke_training.training_order import TrainingOrder

STAGES = ("import", "device", "barrier", "all_reduce", "shutdown")
HOSTILE = "\x1b[31mred\nsecond line [bold]x[/bold]"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(size: int, clock: Clock) -> tuple[SmokeProgress, RankMonitor]:
    """All ranks have begun their first stage."""
    progress = SmokeProgress(clock)
    watch = RankMonitor(TrainingOrder(nproc=size, world_size=size, stages=STAGES), clock.now)
    for rank in range(size):
        watch.take_rank_message(rank, {"stage": "import", "state": "begun"}, clock.now)
    progress.update(watch)
    return progress, watch


def passes(watch: RankMonitor, rank: int, until: str, now: float) -> None:
    """The rank passes all stages before that one, and begins it."""
    for stage in STAGES[: STAGES.index(until)]:
        watch.take_rank_message(rank, {"stage": stage, "state": "begun"}, now)
        watch.take_rank_message(rank, {"stage": stage, "state": "passed", "seconds": 0.1}, now)
    watch.take_rank_message(rank, {"stage": until, "state": "begun"}, now)


def drawn(progress: SmokeProgress, width: int = 80, height: int = 24) -> list[str]:
    file = io.StringIO()
    # Of a terminal's lines, the last is left empty.
    console = Console(file=file, width=width, height=height + 1, markup=False, emoji=False, highlight=False)
    console.print(LiveDrawing(progress))
    return file.getvalue().rstrip("\n").split("\n")


def test_before_anything_is_heard_it_says_what_takes_so_long() -> None:
    clock = Clock()
    progress = SmokeProgress(clock)
    clock.now += 7
    assert drawn(progress) == ["smoke  starting; the target Python imports torch  7 s"]
    assert progress.status() == "starting; the target Python imports torch"


def test_the_table_shows_who_is_where_and_for_how_long() -> None:
    clock = Clock()
    progress, watch = begun(3, clock)
    for rank, stage in enumerate(("all_reduce", "barrier", "all_reduce")):
        passes(watch, rank, stage, clock.now)
    watch.take_rank_message(0, {"step": "all_reduce of 4 MiB"}, clock.now)
    watch.take_rank_message(2, {"step": "all_reduce of 4 MiB"}, clock.now)
    clock.now += 20
    assert [line.rstrip() for line in drawn(progress)] == [
        "smoke  3 ranks over gloo  20 s",
        "        rank  0 1 2",
        "  import      ✓ ✓ ✓",
        "  device      ✓ ✓ ✓",
        "  barrier     ✓ ▸ ✓",
        "  all_reduce  ▸ · ▸",
        "  rank 1: barrier  20 s of 30",
        "  ranks 0 and 2: all_reduce, all_reduce of 4 MiB  20 s of 30",
    ]


@pytest.mark.parametrize(
    ("size", "width", "height"), [(1, 40, 10), (8, 40, 8), (64, 80, 24), (64, 40, 6), (512, 80, 8)]
)
def test_it_fits_whatever_the_terminal(size: int, width: int, height: int) -> None:
    clock = Clock()
    progress, watch = begun(size, clock)
    for rank in range(size):
        passes(watch, rank, STAGES[rank % 4 + 1], clock.now)
    lines = drawn(progress, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_nothing_that_a_rank_says_steers_the_terminal() -> None:
    clock = Clock()
    progress, watch = begun(1, clock)
    watch.take_rank_message(0, {"step": HOSTILE}, clock.now)
    assert "\x1b" not in "".join(drawn(progress))
    assert "second line" in drawn(progress)[-1]


def test_a_log_gets_a_line_only_when_something_takes_long() -> None:
    clock = Clock()
    file = io.StringIO()
    progress, watch = begun(2, clock)
    lines = LineView(progress, file)
    lines.close()
    assert lines.due() == ""
    clock.now += 4
    assert lines.due() == ""
    clock.now += 2
    assert lines.due() == "ddpdoctor smoke, 6 s: ranks 0 and 1: import (for 6 s)"
    clock.now += 5
    assert lines.due() == ""
    clock.now += 6
    assert lines.due() == "ddpdoctor smoke, 17 s: ranks 0 and 1: import (for 17 s)"
    passes(watch, 0, "barrier", clock.now)
    assert lines.due() == ""
    clock.now += 6
    assert lines.due() == "ddpdoctor smoke, 23 s: rank 1: import; rank 0: barrier (for 6 s)"


def test_without_a_terminal_there_are_lines_and_they_end() -> None:
    progress = show_on(io.StringIO(), SmokeProgress())
    assert isinstance(progress.view, LineView)
    progress.close()
    progress.close()


def test_a_terminal_is_left_as_it_was() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file:
        clock = Clock()
        progress, watch = begun(2, clock)
        view = LiveView(progress, file)
        time.sleep(0.6)
        view.close()
        view.close()
    shown = ""
    # The other side is closed: the end is an error.
    with suppress(OSError):
        while text := os.read(ours, 100_000):
            shown += text.decode()
    os.close(ours)
    assert "ranks over gloo" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert progress.watch is watch


def test_of_a_burn_in_it_says_how_long_it_has_gone_on_and_no_step() -> None:
    """A step every moment would be a line that is never steady."""
    clock = Clock()
    progress = SmokeProgress(clock)
    order = TrainingOrder(nproc=2, world_size=2, stages=("burn-in", "shutdown"), duration=600.0)
    watch = RankMonitor(order, clock.now)
    for rank in range(2):
        watch.take_rank_message(rank, {"stage": "burn-in", "state": "begun"}, clock.now)
    progress.update(watch)
    clock.now += 90
    for rank in range(2):
        watch.take_rank_message(rank, {"step": f"training steps {rank} to 9"}, clock.now)
    assert progress.status() == "ranks 0 and 1: burn-in"
    assert drawn(progress)[-1].rstrip() == "  ranks 0 and 1: burn-in  90 s of 600"
