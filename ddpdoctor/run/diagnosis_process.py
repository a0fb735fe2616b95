"""The doctor: a process of its own for one diagnosis, so that neither its failing nor its slowness is anybody's but its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

Work = Callable[[], int]
"""Prints what is to be said to standard output; its exit code."""

ENDING_SECONDS: Final = 3.0
"""What a doctor that is told to end has to end those it has started."""


class DiagnosisProcess:
    """At work from the start on. pid: its process. began: when, by the monotonic clock."""

    def __init__(self, work: Work, environ: Mapping[str, str], patience: float) -> None:
        """environ: settings for it alone. patience: seconds until it is told to end.

        Raises:
            OSError: no more processes or files.
        """
        # In memory: a disk that is full must not take the diagnosis with it.
        self._said = open(os.memfd_create("diagnosis"), "w+b")  # noqa: PTH123, SIM115
        self.began = time.monotonic()
        self._until = self.began + patience
        self._told = False
        self.code: int | None = None
        self.text = b""
        """Once it has ended: its exit code, negative for a signal, and what it has said."""
        self.pid = os.fork()
        if not self.pid:
            self._work(work, environ)

    def _work(self, work: Work, environ: Mapping[str, str]) -> None:
        code = 2
        try:
            # What the terminal sends is for the command and the supervisor.
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number, file in ((0, null), (1, self._said.fileno()), (2, null)):
                os.dup2(file, number)
            os.environ.update(environ)
            code = work()
            sys.stdout.flush()
        finally:
            os._exit(code)

    @property
    def late(self) -> bool:
        """Its time is over."""
        return time.monotonic() > self._until

    @property
    def until(self) -> float:
        """When somebody is to look whether it is late."""
        return self._until

    def hurry(self, seconds: float) -> None:
        """Has no more than that left."""
        self._until = min(self._until, time.monotonic() + seconds)

    def end(self) -> None:
        """Tells it to end; the second time, it and all that it has started are killed."""
        with suppress(ProcessLookupError):
            if self._told:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGTERM)
        self._told = True
        self._until = time.monotonic() + ENDING_SECONDS

    @property
    def was_told_to_end(self) -> bool:
        return self._told

    def ended(self, status: int) -> None:
        """The supervisor has seen its end."""
        self.code = os.waitstatus_to_exitcode(status)
        with self._said:
            self._said.seek(0)
            self.text = self._said.read()
