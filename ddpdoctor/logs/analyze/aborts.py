"""Processes that were aborted over what they say before: no crash of their own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.facts.log import Log, LogLine, SignMatch

ABORTED: Final = "Aborted"
SIGABRT: Final = "SIGABRT"
WATCHDOG: Final = "watchdog thread terminated with exception"
"""NCCL's watchdog then ends its process by SIGABRT; what the exception is follows on the same line."""
BEHIND: Final = 60
"""Lines behind an exception, its message and other threads' stacks among them, within which an abort is of its process's end."""


def without_aborts_that_follow(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """The sightings without a shell's, Python's or torchrun's word on an abort behind what its process lost, waited for or raised: C++ ends it
    so, and what a process takes down at its end may. slug: of the check that tells of crashes."""
    effects = [match.line for match in seen if match.role is SignRole.EFFECT]
    ends = [raised.line for raised in log.raised]
    of_watchdogs = [match.line for match in seen if match.slug != slug and WATCHDOG in match.line.text]
    seen = [
        match
        for match in seen
        if match.slug != slug
        or SIGABRT not in match.sign
        or not any(_is_before(line, match.line) for line in of_watchdogs)
    ]
    return [
        match
        for match in seen
        if match.slug != slug
        or ABORTED not in match.line.text
        or not (
            any(_is_before(line, match.line) for line in effects)
            or any(_is_before(line, match.line) and _is_near(line, match.line) for line in ends)
        )
    ]


def _is_before(line: LogLine, abort: LogLine) -> bool:
    same = line.rank == abort.rank or None in (line.rank, abort.rank)
    return same and line.order < abort.order


def _is_near(line: LogLine, abort: LogLine) -> bool:
    return line.file == abort.file and abort.number - line.number <= BEHIND
