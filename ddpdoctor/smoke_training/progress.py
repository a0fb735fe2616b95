"""How a smoke training goes while it goes: a live table where stderr is a terminal, else a line when something takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from ddpdoctor.base.text import one_line
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress
from ddpdoctor.smoke_training.render_marks import Mark, ranks_text

_QUIET_SECONDS = 5.0
"""What is over by then needs no words."""
_AGAIN_SECONDS = (10.0, 30.0, 60.0)
"""After how long the same is said again: the first time, the second, and from then on."""


class SmokeView(Protocol):
    """Who is told how it goes."""

    def heard(self, watch: RankMonitor) -> None:
        """Something new is known; returns at once."""

    def close(self) -> None:
        """The report comes now, or nothing more: the screen is as it was before. More than once does no harm."""


class SmokeProgress:
    """What is known so far; both views read it, from a thread of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.watch: RankMonitor | None = None

    @property
    def seconds(self) -> float:
        return self.clock() - self.began

    def heard(self, watch: RankMonitor) -> None:
        self.watch = watch


def mark_of(one: RankProgress, stage: str) -> Mark:
    """How a stage stands on a rank."""
    if stage in one.done:
        return Mark.PASSED if one.done[stage].state.value == "passed" else Mark.NOT_TESTED
    if stage != one.stage:
        return Mark.NOT_RUN
    return Mark.FAILED if one.failed_at is not None or one.gone_at is not None else Mark.RUNNING


def places(progress: SmokeProgress) -> list[tuple[str, float, float]]:
    """Where the ranks are that haven't ended, those that came least far first: (words, seconds there, seconds allowed)."""
    watch = progress.watch
    if watch is None:
        return []
    groups: dict[tuple[str, str], list[RankProgress]] = {}
    for rank in sorted(watch.ranks.values(), key=lambda one: one.position):
        if not rank.over and rank.stage and rank.stage not in rank.done:
            groups.setdefault((rank.stage, rank.step), []).append(rank)
    now = progress.clock()
    first = {place: min(ranks, key=lambda rank: rank.since) for place, ranks in groups.items()}
    return [
        (
            f"{ranks_text([rank.rank for rank in ranks])}: {stage}{f', {one_line(step)}' if step and step != stage else ''}",
            now - first[stage, step].since,
            watch.due(first[stage, step]) - first[stage, step].since,
        )
        for (stage, step), ranks in groups.items()
    ]


def status(progress: SmokeProgress) -> str:
    """How it stands, in one line."""
    watch = progress.watch
    if watch is None or not any(rank.stage for rank in watch.ranks.values()):
        return "starting; the target Python imports torch"
    there = places(progress)
    if there:
        return "; ".join(words for words, _, _ in there[:3])
    return "the ranks end" if watch.all_over else "between two stages"


class SmokeLines(SmokeProgress):
    """For a log: a line on `file` when something takes long, and again when that goes on."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._file = file
        self._said = ""
        self._said_at = 0.0
        self._repeated = 0
        self._seen = ""
        self._seen_at = self.began
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(1)

    def due(self) -> str:
        """The line to say now, or ""."""
        text, now = status(self), self.clock()
        if text != self._seen:
            self._seen, self._seen_at = text, now
        if now - self._seen_at < _QUIET_SECONDS:
            return ""
        again = text == self._said
        if again and now - self._said_at < _AGAIN_SECONDS[min(self._repeated, len(_AGAIN_SECONDS) - 1)]:
            return ""
        self._repeated = self._repeated + 1 if again else 0
        self._said, self._said_at = text, now
        return f"ddpdoctor smoke, {self.seconds:.0f} s: {text} (for {now - self._seen_at:.0f} s)"

    def _watch_on(self) -> None:
        while not self._closed.wait(0.3):
            if line := self.due():
                try:
                    print(line, file=self._file, flush=True)
                except (OSError, ValueError):
                    # Nobody reads stderr any more; the report goes elsewhere.
                    return
