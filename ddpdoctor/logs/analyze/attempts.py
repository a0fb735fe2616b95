"""The attempts of a run whose launcher started all ranks again after a failure: what the log says of each. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.facts.log import LastWords, Log, LoggedException, LoggedStack, LogLine, ProcessExit, SignMatch
from ddpdoctor.logs.analyze.exceptions import is_cut, is_of_launcher, is_of_peers, is_within_launcher, short_name

FAILED: Final = "failed (exitcode: "
"""By which a launcher of torchrun's tells once in each attempt that a rank of its own failed."""
LINES_OF_NEXT_ATTEMPT: Final = 3
"""Lines behind an attempt that failed, by which another one shows that it runs."""
FAILURES_OF_SEVERAL_ATTEMPTS: Final = 2
"""Failures that one launcher tells of: it has started the ranks again."""
MAX_LINES_OF_SLURM: Final = 20
"""Lines between what Slurm says of one job's end."""
_REQUEUED: Final = compile_lazily(r"DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)")
"""Slurm's reasons for which it may start a job again, whose output goes to the same file with --open-mode=append."""
_FIGURES: Final = compile_lazily(r"\d+")
_OF_A_FILE: Final = compile_lazily(r"(?:^|[/_-])attempt_(\d+)(?:/|$)")
_LAUNCHER: Final = compile_lazily(r"\b(\d+) \S*torch/distributed/|torch\.distributed\.elastic")


def attempt_of_file(name: str) -> int | None:
    """Number the attempt by a file's folder: torchrun gives each one of its own."""
    found = _OF_A_FILE.search(name)
    return int(found[1]) if found else None


def ends_attempt(exited: ProcessExit) -> bool:
    """Whether a launcher says by it that an attempt of its ranks failed: it may start them again now."""
    return exited.said_by == "torchrun" and not exited.told_to and FAILED in exited.line.text


def may_start_again(exited: ProcessExit) -> bool:
    """Whether what the ranks have said may be said again by those of another attempt."""
    return ends_attempt(exited) or bool(_REQUEUED.search(exited.error))


def attempts_of(log: Log) -> tuple[Log, ...]:
    """Split what the log says into attempts, the oldest first; the log itself, where nothing proves that there was
    more than one. Messages of healthy runs stay with each."""
    if log.attempt is not None:
        return (log,)
    named = {number: attempt_of_file(one.name) for number, one in enumerate(log.files)}
    of_files = {attempt for attempt in named.values() if attempt is not None}
    known = max(of_files, default=0)
    bounds = {number: _bounds(log, number, known) for number, attempt in named.items() if attempt is None}
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
    sightings: dict[int | None, list[SignMatch]] = {}
    raised: dict[int | None, list[LoggedException]] = {}
    stacks: dict[int | None, list[LoggedStack]] = {}
    exited: dict[int | None, list[ProcessExit]] = {}
    errors: dict[int | None, list[LogLine]] = {}
    last: dict[int | None, list[LastWords]] = {}
    for seen in log.sightings:
        sightings.setdefault(-1 if seen.role is SignRole.NOISE else attempt(seen.line), []).append(seen)
    for exception in log.raised:
        raised.setdefault(attempt(exception.line), []).append(exception)
    for stack in log.stacks:
        stacks.setdefault(attempt(stack.line), []).append(stack)
    for end in log.exited:
        exited.setdefault(attempt(end.line), []).append(end)
    for line in log.errors:
        errors.setdefault(attempt(line), []).append(line)
    for words in log.last:
        last.setdefault(attempt(words.line), []).append(words)
    return tuple(
        msgspec.structs.replace(
            log,
            attempt=number,
            sightings=tuple(
                sorted((*sightings.get(-1, ()), *sightings.get(number, ())), key=lambda seen: seen.line.order)
            ),
            raised=tuple(raised.get(number, ())),
            stacks=tuple(stacks.get(number, ())),
            exited=tuple(exited.get(number, ())),
            errors=tuple(errors.get(number, ())),
            last=tuple(last.get(number, ())),
            steps=log.steps if log.steps and attempt(log.steps) == number else None,
            recurs=log.recurs if log.recurs and attempt(log.recurs) == number else None,
            trains=log.trains if log.trains and attempt(log.trains) == number else None,
        )
        for number in numbers
    )


