"""The callers of a gate: what each makes of an exit code and of a few bytes, in one table, and a small renderer each. Pure.

The contracts were read in the callers' own sources and manuals; docs/commands/gate.md says what each does with the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ddpdoctor.base.text import escaped_json, one_line
from ddpdoctor.gating.outcome import Concern, GateOutcome

Codes = tuple[int, int, int, int]
"""Exit codes of ok, warn, fail, and of no verdict."""
NAGIOS_WORDS: Final = {"ok": "OK", "warn": "WARNING", "fail": "CRITICAL", "unknown": "UNKNOWN"}
SERVED_CALLER: Final = "nvrx"
"""Whom `--serve` answers."""
LEAST_SECONDS: Final = 1.0
"""For the whole: Python alone takes a good part of it to start."""
OUTSIDE_NHC: Final = re.compile(r"[^A-Za-z0-9 .,:;/=+@_()%-]")
"""NHC hands a failure's text to `eval` between single quotes, as root."""


class GateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller gets. details: for descriptor 3."""

    code: int
    stdout: str = ""
    details: str = ""
    stderr: str = ""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One caller.

    Args:
        codes: that it is answered with.
        render: standard output, of the outcome, the same as the JSON of all commands, and `line_bytes`.
        seconds: after which the whole ends without a verdict, unless `--timeout` says otherwise.
        most_seconds: the most that `--timeout` may say.
        line_bytes: after which the caller cuts a line; 0 where it doesn't.
        tells_details: it reads the reason on descriptor 3.
        may_block_job: a failure keeps a job from starting here, so a job's comment may skip it.
        drains: it is Slurm's, and leaves draining to us.
        follows_job: it is started after each job, for which leftovers are looked for.
        sends_event: what came of it is sent to NVSentinel's socket, too.
    """

    codes: Codes
    render: Callable[[GateOutcome, Mapping[str, Any], int], str]
    seconds: float
    most_seconds: float = 600.0
    line_bytes: int = 0
    tells_details: bool = False
    may_block_job: bool = False
    drains: bool = False
    follows_job: bool = False
    sends_event: bool = False

    def seconds_for(self, timeout: float | None) -> float:
        """Seconds that a gate may take.

        Args:
            timeout: as the user gave it, None where not.
        Raises:
            ValueError: that is too short to look, or longer than the caller waits.
        """
        if timeout is not None and not LEAST_SECONDS <= timeout <= self.most_seconds:
            limits = f"from {LEAST_SECONDS:g} to {self.most_seconds:g} seconds for this caller"
            raise ValueError(f"--timeout must be {limits}, and is {timeout:g}")
        return self.seconds if timeout is None else timeout

    def exit_code_of(self, outcome: GateOutcome) -> int:
        """The exit code of a outcome."""
        return dict(zip(("ok", "warn", "fail", "unknown"), self.codes, strict=True))[outcome.verdict]

    def code_unread(self, code: int) -> int:
        """The exit code where nobody could be told more than that: "ok" is none, and a failure's stays."""
        return self.codes[3] if code == self.codes[0] else code

    def answer(self, outcome: GateOutcome, report: Mapping[str, Any], remarks: tuple[str, ...] = ()) -> GateAnswer:
        """What the caller gets of a outcome.

        Args:
            outcome: what the gate came to.
            report: the same as the JSON of all commands has it; empty where it was never looked.
            remarks: what else somebody should know, for standard error.
        """
        lines = [f"not counted, {concern.owner.value}: {concern.slug}: {concern.summary}" for concern in outcome.others]
        if outcome.verdict == "unknown":
            lines.insert(0, outcome.line)
        return GateAnswer(
            code=self.exit_code_of(outcome),
            stdout=self.render(outcome, report, self.line_bytes),
            details=f"{outcome.line}\n" if self.tells_details and outcome.verdict in ("fail", "warn") else "",
            stderr="".join(f"ddpdoctor: {one_line(line)}\n" for line in (*lines, *remarks)),
        )


def cut(text: str, most: int) -> str:
    """The text in at most so many bytes of UTF-8; dots for an end that is left out. 0: all of it."""
    encoded = text.encode("utf-8", "replace")
    if not most or len(encoded) <= most:
        return text
    return encoded[: most - 3].decode("utf-8", "ignore").rstrip() + "..."


