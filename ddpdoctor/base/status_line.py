"""One line on a terminal's stderr, gone when we are done: for what takes longer than people like to wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from ddpdoctor.base.error_lines import complain
from ddpdoctor.base.terminal import moves_its_cursor, terminal_is_ours, width


class StatusLine:
    """Shows `text(seconds since it began)`, from `delay` seconds on, while there is any. Where no cursor moves, as in a log, `once` is printed
    in its place, at once. Nothing of either on the standard error of a program that calls us."""

    def __init__(self, text: Callable[[float], str], delay: float, once: str = "") -> None:
        self._text = text
        self._delay = delay
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._shown = False
        self._thread: threading.Thread | None = None
        if not terminal_is_ours():
            return
        if moves_its_cursor(sys.stderr):
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        elif once:
            complain(once)

    def clear(self) -> None:
        """Make room for something else; it comes back as soon as there is a text again."""
        with self._lock:
            if self._shown:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._shown = False

    def close(self) -> None:
        self._closed.set()
        if self._thread:
            self._thread.join(1)
        self.clear()

    def _show(self) -> None:
        wait = self._delay
        while not self._closed.wait(wait):
            with self._lock:
                text = self._text(time.monotonic() - self._started)
                if text and not self._closed.is_set():
                    sys.stderr.write("\r\x1b[K" + text[: width((2,)) - 1])
                    sys.stderr.flush()
                    self._shown = True
            wait = min(self._delay, 0.3)
