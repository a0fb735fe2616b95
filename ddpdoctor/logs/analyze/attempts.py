"""The attempts of a run whose launcher started all ranks again after a failure, or the runs of one process that a file has one behind the other:
what the log says of each. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.facts.log import LastWords, Log, LoggedException, LoggedStack, LogLine, ProcessExit, SignMatch
from ddpdoctor.logs.analyze.endings import says_complete
from ddpdoctor.logs.exceptions import (
    is_cut,
    is_of_launcher,
    is_within_launcher,
    short_name,
    tells_of_another,
)
from ddpdoctor.logs.launch_failures import REQUEUED, attempt_of_file, ends_attempt

LINES_OF_NEXT_ATTEMPT: Final = 3
"""Lines behind an attempt that failed, by which another one shows that it runs."""
FAILURES_OF_SEVERAL_ATTEMPTS: Final = 2
"""Failures that one launcher tells of: it has started the ranks again."""
MAX_LINES_OF_SLURM: Final = 20
"""Lines between what Slurm says of one job's end."""
_FIGURES: Final = compile_lazily(r"\d+")
_LISTS: Final = ("sightings", "raised", "stacks", "exited", "errors", "last")
_LINES: Final = ("steps", "recurs", "trains")
"""Fields of a log that are of one attempt."""
_LAUNCHER: Final = compile_lazily(r"\b(\d+) \S*torch/distributed/|torch\.distributed\.elastic")


_Part = SignMatch | LoggedException | LoggedStack | ProcessExit | LogLine | LastWords


def attempts_of(log: Log) -> tuple[Log, ...]:
    """Split what the log says into attempts, the oldest first; the log itself, where nothing proves that there was
    more than one. Messages of healthy runs stay with each."""
    if log.attempt is not None:
        return (log,)
    named = {number: attempt_of_file(one.name) for number, one in enumerate(log.files)}
    of_files = {attempt for attempt in named.values() if attempt is not None}
    known = max(of_files, default=0)
    bounds = {
        number: list(log.ended) or _bounds(_of_file(log, number), known)
        for number, attempt in named.items()
        if attempt is None
    }
    most = max((known, *map(len, bounds.values())))
    if not most:
        return (log,)

    def attempt(line: LogLine) -> int | None:
        of_file = named.get(line.file)
        if of_file is not None:
            return of_file
        ends = bounds.get(line.file, [])
        # Of a file whose launcher tells less often, nobody knows to which attempt its lines belong.
        return bisect_left(ends, line.number) if len(ends) == most else None

    told = [sighting.line for sighting in log.sightings if sighting.role is not SignRole.NOISE]
    told += [*(raised.line for raised in log.raised), *(process_exit.line for process_exit in log.exited), *log.errors]
    if any(attempt(line) is None for line in told):
        return (log,)
    # A number in a name may be a date.
    in_files = range(most + 1) if any(len(bound) == most for bound in bounds.values()) else ()
    return _shared_out(log, sorted({*of_files, *in_files}), attempt)


def _shared_out(log: Log, numbers: Sequence[int], attempt: Callable[[LogLine], int | None]) -> tuple[Log, ...]:
    parts: dict[str, dict[int | None, list[_Part]]] = {name: {} for name in _LISTS}
    for name, groups in parts.items():
        for part in getattr(log, name):
            noise = isinstance(part, SignMatch) and part.role is SignRole.NOISE
            number = attempt(part if isinstance(part, LogLine) else part.line)
            for own in numbers if noise else (number,):
                groups.setdefault(own, []).append(part)
    lines = {name: line for name in _LINES if (line := getattr(log, name))}
    return tuple(
        msgspec.structs.replace(
            log,
            attempt=number,
            **{name: tuple(groups.get(number, ())) for name, groups in parts.items()},
            **{name: line if attempt(line) == number else None for name, line in lines.items()},
        )
        for number in numbers
    )


