"""Progress as one line on a terminal's stderr, gone when we are done: for what takes longer than people like to wait."""

from __future__ import annotations

import time

from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.text import human

_BAR = 20
"""Columns."""


class FilesProgress:
    """How far we are with several files, and within one that takes long."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._number = 0
        self._name = ""
        self._began = 0.0
        self._amount = (0, 0)
        self._paused = False
        self._line = StatusLine(self.text, 1.0)
        self.close = self._line.close

    def begin(self, name: str) -> None:
        """The next file."""
        self._number += 1
        self._name = name
        self._began = time.monotonic()
        self._amount = (0, 0)
        self._paused = False

    def pause(self) -> None:
        """Until `resume` or `begin`, the screen belongs to others."""
        self._paused = True
        self._line.clear()

    def resume(self) -> None:
        self._paused = False

    def update(self, done: int, total: int) -> None:
        """So many bytes of so many, of the present file."""
        self._amount = (done, total)

    def text(self, seconds: float) -> str:
        """What is shown so many seconds after the first file was begun; nothing while the screen belongs to others."""
        if self._paused:
            return ""
        count = f"file {self._number} of {self._files}, " if self._files > 1 else ""
        done, total = self._amount
        if not total:
            return f"{count}reading {self._name} ({seconds:.0f} s)"
        if done >= total:
            return f"{count}verifying {self._name} ({seconds:.0f} s)"
        filled = _BAR * done // total
        bar = "━" * filled + "─" * (_BAR - filled)
        left = (time.monotonic() - self._began) * (total - done) / done if done else 0
        return (
            f"{bar} {100 * done // total:3d} %, {human(done)} of {human(total)}, {left:.0f} s left, {count}{self._name}"
        )
