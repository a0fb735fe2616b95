"""How the ranks of a run ended, as their launchers say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from signal import Signals
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import Log, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.logs.exceptions import is_of_launcher, tells_of_another
from ddpdoctor.logs.parse.exits import SHELL

ABORT: Final = 6
CRASHES: Final = (4, 7, 8, ABORT, 11)
"""Signals by which a process ends through its own doing."""
KILL: Final = 9
TELLS_OF_EVERY_END: Final = "torchrun"
"""A launcher that never keeps a rank's failure to itself."""
SECONDS_TO_KILL: Final = 30
"""It gives its processes that long to end by SIGTERM."""
_OF_WINDOWS: Final = {0xC0000005: 11, 0xC00000FD: 11, 0xC0000409: ABORT}
"""Its numbers for a crash: memory that isn't the process's own, a stack that overflowed, a process that gave up; by the signal that says the same."""
CANCELLED: Final = "CANCELLED AT"
"""Slurm's word on a job or step that it has ended, with all of its processes."""
_STOPPED: Final = "DUE TO "
"""The reason of Slurm's that ends a job from outside."""
ENDED_BY: Final = "ended_by"
"""The word of a sign for what has ended the run as a whole: a scheduler's limit, timeout's."""
_OF_THE_WHOLE: Final = ("srun", SHELL, "qacct", "bsub")
"""Who tells how a job's own commands ended."""
_COMPLETE: Final = compile_lazily(
    r"(?i)\btraining (?:(?:run|is|was|has) ){0,2}(?:completed?|finished|done)\b"
    r"|\bworker group successfully finished\b|\bDone waiting for other agents\b"
)
"""A training's own last words, or those of torchrun's agent, which waits for others only where its ranks came to their end."""
_INCOMPLETE: Final = compile_lazily(r"(?i)\b(?:not|never|no|abnormally|with|errors?|fail\w*|early)\b|n't\b")
"""What makes of a training's last words another end."""


def says_complete(last: LogLine | None) -> bool:
    """Whether a training's last line says that it came to its end."""
    return last is not None and bool(_COMPLETE.search(last.text)) and not _INCOMPLETE.search(last.text)


def signal_of(exited: ProcessExit) -> int:
    """Return the signal that ended a process, as the launcher or a shell counts it; 0 where none did."""
    code = exited.exit_code
    if code is None:
        return 0
    if crash := _OF_WINDOWS.get(code & 0xFFFFFFFF):
        return crash
    if code < 0:
        return -code
    # Of -9, as subprocess has it, exit() makes 247.
    return 256 - code if 256 - code in (*CRASHES, 9) else code - 128 if 128 < code < 160 else 0


def endings(log: Log) -> list[ProcessExit]:
    """List each process once, although torchrun speaks of it twice; those that ended well are left out."""
    found: list[ProcessExit] = []
    places: dict[tuple[str, int], list[int]] = {}
    stopped = [process_exit.line.order for process_exit in log.exited if process_exit.error.startswith(_STOPPED)]
    stopped += [sighting.line.order for sighting in log.sightings if ENDED_BY in sighting.words]
    for process_exit in log.exited:
        if process_exit.exit_code == 0:
            continue
        order = process_exit.line.order
        if process_exit.said_by in _OF_THE_WHOLE and signal_of(process_exit) == KILL:
            # Who ends a job kills what doesn't heed its SIGTERM.
            told = process_exit.told_to or any(0 < order - one <= MAX_LINES_TO_EXIT for one in stopped)
            process_exit = msgspec.structs.replace(process_exit, told_to=told)
        maybe = sorted({place for key in _keys(process_exit) for place in places.get(key, ())})
        known = next((place for place in maybe if same_process(process_exit, found[place])), len(found))
        if known == len(found):
            found.append(process_exit)
        else:
            found[known] = _merged(found[known], process_exit)
        for key in _keys(found[known]):
            if known not in (mine := places.setdefault(key, [])):
                mine.append(known)
    return [_told_by_its_launcher(process_exit, found) for process_exit in found]


