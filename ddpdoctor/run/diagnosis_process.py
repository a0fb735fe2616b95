"""Runs one diagnosis in a process of its own, so that neither its failing nor its slowness touches the supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

Work = Callable[[], int]
"""Prints a diagnosis to standard output, and returns an exit code."""

ENDING_SECONDS: Final = 3.0
"""For a diagnosis that is told to end, to end the processes that it has started."""


class DiagnosisProcess:
    """A diagnosis, at work from the start on: pid, its process; began, by the monotonic clock."""

    def __init__(self, work: Work, environ: Mapping[str, str], patience: float) -> None:
        """Start it. An OSError tells that there are no more processes or files.

        Args:
            work: the diagnosis.
            environ: settings for it alone.
            patience: seconds until it is to be told to end.
        """
        # In memory: a disk that is full must not take the diagnosis with it.
        self._output = open(os.memfd_create("diagnosis"), "w+b")  # noqa: PTH123, SIM115
        self.began = time.monotonic()
        self._until = self.began + patience
        self._is_told_to_end = False
        self.code: int | None = None
        self.text = b""
        """Once it has ended: its exit code, negative for a signal, and what it has printed."""
        self.pid = os.fork()
        if not self.pid:
            self._work(work, environ)

    def _work(self, work: Work, environ: Mapping[str, str]) -> None:
        code = 2
        try:
            # What the terminal sends is for the command and the supervisor.
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number, file in ((0, null), (1, self._output.fileno()), (2, null)):
                os.dup2(file, number)
            os.environ.update(environ)
            code = work()
            sys.stdout.flush()
        finally:
            os._exit(code)

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self._until

    @property
    def until(self) -> float:
        """The moment to look whether it is late."""
        return self._until

    def hurry(self, seconds: float) -> None:
        """Leave it no more than that."""
        self._until = min(self._until, time.monotonic() + seconds)

    def end(self) -> None:
        """Tell it to end; the second time, kill it and all that it has started."""
        with suppress(ProcessLookupError):
            if self._is_told_to_end:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGTERM)
        self._is_told_to_end = True
        self._until = time.monotonic() + ENDING_SECONDS

    @property
    def was_told_to_end(self) -> bool:
        """Whether it was, and so may have said only a part."""
        return self._is_told_to_end

    def note_end(self, status: int) -> None:
        """Take in its end, as the supervisor has seen it."""
        self.code = os.waitstatus_to_exitcode(status)
        with self._output:
            self._output.seek(0)
            self.text = self._output.read()
