"""The progress of something that takes its time, on standard error: redrawn where that is a terminal, which is left as it was, else a line
now and then. What there is to show, a subject's `Progress` says."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TextIO, TypeVar

from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.report.progress import Progress

LOOK_SECONDS = 0.2
"""Between two looks whether there is a line to say."""


P = TypeVar("P", bound=Progress)


def show_on(file: TextIO, progress: P) -> P:
    """Show it there from now on: redrawn on a terminal that can move its cursor, else as lines."""
    progress.view = LiveView(progress, file) if moves_its_cursor(file) else LineView(progress, file)
    return progress


class LiveView:
    """Redraws itself until `close`, which leaves nothing of it on the screen."""

    def __init__(self, progress: Progress, file: TextIO) -> None:
        # Here and not above: rich takes its time to load.
        from rich.console import Console
        from rich.live import Live

        from ddpdoctor.report.live_drawing import LiveDrawing

        self._title = progress.title
        self._live = Live(
            LiveDrawing(progress),
            console=Console(file=file, markup=False, emoji=False, highlight=False),
            refresh_per_second=progress.per_second,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def say(self, text: str) -> None:
        # Wrapped by the terminal and not by rich, so that a command in it can be copied.
        self._live.console.print(f"ddpdoctor {self._title}: {text}", soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class LineView:
    """For a log: a line on `file` when something changes or takes long, at the progress's pace."""

    def __init__(self, progress: Progress, file: TextIO) -> None:
        self._progress = progress
        self._file = file
        self._status = ""
        self._since = 0.0
        self._said = ""
        self._said_at = -progress.pace.between
        self._repeated = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(f"ddpdoctor {self._progress.title}: {text}", file=self._file, flush=True)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(1)

    def due(self) -> str:
        """The line to say now, or ""."""
        pace, text, now = self._progress.pace, self._progress.status(), self._progress.seconds
        if text != self._status:
            self._status, self._since = text, now
        lasts = now - self._since
        if not text or now < pace.first or lasts < pace.steady or now - self._said_at < pace.between:
            return ""
        again = text == self._said
        if again and now - self._said_at < pace.again[min(self._repeated, len(pace.again) - 1)]:
            return ""
        self._repeated = self._repeated + 1 if again else 0
        self._said, self._said_at = text, now
        lasting = f" (for {lasts:.0f} s)" if pace.steady else ""
        return f"ddpdoctor {self._progress.title}, {now:.0f} s: {text}{lasting}"

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            if line := self.due():
                try:
                    print(line, file=self._file, flush=True)
                except (OSError, ValueError):
                    # Nobody reads stderr any more; the report goes elsewhere.
                    return
