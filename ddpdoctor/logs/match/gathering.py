"""Gathers what the lines of all files come to, in bounded memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.facts.log import (
    LastWords,
    Log,
    LogFile,
    LogFrame,
    LoggedException,
    LoggedStack,
    LogLine,
    Noise,
    ProcessExit,
    SignMatch,
)
from ddpdoctor.logs.exceptions import is_passed_on
from ddpdoctor.logs.launch_failures import STARTS_AGAIN, attempt_of_file, may_start_again
from ddpdoctor.logs.match.global_ranks import Placing, has_year
from ddpdoctor.logs.match.shape_tally import ShapeTally
from ddpdoctor.logs.match.vocabulary import VocabularySign

MAX_SIGHTINGS = 12_000
MAX_OF_A_SIGN = 4096
MAX_WITH_NEIGHBOURS = 400
"""Sightings whose neighbours are kept."""
MAX_RAISED = 2000
MAX_STACKS_OF_A_RANK = 8
MAX_OF_AN_EXCEPTION = 3
"""Tracebacks that are kept of one rank, exception and place."""
MAX_EXITED = 5000
MAX_ERRORS = 300
MAX_ERRORS_OF_A_RANK = 12
MAX_RANKS = 20_000
MAX_HOSTS = 4096
LINES_OF_LAST_STEPS = 200
"""Lines at the end in which a training's steps are looked for."""
_FIGURES: Final = re.compile(r"\d+")
_STEP: Final = re.compile(r"(?!(?:wandb|srun|slurmstepd|\w*Error|\w*Exception): )[\w\[({<].*[A-Za-z]")
"""Neither of a traceback, a table or a picture, nor what others write when a training is over."""
_LOSS: Final = re.compile(
    r"(?i)(?=.*\b(?:step|iter|iteration|epoch|batch|update|it)s?\b)(?!.*\b(?:nan|inf)\b).*\bloss\w*[\"']?\W{1,4}\d"
)
"""A step of a training, with a loss that is a number."""
STEPS_OF_GOING_ON: Final = 10
"""Steps by which a training shows that it goes on, and not only a rank that hasn't missed another one yet."""


@dataclass
class SeenSign:
    """A sighting, as long as more may be learned of it."""

    sign: VocabularySign
    line: LogLine
    words: dict[str, str]
    quoted: bool
    before: tuple[LogLine, ...] = ()
    after: list[LogLine] = field(default_factory=list)
    beside: LogLine | None = None
    times: int = 1


@dataclass
class HealthyMessage:
    """A message of healthy runs."""

    noise: Noise
    times: int = 0