def _of_file(log: Log, file: int) -> Log:
    """Keep what one file says of failures and ends, and of how it went on."""
    lists = {
        name: tuple(part for part in getattr(log, name) if part.line.file == file)
        for name in ("raised", "exited", "last")
    }
    lines = {name: line if line and line.file == file else None for name in _LINES for line in [getattr(log, name)]}
    return msgspec.structs.replace(
        log, errors=tuple(error for error in log.errors if error.file == file), **lists, **lines
    )


def _bounds(log: Log, known: int) -> list[int]:
    """Find the line of a file by which each attempt but the last one is over. known: how many others tell of."""
    ends: dict[tuple[str, str], list[int]] = {}
    for process_exit in filter(ends_attempt, log.exited):
        found = _LAUNCHER.search(process_exit.line.text)
        launcher = (process_exit.line.host, found[1] or "" if found else "")
        ends.setdefault(launcher, []).append(process_exit.line.number)
    if not ends:
        return _requeued(log)
    over = [raised.line.number for raised in log.raised if short_name(raised.exception) == "ChildFailedError"]
    tables = [process_exit.line.number for process_exit in log.exited if process_exit.first]
    if len({len(lines) for lines in ends.values()}) > 1 or max(len(over), len(tables)) > len(ends):
        return []
    rounds = list(zip(*ends.values(), strict=True))
    bounds = [max(dialling) for dialling in rounds]
    if any(min(later) <= end for end, later in zip(bounds, rounds[1:], strict=False)):
        return []
    if len(bounds) <= known:
        return bounds
    ended = any(number > bounds[-1] for number in (*over, *tables))
    return bounds if not ended and len(ends) == 1 and _another_follows(log, bounds) else bounds[:-1]


def _requeued(log: Log) -> list[int]:
    """Find the line by which Slurm has said all of each job that it starts again, where steps behind it show that it did."""
    bounds: list[int] = []
    numbers = [process_exit.line.number for process_exit in log.exited]
    for number in sorted(
        process_exit.line.number for process_exit in log.exited if REQUEUED.search(process_exit.error)
    ):
        if bounds and number - bounds[-1] <= MAX_LINES_OF_SLURM:
            bounds.pop()
        bounds.append(max(near for near in numbers if 0 <= near - number <= MAX_LINES_OF_SLURM))
    # What ends all of many ranks recurs, too.
    ends = (*(end.line for end in log.exited), *(raised.line for raised in log.raised), *log.errors)
    ending = set(map(_shape, ends))
    steps = [
        line
        for line in (log.recurs, log.steps, log.trains)
        if line and not line.text[:1].isspace() and _shape(line) not in ending
    ]
    return bounds if bounds and any(step.number > bounds[-1] for step in steps) else bounds[:-1]


def _shape(line: LogLine) -> str:
    return _FIGURES.sub("", line.text)


def _another_follows(log: Log, bounds: list[int]) -> bool:
    """Whether what stands behind the last failure that the launcher tells of, without giving up, is of another attempt."""
    end = bounds[-1]
    if any(process_exit.line.number > end for process_exit in log.exited):
        return False
    behind = [raised for raised in log.raised if raised.began.number > end]
    if any(is_cut(raised) or is_of_launcher(raised) or is_within_launcher(raised) for raised in behind):
        return False
    if any(not tells_of_another(raised) for raised in behind):
        return len(log.hosts) < FAILURES_OF_SEVERAL_ATTEMPTS
    last = max((words.line for words in log.last), key=lambda line: line.order, default=None)
    if behind or any(error.number > end for error in log.errors) or last is None:
        return False
    if last.number - end < LINES_OF_NEXT_ATTEMPT:
        return False
    if says_complete(last):
        return True
    if _LAUNCHER.search(last.text):
        return False
    takes_steps = log.steps is not None and log.steps.number > end
    return takes_steps or (len(bounds) >= FAILURES_OF_SEVERAL_ATTEMPTS and not last.text[:1].isspace())
