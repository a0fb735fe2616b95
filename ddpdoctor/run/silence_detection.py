"""Notices when the command has printed nothing for too long, wherever its output goes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ddpdoctor.run.output_streams import FileOutput
from ddpdoctor.run.shared_output import SharedOutput

LOOKS_PER_SILENCE: Final = 10
"""At files, to see whether they have grown: nothing tells us."""
MIN_PAUSE_SECONDS: Final = 0.05
"""Between two looks, whatever the user wants."""
PATIENCE_FACTOR: Final = 2
"""By which the wait grows until the next look at a job that stayed silent and in which nothing was wrong."""


class SilenceDetector:
    """Asked again and again by the supervisor. after: seconds of silence that are too many, 0: never; files: those that the command writes
    itself, beside what the relay carries."""

    def __init__(self, after: float, shared: SharedOutput, files: Sequence[FileOutput]) -> None:
        self._after = after
        self._shared = shared
        self._files = files
        self._sizes = self._look()
        self._grew = time.monotonic()
        self._began = 0.0
        self._patience = after
        """Seconds, of this silence."""
        self._judged = False
        self.looked_before = False
        """In this silence."""

    def next_look(self) -> float | None:
        """The moment to ask `too_long` again; None: not before there is output."""
        if not self._after:
            return None
        if self._files:
            return time.monotonic() + max(self._after / LOOKS_PER_SILENCE, MIN_PAUSE_SECONDS)
        if self._judged and self._last() <= self._began:
            return time.monotonic() + self._after
        return max(self._last() + self._patience, time.monotonic() + MIN_PAUSE_SECONDS)

    def too_long(self) -> float:
        """The seconds of a silence that is too long and was not judged yet; else 0."""
        if not self._after:
            return 0.0
        sizes = self._look()
        if sizes != self._sizes:
            self._sizes, self._grew = sizes, time.monotonic()
        last = self._last()
        if last > self._began:
            self._began, self._patience, self._judged, self.looked_before = last, self._after, False, False
        silent = time.monotonic() - last
        return silent if silent >= self._patience and not self._judged else 0.0

    def set_judged(self, *, ill: bool) -> None:
        """Say nothing more of this silence; if nothing was wrong with the job, it is looked at again later."""
        self._judged = ill
        self.looked_before = True
        self._patience = (time.monotonic() - self._began) * PATIENCE_FACTOR

    def note_resumed(self) -> None:
        """Take in that the command was stopped and goes on: until now it could print nothing."""
        self._grew = time.monotonic()

    def note_own_output(self) -> None:
        """Take in that what has grown just now is our own doing."""
        self._sizes = self._look()

    def _last(self) -> float:
        return max(self._grew, self._shared.last_output)

    def _look(self) -> tuple[int, ...]:
        sizes = []
        for file in self._files:
            with suppress(OSError):
                sizes.append(os.fstat(file.reading).st_size)
        return tuple(sizes)
