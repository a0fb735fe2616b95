"""Runs the command that the user wants run when a job has stopped moving: the only thing by which `watch` may end anything."""

from __future__ import annotations

import os
from collections import Counter
from subprocess import DEVNULL, Popen
from typing import Final

import msgspec

from ddpdoctor.base.ownership import user_name
from ddpdoctor.base.text import plural, signal_name
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.run_as import INQUIRY_MARK, environ_for, working_folder_for
from ddpdoctor.watching.alarm import Alarm

SHELL: Final = "/bin/sh"
MAX_WAITING: Final = 32
"""Alarms whose command waits for its turn."""
MAX_WAITING_OF_OWNER: Final = 4
"""The same, of another user's jobs."""


class _Due(msgspec.Struct, frozen=True):
    """An alarm whose command is to be run, and the folder with its evidence."""

    alarm: Alarm
    folder: str


class FollowUp:
    """Commands for alarms: one at a time, in the order of the alarms. Nobody waits for one, and none is ended.

    Of other users' jobs, which may be made up, there is one for each pause and owner.

    Args:
        command: for the shell; "" for none.
        pause: seconds between the starts of two commands for jobs of the same other user.
    """

    def __init__(self, command: str, pause: float) -> None:
        self._command = command
        self._pause = pause
        self._running: tuple[str, Popen[bytes]] | None = None
        self._waiting: list[_Due] = []
        self._started: dict[int, float] = {}
        """When the last command was started, by owner, of others' jobs."""

    def start(self, alarm: Alarm, folder: str, now: float) -> str:
        """Start the command for a job, or have it wait for its turn.

        Args:
            alarm: which job, and what is known of it: the command finds that in its environment.
            folder: with the evidence; "" where none could be written.
            now: on the monotonic clock.

        Returns:
            Why it was not started, "" where it was or there is none.
        """
        if not self._command:
            return ""
        waiting = Counter(due.alarm.uid for due in self._waiting)
        if len(self._waiting) >= MAX_WAITING:
            return f"it is not run for this alarm, since {MAX_WAITING} others wait for their turn"
        if _is_other(alarm.uid) and waiting[alarm.uid] >= MAX_WAITING_OF_OWNER:
            return f"it is not run for this alarm, since {MAX_WAITING_OF_OWNER} others of {user_name(alarm.uid)}'s jobs wait for their turn"
        due = _Due(alarm, folder)
        if self._running is None and self._may_start(due, now):
            return self._launch(due, now)
        self._waiting.append(due)
        if self._running is not None:
            job, started = self._running
            return f"it waits until the one for job {job} (pid {started.pid}) has ended"
        return f"it waits, since one was run for a job of {user_name(alarm.uid)} less than {self._pause:.0f} s ago"

    def forget(self, job: str) -> None:
        """Take out of the queue what waits for a job that moves again, or has ended."""
        self._waiting = [due for due in self._waiting if due.alarm.job != job]

    def ended(self, now: float) -> list[tuple[str, str]]:
        """Start the next command if it is its turn; (job, what came of its command, "" if all was well) of each that has ended
        since the last question or could not be started."""
        told = []
        if self._running is not None:
            job, started = self._running
            if (code := started.poll()) is not None:
                told.append((job, f"ended with {_code_words(code)}" if code else ""))
                self._running = None
        while self._running is None:
            due = next((due for due in self._waiting if self._may_start(due, now)), None)
            if due is None:
                break
            self._waiting.remove(due)
            if why := self._launch(due, now):
                told.append((due.alarm.job, f"could not be started: {why}"))
        return told

    @property
    def left(self) -> str:
        """Which one still runs, and how many wait, in words; "" without any."""
        parts = [] if self._running is None else [f"still runs (pid {self._running[1].pid}), and is left to"]
        if self._waiting:
            parts.append(f"was not run for {plural(len(self._waiting), 'alarm')} whose turn had not come")
        return "; it ".join(parts)

    def _may_start(self, due: _Due, now: float) -> bool:
        last = self._started.get(due.alarm.uid)
        return last is None or now - last >= self._pause

    def _launch(self, due: _Due, now: float) -> str:
        alarm = due.alarm
        told = {
            "DDPDOCTOR_JOB": alarm.job,
            "DDPDOCTOR_USER": user_name(alarm.uid).removeprefix("uid "),
            "DDPDOCTOR_PIDS": " ".join(map(str, _pids_of_owner(alarm))),
            "DDPDOCTOR_RANKS": " ".join(map(str, alarm.culprits)),
            "DDPDOCTOR_SECONDS": f"{alarm.seconds:.0f}",
            "DDPDOCTOR_EVIDENCE": due.folder,
        }
        # A training that the command starts anew is no helper of ours, and must be seen by whoever looks for jobs.
        kept = {name: value for name, value in environ_for(None, os.environ).items() if name not in INQUIRY_MARK}
        try:
            # What it prints goes to standard error, beside what is told: standard output may be a file of events.
            started = Popen(
                (SHELL, "-c", self._command),
                stdin=DEVNULL,
                stdout=2,
                env=kept | told,
                cwd=working_folder_for(None),
                start_new_session=True,
            )
        except OSError as error:
            return f"{SHELL} could not be started: {error.strerror or error}"
        self._running = (alarm.job, started)
        if _is_other(alarm.uid):
            self._started[alarm.uid] = now
        return ""


def _is_other(uid: int) -> bool:
    return uid != os.geteuid()


def _pids_of_owner(alarm: Alarm) -> list[int]:
    """Leave out what is another user's process: one that has the pid by now, or has joined the job from beside."""
    proc = Proc()
    return [pid for pid in alarm.pids if proc.owner(pid) == alarm.uid]


def _code_words(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal_name(-code)}"
