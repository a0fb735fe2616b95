"""The progress of a smoke training: which stage each rank is in, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from ddpdoctor.base.text import one_line, plural
from ddpdoctor.network_check.progress import NetcheckProgress
from ddpdoctor.report.document import Block, Lines, StyledText
from ddpdoctor.report.live import show_on
from ddpdoctor.report.progress import Pace, Progress
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress
from ddpdoctor.smoke_training.render_marks import Mark, columns, ranks_text
from ddpdoctor.smoke_training.stages import BURN_IN

STARTING: Final = "starting; the target Python imports torch"
MAX_DRAWN_PLACES: Final = 4
LOW_TERMINAL_LINES: Final = 12
"""Height of a terminal in which one place has to do."""
MAX_TOLD_PLACES: Final = 3


class SmokeProgress(Progress):
    """The state as far as it is known."""

    pace = Pace(steady=5.0, again=(10.0, 30.0, 60.0))
    per_second = 4

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("smoke", clock)
        self.watch: RankMonitor | None = None

    def update(self, watch: RankMonitor) -> None:
        """Something new is known of the ranks."""
        self.watch = watch

    def status(self) -> str:
        watch = self.watch
        if watch is None or not _is_under_way(watch):
            return STARTING
        if places := self._places(watch):
            return "; ".join(words for words, _, _ in places[:MAX_TOLD_PLACES])
        return "the ranks end" if watch.all_over else "between two stages"

    def drawing(self, width: int, height: int, *, unicode: bool) -> Iterator[Block]:
        """Draw the table; what is over for all ranks is counted where there is no room to show it."""
        watch = self.watch
        if watch is None or not _is_under_way(watch):
            yield Lines((StyledText(f"smoke  {STARTING}  {self.seconds:.0f} s", "bold"),))
            return
        head = f"smoke  {plural(len(watch.ranks), 'rank')} over {watch.order.backend}  {self.seconds:.0f} s"
        yield Lines((StyledText(head, "bold"),))
        places = self._places(watch)[: MAX_DRAWN_PLACES if height > LOW_TERMINAL_LINES else 1]
        yield Lines(tuple(_table(watch, width, max(1, height - len(places) - 4), unicode=unicode)))
        for words, seconds, allowed in places:
            style = "cyan" if seconds < allowed / 2 or BURN_IN in words else "bold yellow"
            yield Lines((StyledText(f"  {words}  {seconds:.0f} s of {allowed:.0f}", style),))

    def _places(self, watch: RankMonitor) -> list[tuple[str, float, float]]:
        """Find where the ranks are that haven't ended, those that came least far first: (words, seconds there, seconds allowed)."""
        groups: dict[tuple[str, str], list[RankProgress]] = {}
        for rank in sorted(watch.ranks.values(), key=lambda rank: rank.position):
            if not rank.over and rank.stage and rank.stage not in rank.done:
                # Of a burn-in it is told how long it has gone on; its steps are many.
                groups.setdefault((rank.stage, "" if rank.stage == BURN_IN else rank.step), []).append(rank)
        places = []
        for (stage, step), ranks in groups.items():
            first = min(ranks, key=lambda rank: rank.since)
            where = f"{stage}, {one_line(step)}" if step and step != stage else stage
            words = f"{ranks_text([rank.rank for rank in ranks])}: {where}"
            allowed = watch.order.duration if stage == BURN_IN else watch.due(first) - first.since
            places.append((words, self.clock() - first.since, allowed))
        return places


class JointProgress(NetcheckProgress):
    """The progress of a training over several hosts: first who comes, then how far this host's own ranks are. file: where it is shown, None:
    nowhere."""

    has_shown = False

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__("smoke")
        self._file = file
        self._ranks: SmokeProgress | None = None
        if file is not None:
            show_on(file, self)

    def update(self, watch: RankMonitor) -> None:
        """Something new is known of this host's ranks."""
        if self._file is None:
            return
        if self._ranks is None:
            super().close()
            self._ranks = show_on(self._file, SmokeProgress())
        self._ranks.update(watch)

    def close(self) -> None:
        super().close()
        if self._ranks is not None:
            self._ranks.close()


def _is_under_way(watch: RankMonitor) -> bool:
    return any(rank.stage for rank in watch.ranks.values())


def _mark_of(rank: RankProgress, stage: str) -> Mark:
    if stage in rank.done:
        return Mark.PASSED if rank.done[stage].state.value == "passed" else Mark.NOT_TESTED
    if stage != rank.stage:
        return Mark.NOT_RUN
    return Mark.FAILED if rank.failed_at is not None or rank.gone_at is not None else Mark.RUNNING


def _table(watch: RankMonitor, width: int, most: int, *, unicode: bool) -> Iterator[tuple[StyledText, ...]]:
    """Stages by ranks, in so many lines at most."""
    begun = {rank.stage for rank in watch.ranks.values()}
    begun |= {name for rank in watch.ranks.values() for name in tuple(rank.done)}
    names = [name for name in watch.order.stages if name in begun]
    hidden = max(0, len(names) - most)
    if hidden:
        yield (StyledText(f"  {hidden} stages are over", "dim"),)
    names = names[hidden:]
    fates = {number: tuple(_mark_of(rank, name) for name in names) for number, rank in watch.ranks.items()}
    margin = max(map(len, names))
    grouped = columns(fates, max(8, width - margin - 4))
    yield (StyledText(f"  {'rank':>{margin}}  " + " ".join(column.label for column in grouped), "dim"),)
    for place, name in enumerate(names):
        marks = (piece for column in grouped for piece in (column.cell(place, unicode=unicode), StyledText(" ")))
        yield (StyledText(f"  {name:<{margin}}  "), *marks)