@dataclass
class GatheredLog:
    """The facts so far."""

    files: list[LogFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    hosts: dict[str, None] = field(default_factory=dict)
    ahead: set[float] = field(default_factory=set)
    """Seconds by which its clocks are before UTC, as far as they say their zone."""
    launchers: dict[str, int] = field(default_factory=dict)
    world_size: int | None = None
    order: int = 0
    more: int = 0
    attempt: int = 0
    """Of the lines that come now: what the ranks said in an earlier one, they may say again."""
    exited: list[ProcessExit] = field(default_factory=list)
    shapes: ShapeTally | None = None
    """Where the kinds of all lines are counted, to compare the run with others."""
    _sightings: dict[tuple[int, bool, object], SeenSign] = field(default_factory=dict)
    _of_a_sign: dict[int, int] = field(default_factory=dict)
    _raised: dict[tuple[object, ...], list[LoggedException]] = field(default_factory=dict)
    _kept_raised: int = 0
    _stacks: dict[tuple[int, int | str], list[LoggedStack]] = field(default_factory=dict)
    _errors: list[LogLine] = field(default_factory=list)
    _errors_of: dict[object, int] = field(default_factory=dict)
    _behind: list[list[LogLine]] = field(default_factory=list)
    _noise: dict[str, HealthyMessage] = field(default_factory=dict)
    _rank_of: dict[tuple[str, int], int] = field(default_factory=dict)
    _last: dict[tuple[int | None, int | None, str], LogLine] = field(default_factory=dict)
    _pairs: dict[tuple[str, int, int], None] = field(default_factory=dict)
    _first_date: float | None = None
    _latest: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LINES_OF_LAST_STEPS))

    def begins(self, name: str) -> None:
        """Take note that the lines that come now are of the file of that name."""
        self.attempt = attempt_of_file(name) or 0

    def _alike(self, raised: LoggedException) -> tuple[object, ...]:
        """Return what tracebacks have in common of which only a few are kept."""
        return (self._whose(raised.line), raised.exception, raised.frames[-1:], raised.own)

    def _whose(self, line: LogLine) -> tuple[int, int | str]:
        """Return the rank, or what stands for it, in this attempt."""
        if line.rank is not None:
            return self.attempt, line.rank
        file = line.file if not line.host and line.local_rank is None else ""
        return self.attempt, f"{line.host}/{line.local_rank}/{file}"

    def again(self, sign: VocabularySign, line: LogLine) -> SeenSign | None:
        """Count a sighting that its rank has said before, in earnest; None: it hasn't."""
        known = self._sightings.get((sign.number, False, self._whose(line)))
        if known:
            known.times += 1
        return known

    def sighting(self, seen: SeenSign) -> bool:
        """Keep a sighting; return whether it is the first of its rank."""
        number = seen.sign.number
        key = (number, seen.quoted, self._whose(seen.line))
        if known := self._sightings.get(key):
            known.times += 1
            return False
        kept = self._of_a_sign.get(number, 0)
        if kept >= MAX_OF_A_SIGN or len(self._sightings) >= MAX_SIGHTINGS:
            self.more += 1
            return False
        self._of_a_sign[number] = kept + 1
        self._sightings[key] = seen
        return True

    @property
    def wants_neighbours(self) -> bool:
        return len(self._sightings) <= MAX_WITH_NEIGHBOURS

    def stack(self, stack: LoggedStack) -> None:
        """Keep where a process stood; the same again tells no more."""
        known = self._stacks.setdefault(self._whose(stack.line), [])
        if any(kept.frames == stack.frames and stack.line.rank is not None for kept in known):
            return
        if len(known) < MAX_STACKS_OF_A_RANK and len(self._stacks) <= MAX_RANKS:
            known.append(stack)
        else:
            self.more += 1

    def raise_(self, raised: LoggedException) -> None:
        """Keep an exception with its traceback."""
        whose = self._alike(raised)
        known = self._raised.get(whose, [])
        if len(known) >= MAX_OF_AN_EXCEPTION:
            known[0] = msgspec.structs.replace(known[0], times=known[0].times + 1)
        elif self._kept_raised >= MAX_RAISED:
            self.more += 1
        else:
            self._kept_raised += 1
            self._raised.setdefault(whose, known).append(raised)

    def chain(self, raised: LoggedException) -> None:
        """Take note that another exception followed while that one was handled."""
        self._changed(raised, msgspec.structs.replace(raised, chained=True))

    def said_below(self, raised: LoggedException, message: str) -> LoggedException:
        """Take note that its message begins on the next line."""
        return self._changed(raised, msgspec.structs.replace(raised, message=message))

    def goes_on_below(self, raised: LoggedException, line: LogLine) -> LoggedException:
        """Take note that its message, or its C++ stack, goes on to that line."""
        return self._changed(raised, msgspec.structs.replace(raised, below=line.number - raised.line.number))

    def _changed(self, raised: LoggedException, into: LoggedException) -> LoggedException:
        known = self._raised.get(self._alike(raised), [])
        for place, one in enumerate(known):
            if one is raised:
                known[place] = into
        return into

    def exit(self, exited: ProcessExit) -> None:
        """Keep the end of a process."""
        self.attempt += may_start_again(exited)
        if len(self.exited) < MAX_EXITED:
            self.exited.append(exited)
        else:
            self.more += 1

    def wants_error(self, line: LogLine) -> bool:
        """Whether another line of that rank that speaks of an error is still kept."""
        kept = len(self._errors) + len(self._behind)
        if kept < MAX_ERRORS and self._errors_of.get(self._whose(line), 0) < MAX_ERRORS_OF_A_RANK:
            return True
        self.more += 1
        return False

    def error(self, line: LogLine) -> None:
        """Keep a line that speaks of an error."""
        self._count_error(line)
        self._errors.append(line)

    def told_behind(self, line: LogLine) -> list[LogLine]:
        """Take the lines behind one that only announces an error: the first of them is the error."""
        self._count_error(line)
        self._behind.append([])
        return self._behind[-1]

    def _count_error(self, line: LogLine) -> None:
        whose = self._whose(line)
        self._errors_of[whose] = self._errors_of.get(whose, 0) + 1

    def harmless(self, text: LogSign, line: LogLine) -> HealthyMessage:
        """Count a message of healthy runs."""
        known = self._noise.get(text.text)
        if known is None:
            known = self._noise[text.text] = HealthyMessage(Noise(text.text, text.why, 0, line))
        known.times += 1
        return known

    def launched_by(self, launcher: str) -> None:
        """Take note that something speaks for that launcher."""
        self.launchers[launcher] = self.launchers.get(launcher, 0) + 1

    def sized(self, ranks: int) -> None:
        """Take note that a line speaks of so many ranks; groups of some of them are smaller."""
        self.world_size = max(self.world_size or 0, ranks) or None

    def rank_said(self, line: LogLine, rank: int, process: tuple[str, int] | None) -> None:
        """Take note that the line itself names the rank that wrote it."""
        if process and len(self._rank_of) < MAX_RANKS:
            self._rank_of.setdefault(process, rank)
        if len(self.ranks) < MAX_RANKS:
            self.ranks.add(rank)

    def rank_of(self, process: tuple[str, int]) -> int | None:
        """Return the rank of a process that has named it."""
        return self._rank_of.get(process)

    def met(self, line: LogLine, said_by: str) -> None:
        """Take note whose a line is, whatever it says."""
        if line.rank is not None and len(self.ranks) < MAX_RANKS:
            self.ranks.add(line.rank)
            if line.local_rank is not None and len(self._pairs) < MAX_RANKS:
                self._pairs[line.host, line.local_rank, line.rank] = None
        if self._first_date is None and line.time is not None and has_year(line.time):
            self._first_date = line.time
        if line.host and len(self.hosts) < MAX_HOSTS:
            self.hosts[line.host] = None
        if said_by:
            self.launched_by(said_by)

    def last_words(self, line: LogLine) -> None:
        """Keep the latest line of its rank so far."""
        whose = (line.rank, line.local_rank, line.host)
        if line.text.strip() and (whose in self._last or len(self._last) < MAX_RANKS):
            self._last[whose] = line
            if not self._latest or self._latest[-1].order < line.order:
                self._latest.append(line)

    def log(self) -> Log:
        """Return all that was gathered."""
        placing = self._placing()
        sightings = [_sighting(sighting, placing) for sighting in self._sightings.values()]
        raised = [placing.raised(kept) for known in self._raised.values() for kept in known]
        exited = tuple(map(placing.exited, _without_tasks(self.exited)))
        last = sorted(map(placing.line, self._last.values()), key=lambda line: line.order)
        words = {line.rank: LastWords(rank=line.rank, line=line) for line in last}
        known = {error.order for error in self._errors}
        behind = [lines[0] for lines in self._behind if lines and lines[0].order not in known]
        said = {end.rank for end in exited} | words.keys()
        ranks = self.ranks | {rank for rank in said if rank is not None}
        return Log(
            files=tuple(self.files),
            notes=tuple(self.notes),
            launcher=max(self.launchers, key=lambda name: self.launchers[name], default=""),
            world_size=self.world_size,
            ranks=tuple(sorted(ranks)),
            hosts=tuple(self.hosts),
            ahead=next(iter(self.ahead)) if len(self.ahead) == 1 else 0.0,
            sightings=tuple(sorted(sightings, key=lambda sighting: sighting.line.order)),
            raised=with_own_lines(raised),
            stacks=tuple(msgspec.structs.replace(stack, line=placing.line(stack.line)) for stack in self._all_stacks()),
            exited=exited,
            errors=placing.lines(sorted([*self._said_of_errors(), *behind], key=lambda line: line.order)),
            noise=tuple(
                msgspec.structs.replace(noise.noise, times=noise.times, line=placing.line(noise.noise.line))
                for noise in self._noise.values()
            ),
            last=tuple(words[rank] for rank in sorted(words, key=lambda rank: (rank is None, rank or 0))),
            steps=_steps(self._latest),
            recurs=_recurs(self._latest),
            trains=_trains(self._latest),
            more=self.more,
        )

    def _all_stacks(self) -> list[LoggedStack]:
        return sorted((kept for known in self._stacks.values() for kept in known), key=lambda stack: stack.line.order)

    def _said_of_errors(self) -> list[LogLine]:
        """Choose the errors that are told: that an attempt failed is none beside words on a process's end."""
        return [error for error in self._errors if STARTS_AGAIN not in error.text] if self.exited else self._errors

    def _placing(self) -> Placing:
        # A table names the host by its own name; the lines beside it have that of their label or file.
        said = [(host, end.local_rank, end.rank) for end in self.exited for host in {end.host, end.line.host}]
        tables = [(host, local, rank) for host, local, rank in said if local is not None and rank is not None]
        dates = [end.time for end in self.exited if end.time is not None and has_year(end.time)]
        return Placing([*self._pairs, *tables], self._first_date or next(iter(dates), None))