def _bounds(log: Log, file: int, known: int) -> list[int]:
    """Find the line of a file by which each attempt but the last one is over. known: how many others tell of."""
    ends: dict[tuple[str, str], list[int]] = {}
    for process_exit in log.exited:
        if process_exit.line.file == file and ends_attempt(process_exit):
            found = _LAUNCHER.search(process_exit.line.text)
            launcher = (process_exit.line.host, found[1] or "" if found else "")
            ends.setdefault(launcher, []).append(process_exit.line.number)
    over = [
        raised.line.number
        for raised in log.raised
        if raised.line.file == file and is_of_launcher(raised) and short_name(raised.exception) == "ChildFailedError"
    ]
    if not ends:
        return _requeued(log, file)
    tables = [
        process_exit.line.number for process_exit in log.exited if process_exit.line.file == file and process_exit.first
    ]
    if len({len(lines) for lines in ends.values()}) > 1 or max(len(over), len(tables)) > len(ends):
        return []
    rounds = list(zip(*ends.values(), strict=True))
    bounds = [max(dialling) for dialling in rounds]
    if any(min(later) <= end for end, later in zip(bounds, rounds[1:], strict=False)):
        return []
    if len(bounds) <= known:
        return bounds
    ended = any(number > bounds[-1] for number in (*over, *tables))
    return bounds if not ended and len(ends) == 1 and _another_follows(log, file, bounds) else bounds[:-1]


def _requeued(log: Log, file: int) -> list[int]:
    """Find the line of a file by which Slurm has said all of a job that it starts again, as far as steps behind it
    show that it did."""
    bounds: list[int] = []
    numbers = [
        process_exit.line.number
        for process_exit in log.exited
        if process_exit.line.file == file and _REQUEUED.search(process_exit.error)
    ]
    for number in sorted(numbers):
        if bounds and number - bounds[-1] <= MAX_LINES_OF_SLURM:
            bounds.pop()
        near = [
            process_exit.line.number
            for process_exit in log.exited
            if process_exit.line.file == file and 0 <= process_exit.line.number - number <= MAX_LINES_OF_SLURM
        ]
        bounds.append(max(near))
    ends = (*(process_exit.line for process_exit in log.exited), *(raised.line for raised in log.raised), *log.errors)
    ending = {_shape(end) for end in ends}
    # What ends all of many ranks recurs, too.
    steps = [
        line
        for line in (log.recurs, log.steps, log.trains)
        if line and line.file == file and not line.text[:1].isspace() and _shape(line) not in ending
    ]
    return bounds if bounds and any(step.number > bounds[-1] for step in steps) else bounds[:-1]


def _shape(line: LogLine) -> str:
    return _FIGURES.sub("", line.text)


def _another_follows(log: Log, file: int, bounds: list[int]) -> bool:
    """Whether what stands behind the last failure that the launcher tells of, without giving up, is of another attempt."""
    end = bounds[-1]
    if any(process_exit.line.file == file and process_exit.line.number > end for process_exit in log.exited):
        return False
    behind = [raised for raised in log.raised if raised.line.file == file and raised.began.number > end]
    if any(is_cut(raised) or is_of_launcher(raised) or is_within_launcher(raised) for raised in behind):
        return False
    if any(not is_of_peers(raised) for raised in behind):
        return len(log.hosts) < FAILURES_OF_SEVERAL_ATTEMPTS
    last = _latest(last_words for last_words in log.last if last_words.line.file == file)
    quiet = not behind and not any(error.file == file and error.number > end for error in log.errors)
    runs = last is not None and last.number - end >= LINES_OF_NEXT_ATTEMPT and not _LAUNCHER.search(last.text)
    if log.steps is not None and log.steps.file == file and log.steps.number > end:
        return quiet and runs
    return (
        quiet
        and runs
        and len(bounds) >= FAILURES_OF_SEVERAL_ATTEMPTS
        and last is not None
        and not last.text[:1].isspace()
    )


def _latest(words: Iterable[LastWords]) -> LogLine | None:
    return max((word.line for word in words), key=lambda line: line.order, default=None)