def render_line(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    return f"{cut(outcome.line, line_bytes)}\n"


def render_print_lines(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    """Lines that Slurm hands on to the job's output, where it calls this as TaskProlog; what a Prolog prints it drops."""
    return "".join(f"print ddpdoctor: {_describe(concern)}\n" for concern in outcome.failures)


def render_nhc(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    """Begins with ERROR, or with OK where there is nothing to take the node offline for."""
    word = {"fail": "ERROR", "unknown": "OK, undecided"}.get(outcome.verdict, "OK")
    return OUTSIDE_NHC.sub("_", f"{word} - {outcome.line}") + "\n"


def render_nagios(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    # What follows a vertical bar would be figures.
    return f"{NAGIOS_WORDS[outcome.verdict]} - ddpdoctor. {outcome.line}".replace("|", "/") + "\n"


def render_lines(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    """What people read in a pod's log: the line, then each finding that counts with the first commands that mend it."""
    return "\n".join(_paragraph(outcome)) + "\n"


def _paragraph(outcome: GateOutcome) -> Iterator[str]:
    yield f"ddpdoctor: {outcome.line}"
    for concern in (*outcome.failures, *outcome.warnings):
        yield f"{concern.severity.value}: {_describe(concern)}"
        yield from (f"  {command}" for command in concern.commands)


def render_nvrx(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    """A health check of NVRx counts what failed, and takes an answer without a count for a failure."""
    keys = {
        "fail_count": len(outcome.slugs),
        "failed_checks": outcome.slugs,
        "verdict": outcome.verdict,
        "message": outcome.line,
    }
    return _render_json(keys, report)


def render_gpud(outcome: GateOutcome, report: Mapping[str, Any], line_bytes: int) -> str:
    """`passed` is null without a verdict. `action` is GPUd's own word where what mends it is to start the host anew."""
    commands = outcome.failures[0].commands if outcome.failures else ()
    keys = {
        "name": "ddpdoctor",
        "result": outcome.verdict,
        "error": outcome.line if outcome.verdict in ("fail", "unknown") else "",
        "passed": {"fail": False, "unknown": None}.get(outcome.verdict, True),
        "action": "REBOOT_SYSTEM" if any(re.search(r"\breboot\b", command) for command in commands) else "",
        "suggestion": f"ddpdoctor explain {outcome.slugs[0]}" if outcome.slugs else "",
        "commands": commands,
    }
    return _render_json(keys, report)


def _render_json(keys: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """The caller's keys, on one line, and within them the report."""
    return escaped_json(json.dumps({**keys, "report": report} if report else keys)) + "\n"


def _describe(concern: Concern) -> str:
    return f"{concern.owner.value}: {concern.slug}: {concern.summary}"


DIALECTS: Final[Mapping[str, Dialect]] = {
    "slurm-prolog": Dialect(codes=(0, 0, 1, 0), render=render_print_lines, seconds=30, may_block_job=True, drains=True),
    "slurm-epilog": Dialect(codes=(0, 0, 1, 0), render=render_line, seconds=55, drains=True, follows_job=True),
    "slurm-healthcheck": Dialect(codes=(0, 0, 0, 0), render=render_line, seconds=40, most_seconds=50, drains=True),
    "nhc": Dialect(codes=(0, 0, 1, 0), render=render_nhc, seconds=25),
    "soperator": Dialect(codes=(0, 0, 1, 0), render=render_line, seconds=55, tells_details=True, may_block_job=True),
    "npd": Dialect(codes=(0, 0, 1, 2), render=render_line, seconds=4, line_bytes=80),
    "nvsentinel": Dialect(codes=(0, 0, 1, 2), render=render_lines, seconds=120, may_block_job=True, sends_event=True),
    "nagios": Dialect(codes=(0, 1, 2, 3), render=render_nagios, seconds=50),
    "gcm": Dialect(codes=(0, 1, 2, 3), render=render_nagios, seconds=120),
    "gpud": Dialect(codes=(0, 0, 1, 0), render=render_gpud, seconds=50),
    "nvrx": Dialect(codes=(0, 0, 1, 0), render=render_nvrx, seconds=50),
    "k8s-init": Dialect(codes=(0, 0, 1, 0), render=render_lines, seconds=120, may_block_job=True),
}
"""The callers, by the name that `--for` takes."""
