"""Runs the command that the user wants run when a job has stopped moving: the only thing by which `watch` may end anything."""

from __future__ import annotations

import os
from subprocess import DEVNULL, Popen
from typing import Final

from ddpdoctor.base.text import listed
from ddpdoctor.probes.run_as import INQUIRY_MARK, environ_for, working_folder_for
from ddpdoctor.watching.alarm import Alarm

SHELL: Final = "/bin/sh"


class FollowUp:
    """Commands that were started, and what becomes of them. Nobody waits for them, and none is ended.

    Args:
        command: for the shell; "" for none.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: list[tuple[str, Popen[bytes]]] = []

    def start(self, alarm: Alarm, folder: str) -> str:
        """Start the command for a job; returns why it could not be started, "" where it was or there is none.

        Args:
            alarm: which job, and what is known of it: the command finds that in its environment.
            folder: with the evidence; "" where none could be written.
        """
        if not self._command:
            return ""
        told = {
            "DDPDOCTOR_JOB": alarm.job,
            "DDPDOCTOR_PIDS": " ".join(map(str, alarm.pids)),
            "DDPDOCTOR_RANKS": " ".join(map(str, alarm.culprits)),
            "DDPDOCTOR_SECONDS": f"{alarm.seconds:.0f}",
            "DDPDOCTOR_EVIDENCE": folder,
        }
        try:
            # What it prints goes to standard error, beside what is told: standard output may be a file of events.
            started = Popen(
                (SHELL, "-c", self._command),
                stdin=DEVNULL,
                stdout=2,
                env={**environ_for(None, os.environ), **INQUIRY_MARK, **told},
                cwd=working_folder_for(None),
                start_new_session=True,
            )
        except OSError as error:
            return f"{SHELL} could not be started: {error.strerror or error}"
        self._running.append((alarm.job, started))
        return ""

    def ended(self) -> list[tuple[str, int]]:
        """(job, exit code) of each command that has ended since the last question."""
        codes = [(job, code) for job, started in self._running if (code := started.poll()) is not None]
        self._running = [(job, started) for job, started in self._running if started.returncode is None]
        return codes

    @property
    def running(self) -> str:
        """The pids of those that still run, in words; "" without any."""
        return listed(started.pid for _, started in self._running)
