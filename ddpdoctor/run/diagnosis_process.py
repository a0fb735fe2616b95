"""Runs one diagnosis in a process of its own, so that neither its failing nor its slowness touches the supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

ENDING_SECONDS: Final = 3.0
"""For a diagnosis that is told to end, to end the processes that it has started."""


class DiagnosisProcess:
    """A diagnosis, at work from the start on.

    pid: its process. code, text: once it has ended, its exit code, negative for a signal, and what it has printed. until: the moment
    at which it is to be told to end, or killed. is_told_to_end: whether it was, and so may have said only a part.
    """

    def __init__(self, work: Callable[[], int], environ: Mapping[str, str], patience: float) -> None:
        """Start it. An OSError tells that there are no more processes or files.

        Args:
            work: prints a diagnosis to standard output, and returns an exit code.
            environ: settings for it alone.
            patience: seconds until it is to be told to end.
        """
        # In memory: a disk that is full must not take the diagnosis with it.
        self._output = open(os.memfd_create("diagnosis"), "w+b")  # noqa: PTH123, SIM115
        self.until = time.monotonic() + patience
        self.is_told_to_end = False
        self.code: int | None = None
        self.text = b""
        self.pid = os.fork()
        if not self.pid:
            self._work(work, environ)

    def _work(self, work: Callable[[], int], environ: Mapping[str, str]) -> None:
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

    def end(self) -> None:
        """Tell it to end; the second time, kill it and all that it has started."""
        with suppress(ProcessLookupError):
            if self.is_told_to_end:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGTERM)
        self.is_told_to_end = True
        self.until = time.monotonic() + ENDING_SECONDS

    def note_end(self, status: int) -> None:
        """Take in its end, as the supervisor has seen it."""
        self.code = os.waitstatus_to_exitcode(status)
        with self._output:
            self._output.seek(0)
            self.text = self._output.read()