def _told_by_its_launcher(exited: ProcessExit, others: Iterable[ProcessExit]) -> ProcessExit:
    """Note that torchrun killed a process itself: one that hadn't heeded SIGTERM when another one had failed."""
    if signal_of(exited) != KILL or exited.first or exited.time is None:
        return exited
    before = [
        other.time
        for other in others
        if other.first
        and other.said_by == exited.said_by == TELLS_OF_EVERY_END
        and other.host == exited.host
        and other.time is not None
    ]
    told = any(exited.time - first >= SECONDS_TO_KILL for first in before)
    return msgspec.structs.replace(exited, told_to=True) if told else exited


def _keys(exited: ProcessExit) -> list[tuple[str, int]]:
    """List the keys of which another message on the same process has one, too."""
    return [(name, number) for name, number in (("pid", exited.pid), ("rank", exited.rank)) if number is not None]


def same_process(one: ProcessExit, other: ProcessExit) -> bool:
    """Whether two of a launcher's messages are about one process."""
    if one is other:
        return True
    if one.pid is not None and other.pid is not None:
        same_host = "" in (one.host, other.host) or one.host == other.host
        return one.pid == other.pid and (same_host or _beside(one, other))
    if one.rank is not None and other.rank is not None:
        return one.rank == other.rank and one.exit_code == other.exit_code
    return False


def is_same_host(one: str, other: str) -> bool:
    """Whether two names are of one host: torchrun knows it by its whole name, srun by the first part of that."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _beside(one: ProcessExit, other: ProcessExit) -> bool:
    """Whether one host's launcher says both: its table has the host's own name, or localhost, its lines that of a label or file."""
    return one.line.file == other.line.file and one.line.host == other.line.host != ""


def _merged(old: ProcessExit, new: ProcessExit) -> ProcessExit:
    """Join the words of the first with what the second adds."""
    fields = ("exit_code", "rank", "local_rank", "pid", "time")
    added = {name: getattr(new, name) for name in fields if getattr(old, name) is None}
    return msgspec.structs.replace(
        old,
        **added,
        host=old.host or new.host,
        error=old.error or new.error,
        first=old.first or new.first,
        told_to=old.told_to or new.told_to,
    )


def only(exits: Iterable[ProcessExit]) -> ProcessExit | None:
    """Return the one that there is, if there is one."""
    some = list(exits)
    return some[0] if len(some) == 1 else None


def with_signal(
    within: Sequence[SignMatch], exited: ProcessExit, others: Sequence[ProcessExit], catalogue: Catalogue
) -> list[SignMatch]:
    """The signs in a launcher's words on a process, with hints at what its signal speaks for, where nothing names an illness.
    others: all ends that the log tells of."""
    known = {match.slug for match in within}
    signal = signal_of(exited)
    told = exited.told_to or (signal == KILL and _cancelled(exited, others))
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
    """List the checks that a signal speaks for; who aborts mostly says why, so nothing stands for SIGABRT."""
    known = next((Signal for Signal in Signals if Signal == signal), None)
    return catalogue.standing_for(known) if known else ()


def _cancelled(exited: ProcessExit, others: Sequence[ProcessExit]) -> bool:
    """Whether Slurm had ended all processes before: whom it kills then, it killed itself."""
    before = [end for end in others if exited.said_by == end.said_by == "srun" and end.line.order < exited.line.order]
    return any(end.exit_code is None and "oom" not in end.error for end in before)


# --- processes that ended before the others, with threads that still ran ------------------------------------------------


WITH_THREADS: Final = "terminate called without an active exception"
"""libstdc++'s words where a thread is taken down that still runs, as gloo's are where a script ends without destroy_process_group(); of an
exception of C++ it names the type."""
MAX_LINES_TO_EXIT: Final = 200
"""Lines before a launcher's word on an end, among them the others' tracebacks."""


def with_early_end(within: Sequence[SignMatch], exited: ProcessExit, log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """Add a hint that the process left the others, where it was aborted so, and the others lost it."""
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
        if exception.line.rank in mine and not (tells_of_another(exception) or is_of_launcher(exception))
    ]
    errors = [error for error in log.errors if error.rank in mine and error.order < line.order]
    return bool(raised or errors) or any(
        sighting.role in (SignRole.NAMES, SignRole.HINTS)
        and sighting.line.rank in mine
        and sighting.line.order < line.order
        for sighting in log.sightings
        if not sighting.quoted
    )
