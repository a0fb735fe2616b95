"""The supervisor's own messages, a sentence each."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from ddpdoctor.base.terminal import width
from ddpdoctor.base.text import signal_name
from ddpdoctor.run.command_wrappers import TIMEOUT, TIMEOUT_EXIT_CODE, wrappers_and_program
from ddpdoctor.run.output_streams import STDERR

INTERRUPTED: Final = "ddpdoctor: the diagnosis was stopped"
NO_LOOK: Final = "The job could not be looked at."


class SupervisorMessages:
    """Messages on one command; name: its program's."""

    def __init__(self, command: Sequence[str]) -> None:
        self._wrappers, program = wrappers_and_program(command)
        self.name = Path(program[0]).name
        self._at_a_terminal = os.isatty(STDERR)
        self._width_at_start = width()

    def environ(self) -> dict[str, str]:
        """The settings by which a diagnosis is written for the terminal, or file, where it will be shown."""
        if not self._at_a_terminal:
            return {"COLUMNS": str(self._width_at_start)}
        return {"COLUMNS": str(width((STDERR,))), "FORCE_COLOR": "1"}

    def ended(self, status: int) -> str:
        """Word how the command ended: "python ended with exit code 3"."""
        code = os.waitstatus_to_exitcode(status)
        how = f"was ended by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"
        if code == TIMEOUT_EXIT_CODE and TIMEOUT in self._wrappers:
            how = f"was ended by {TIMEOUT} (exit code {code})"
        return f"{self.name} {how}"

    def diagnosing(self, status: int, seconds: float) -> str:
        return f"ddpdoctor: {self.ended(status)} after {duration_text(seconds)}; what it said is being read"

    def asked_to_stop(self, number: int) -> str:
        return f"ddpdoctor: not diagnosed, since {self.name} ended after a {signal_name(number)} from outside"

    def left_running(self, pids: Collection[int]) -> str:
        known = ", ".join(map(str, sorted(pids)))
        return (
            f"ddpdoctor: {self.name} has ended, and what it started goes on and could not be looked into: pid {known}"
        )

    def no_diagnosis(self, late: bool, code: int) -> str:
        if late:
            return "ddpdoctor: the diagnosis took too long, and was given up"
        how = f"was ended by {signal_name(code)}" if code < 0 else "failed, which is a bug in it"
        return f"ddpdoctor: there is no diagnosis: it {how}"

    def silent(self, seconds: float) -> str:
        # What the command has said last need not be a whole line.
        begin = "\n" if self._at_a_terminal else ""
        return f"{begin}ddpdoctor: no output of {self.name} for {duration_text(seconds)}."

    def broken(self, error: Exception) -> str:
        return f"ddpdoctor: no diagnosis: {type(error).__name__}: {error}"

    def not_kept(self, path: str, error: Exception) -> str:
        return f"ddpdoctor: the output could not be kept in {path}: {getattr(error, 'strerror', '') or error}"


def duration_text(seconds: float) -> str:
    """ "12 s", "10 min", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
