"""Hints that a launcher's words on a process give: what its signal speaks for, or that it ended before the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import Log, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.logs.analyze.endings import ABORT, signal_of
from ddpdoctor.logs.analyze.exceptions import is_of_launcher, is_of_peers

KILL: Final = 9


def with_signal(
    within: Sequence[SignMatch], exited: ProcessExit, others: Sequence[ProcessExit], catalogue: Catalogue, *, lost: bool
) -> list[SignMatch]:
    """The signs in a launcher's words on a process, with hints at what its signal speaks for, where nothing names an illness.
    others: all ends that the log tells of. lost: other ranks say that they lost one, which has an illness of its own."""
    known = {match.slug for match in within}
    signal = signal_of(exited)
    told = exited.told_to or (signal == KILL and (lost or _cancelled(exited, others)))
    if told or any(match.role is SignRole.NAMES for match in within):
        return list(within)
    rank = exited.line.rank if exited.line.rank is not None else exited.rank
    line = msgspec.structs.replace(exited.line, rank=rank, host=exited.line.host or exited.host)
    hints = (
        SignMatch(slug=check.slug, sign=f"ended by {signal_name(signal)}", role=SignRole.HINTS, line=line)
        for check in _checks_of(signal, catalogue)
        if check.slug not in known
    )
    return [*within, *hints]


def _checks_of(signal: int, catalogue: Catalogue) -> tuple[Check, ...]:
    """List the checks that a signal speaks for. Who aborts mostly says why, and is heard by that: nothing stands for
    SIGABRT."""
    known = next((Signal for Signal in Signals if Signal == signal), None)
    return catalogue.standing_for(known) if known else ()


def _cancelled(exited: ProcessExit, others: Sequence[ProcessExit]) -> bool:
    """Whether Slurm ended all processes: whom it kills then, it killed itself."""
    cancels = [
        process_exit
        for process_exit in others
        if process_exit.said_by == "srun" and process_exit.exit_code is None and "oom" not in process_exit.error
    ]
    return exited.said_by == "srun" and bool(cancels)


# --- processes that ended before the others, with threads that still ran ------------------------------------------------


WITH_THREADS: Final = "terminate called without an active exception"
"""libstdc++'s words where a thread is taken down that still runs, as gloo's are where a script ends without destroy_process_group(); of an
exception of C++ it names the type."""
MAX_LINES_TO_EXIT: Final = 200
"""Lines before a launcher's word on an end, among them the others' tracebacks."""


def with_early_end(within: Sequence[SignMatch], exited: ProcessExit, log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """The signs in a launcher's words on a process, with a hint that it left the others, where it was aborted so, nothing else went
    before, and the others lost it."""
    if signal_of(exited) != ABORT or exited.told_to or any(match.role is SignRole.NAMES for match in within):
        return list(within)
    lost = any(sighting.role is SignRole.EFFECT and sighting.line.rank != exited.rank for sighting in log.sightings)
    line = next(
        (error for error in log.errors if error.text.startswith(WITH_THREADS) and _is_before(error, exited)), None
    )
    if line is None or not lost or _may_have_failed(line, exited, log):
        return list(within)
    rank = exited.rank if line.rank is None else line.rank
    line = msgspec.structs.replace(line, rank=rank, host=line.host or exited.host)
    return [
        SignMatch(slug=catalogue.slug_for(HangCause.UNEVEN), sign=WITH_THREADS, role=SignRole.HINTS, line=line),
        *within,
    ]


def _is_before(line: LogLine, exited: ProcessExit) -> bool:
    same = line.rank is None or exited.rank is None or line.rank == exited.rank
    return same and line.file == exited.line.file and 0 < exited.line.number - line.number <= MAX_LINES_TO_EXIT


def _may_have_failed(line: LogLine, exited: ProcessExit, log: Log) -> bool:
    """Whether something else is told that this rank may have fallen by: an exception, or another error before."""
    mine = (None, exited.rank if line.rank is None else line.rank)
    raised = [
        exception
        for exception in log.raised
        if exception.line.rank in mine and not (is_of_peers(exception) or is_of_launcher(exception))
    ]
    errors = [error for error in log.errors if error.rank in mine and error.order < line.order]
    return bool(raised or errors) or any(
        sighting.role in (SignRole.NAMES, SignRole.HINTS)
        and sighting.line.rank in mine
        and sighting.line.order < line.order
        for sighting in log.sightings
        if not sighting.quoted
    )