def _without_tasks(exited: Sequence[ProcessExit]) -> Iterable[ProcessExit]:
    """Take srun's tasks for nodes, and for no ranks, where they are torchrun's agents."""
    if not any(process_exit.said_by == "torchrun" for process_exit in exited):
        return exited
    return (
        msgspec.structs.replace(process_exit, rank=None) if process_exit.said_by == "srun" else process_exit
        for process_exit in exited
    )


def _sighting(seen: SeenSign, placing: Placing) -> SignMatch:
    return SignMatch(
        slug=seen.sign.slug,
        sign=seen.sign.sign.text,
        role=seen.sign.sign.role,
        line=placing.line(seen.line),
        words=seen.words,
        times=seen.times,
        quoted=seen.quoted,
        before=placing.lines(seen.before),
        after=placing.lines(seen.after),
        beside=placing.line(seen.beside) if seen.beside else None,
    )


def _shapes(latest: Iterable[LogLine]) -> list[list[LogLine]]:
    """Group lines that differ by their figures alone."""
    shapes: dict[str, dict[str, LogLine]] = {}
    for line in latest:
        shape, figures = _FIGURES.subn("", line.text[:500])
        if figures:
            shapes.setdefault(shape, {})[line.text] = line
    return [list(lines.values()) for lines in shapes.values()]


