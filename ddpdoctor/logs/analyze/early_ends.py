"""Processes that were aborted as they came to their end, with threads that still ran: they ended by themselves, before the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.logs.analyze.endings import ABORT, signal_of
from ddpdoctor.logs.analyze.exceptions import is_of_launcher, is_of_peers

WITH_THREADS: Final = "terminate called without an active exception"
"""libstdc++'s words where a thread is taken down that still runs, as gloo's are where a script ends without destroy_process_group(); of an
exception of C++ it names the type."""
BEFORE: Final = 200
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
    if line is None or not lost or _fell(line, exited, log):
        return list(within)
    rank = exited.rank if line.rank is None else line.rank
    line = msgspec.structs.replace(line, rank=rank, host=line.host or exited.host)
    return [
        SignMatch(slug=catalogue.slug_for(HangCause.UNEVEN), sign=WITH_THREADS, role=SignRole.HINTS, line=line),
        *within,
    ]


def _is_before(line: LogLine, exited: ProcessExit) -> bool:
    same = line.rank is None or exited.rank is None or line.rank == exited.rank
    return same and line.file == exited.line.file and 0 < exited.line.number - line.number <= BEFORE


def _fell(line: LogLine, exited: ProcessExit, log: Log) -> bool:
    """Whether something else is told that this rank may have fallen by: an exception, or another error before."""
    mine = (None, exited.rank if line.rank is None else line.rank)
    raised = [one for one in log.raised if one.line.rank in mine and not (is_of_peers(one) or is_of_launcher(one))]
    errors = [error for error in log.errors if error.rank in mine and error.order < line.order]
    return bool(raised or errors) or any(
        sighting.role in (SignRole.NAMES, SignRole.HINTS)
        and sighting.line.rank in mine
        and sighting.line.order < line.order
        for sighting in log.sightings
        if not sighting.quoted
    )
