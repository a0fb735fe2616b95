"""How long the command has said nothing, wherever its output goes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ddpdoctor.run.output_streams import Direct
from ddpdoctor.run.shared_output import SharedOutput

LOOKS: Final = 10
"""So often in that time it is looked whether a file has grown: nobody tells us."""
SHORTEST_PAUSE: Final = 0.05
"""Seconds between two looks, whatever the user wants."""
LONGER: Final = 2
"""Times as long until the next look at a job that stayed silent and in which nothing was wrong."""


class Silence:
    """after: seconds of silence that are too many; 0 for none."""

    def __init__(self, after: float, shared: SharedOutput, files: Sequence[Direct]) -> None:
        self._after = after
        self._shared = shared
        self._files = files
        self._sizes = self._look()
        self._grew = time.monotonic()
        self._began = 0.0
        self._patience = after
        """Of this silence."""
        self._judged = False
        self.looked_before = False
        """In this silence."""

    def next_look(self) -> float | None:
        """When to ask `too_long` again; None for never, unless the output goes on."""
        if not self._after:
            return None
        if self._files:
            return time.monotonic() + max(self._after / LOOKS, SHORTEST_PAUSE)
        if self._judged and self._last() <= self._began:
            return time.monotonic() + self._after
        return max(self._last() + self._patience, time.monotonic() + SHORTEST_PAUSE)

    def too_long(self) -> float:
        """For how long it has been silent, if that is too long and was not said yet; else 0."""
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

    def judged(self, *, ill: bool) -> None:
        """Of this silence nothing more is said; if nothing was wrong with the job, it is looked at again later."""
        self._judged = ill
        self.looked_before = True
        self._patience = (time.monotonic() - self._began) * LONGER

    def resumed(self) -> None:
        """The command was stopped, and goes on: until now it could say nothing."""
        self._grew = time.monotonic()

    def wrote_ourselves(self) -> None:
        """What has grown just now is our own doing."""
        self._sizes = self._look()

    def _last(self) -> float:
        return max(self._grew, self._shared.last_output)

    def _look(self) -> tuple[int, ...]:
        sizes = []
        for file in self._files:
            with suppress(OSError):
                sizes.append(os.fstat(file.reading).st_size)
        return tuple(sizes)