def _steps(latest: Iterable[LogLine]) -> LogLine | None:
    """Return the last but two of the lines that recur with other figures."""
    recurring = [lines[-3] for lines in _shapes(latest) if len(lines) > 2]
    return max(recurring, key=lambda line: line.order, default=None)


def _recurs(latest: Iterable[LogLine]) -> LogLine | None:
    """Return the last but one of those that read like steps; what stands together may be the message of an error."""
    shapes = [lines for lines in _shapes(latest) if len(lines) > 1 and _STEP.match(lines[0].text)]
    apart = [lines[-2] for lines in shapes if lines[-1].number - lines[0].number >= len(lines)]
    return max(apart, key=lambda line: line.order, default=None)


def _trains(latest: Iterable[LogLine]) -> LogLine | None:
    """Return of the steps with their losses the one behind which there are so many."""
    steps = list({line.text: line for line in latest if _LOSS.match(line.text[:500])}.values())
    return steps[-STEPS_OF_GOING_ON] if len(steps) >= STEPS_OF_GOING_ON else None


# --- exceptions that belong together ------------------------------------------------------------------------------------


def with_own_lines(raised: Iterable[LoggedException]) -> tuple[LoggedException, ...]:
    """Order exceptions as they were read, and give those in whose traceback no line of the script is that of the
    exception that they led to, or of the process that passed a worker's on."""
    streams: dict[tuple[object, ...], list[LoggedException]] = {}
    found = sorted(raised, key=lambda line: line.line.order)
    for exception in found:
        streams.setdefault(exception.line.stream, []).append(exception)
    own = {id(one): _own_of_chain(one, place, chain) for chain in streams.values() for place, one in enumerate(chain)}
    return tuple(
        exception if exception.own else msgspec.structs.replace(exception, own=own[id(exception)])
        for exception in found
    )


def _own_of_chain(one: LoggedException, place: int, some: Sequence[LoggedException]) -> LogFrame | None:
    if place and is_passed_on(some[place - 1], one):
        return one.own or some[place - 1].own
    for raised in some[place:]:
        if raised.own or not raised.chained:
            return raised.own
    return None
