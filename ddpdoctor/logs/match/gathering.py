"""Gathers what the lines of all files come to, in bounded memory."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
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
from ddpdoctor.knowledge.loader_messages import loader_fault
from ddpdoctor.logs.exceptions import IN_A_LOGGER, is_passed_on
from ddpdoctor.logs.launch_failures import STARTS_AGAIN, attempt_of_file, may_start_again
from ddpdoctor.logs.match.first_lines import FirstLines
from ddpdoctor.logs.match.global_ranks import Fact, Placing, has_year
from ddpdoctor.logs.match.progress_bars import ProgressBars
from ddpdoctor.logs.match.run_ends import RunEnds
from ddpdoctor.logs.match.shape_tally import ShapeTally
from ddpdoctor.logs.match.vocabulary import VocabularySign
from ddpdoctor.logs.parse.labels import names_process

MAX_SIGHTINGS = 12_000
MAX_OF_A_SIGN = 4096
MAX_WITH_NEIGHBOURS = 400
"""Sightings whose neighbours are kept."""
MAX_RAISED = 2000
MAX_STACKS_OF_A_RANK = 8
MAX_OF_AN_EXCEPTION = 3
"""Tracebacks that are kept of one rank, exception and place: the first ones, and the last, behind which a run may have ended."""
MAX_EXITED = 5000
MAX_ERRORS = 3000
MAX_ERRORS_OF_A_RANK = 12
MAX_RANKS = 20_000
MAX_HOSTS = 4096
LINES_OF_LAST_STEPS = 200
"""Lines at the end in which a training's steps are looked for."""
_FIGURES: Final = re.compile(r"\d+")
_STEP: Final = re.compile(r"(?!(?:wandb|srun|slurmstepd|\w*Error|\w*Exception): )[\w\[({<].*[A-Za-z]")
"""Neither of a traceback, a table or a picture, nor what others write when a training is over."""
_LOSS: Final = re.compile(
    r"(?i)(?=.*\b(?:step|iter|iteration|epoch|batch|update|it)s?\b)(?!.*\b(?:nan|inf)\b).*(?<![A-Za-z])loss\w*[\"']?\W{1,4}\d"
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
    launchers: Counter[str] = field(default_factory=Counter)
    """How often something spoke for each."""
    world_size: int | None = None
    """The most ranks that a line speaks of: groups of some of them are smaller."""
    order: int = 0
    more: int = 0
    attempt: int = 0
    """Of the lines that come now: what the ranks said in an earlier one, they may say again."""
    exited: list[ProcessExit] = field(default_factory=list)
    rank_of: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of processes that have named it."""
    shapes: ShapeTally | None = None
    """Where the kinds of all lines are counted, to compare the run with others."""
    _sightings: dict[tuple[int, bool, tuple[object, int]], SeenSign] = field(default_factory=dict)
    _of_a_sign: Counter[int] = field(default_factory=Counter)
    _raised: dict[tuple[object, ...], list[LoggedException]] = field(default_factory=dict)
    _kept_raised: int = 0
    _run_ends: RunEnds = field(default_factory=RunEnds)
    _stacks: dict[tuple[int, int | str], list[LoggedStack]] = field(default_factory=dict)
    _errors: list[tuple[object, list[LogLine]]] = field(default_factory=list)
    """The first of each counts."""
    _errors_of: Counter[object] = field(default_factory=Counter)
    _noise: dict[str, HealthyMessage] = field(default_factory=dict)
    _last: dict[tuple[int | None, int | None, str], LogLine] = field(default_factory=dict)
    _pairs: dict[tuple[str, int, int], None] = field(default_factory=dict)
    _first_date: float | None = None
    _highest: int = 0
    """Of the ranks that lines speak of."""
    _latest: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LINES_OF_LAST_STEPS))

    def begins(self, name: str) -> None:
        """Take note that the lines that come now are of the file of that name."""
        self.attempt = attempt_of_file(name) or 0

    def begins_again(self, first: FirstLines, bars: ProgressBars) -> None:
        """Take note of where a file begins, and of its progress bars."""
        self._run_ends.begins_again(first, bars)

    def _alike(self, raised: LoggedException) -> tuple[object, ...]:
        """Return what tracebacks have in common of which only a few are kept."""
        return (self._whose(raised.line), raised.exception, raised.frames[-1:], raised.own)

    def _whose(self, line: LogLine) -> tuple[int, int | str]:
        """Return the rank, or what stands for it, in this attempt."""
        if line.rank is not None:
            return self.attempt, line.rank
        file = line.file if not line.host and line.local_rank is None else ""
        return self.attempt, f"{line.host}/{line.local_rank}/{file}"

    def _name(self, rank: int | None) -> None:
        """Take note that a line speaks of that rank."""
        self._highest = max(self._highest, rank or 0)

    def _in_run(self, line: LogLine) -> tuple[object, int]:
        """Return whose line it is, and behind how many ends: what one run has said, another one says again."""
        return self._whose(line), self._run_ends.count

    def again(self, sign: VocabularySign, line: LogLine) -> SeenSign | None:
        """Count a sighting that its rank has said before, in earnest; None: it hasn't."""
        known = self._sightings.get((sign.number, False, self._in_run(line)))
        if known:
            known.times += 1
            self._run_ends.said(line)
        return known

    def sighting(self, seen: SeenSign) -> bool:
        """Keep a sighting; return whether it is the first of its rank."""
        number = seen.sign.number
        key = (number, seen.quoted, self._in_run(seen.line))
        if known := self._sightings.get(key):
            known.times += 1
        elif self._of_a_sign[number] >= MAX_OF_A_SIGN or len(self._sightings) >= MAX_SIGHTINGS:
            self.more += 1
        else:
            self._of_a_sign[number] += 1
            self._sightings[key] = seen
            self._run_ends.said(seen.line)
            return True
        return False

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
        self._meet()
        self._run_ends.raise_(raised)
        whose = self._alike(raised)
        known = self._raised.get(whose, [])
        if len(known) >= MAX_OF_AN_EXCEPTION:
            known[0] = msgspec.structs.replace(known[0], times=known[0].times + 1)
            known[-1] = raised
        elif self._kept_raised >= MAX_RAISED:
            self.more += 1
        else:
            self._kept_raised += 1
            self._raised.setdefault(whose, known).append(raised)

    def amend(self, raised: LoggedException, **fields: object) -> LoggedException:
        """Take note of what was learned of an exception from the lines behind it; return it with that."""
        amended = msgspec.structs.replace(raised, **fields)
        if amended.chained:
            self._run_ends.led_on(raised)
            if amended.announced.strip() == IN_A_LOGGER:
                # The logger's own exception ends the chain: this one is what it was to tell.
                amended = msgspec.structs.replace(amended, announced="")
        known = self._raised.get(self._alike(raised), [])
        if any(one is raised for one in known):
            known[:] = [one for one in known if one is not raised]
            # What it is may have been learned, too.
            self._raised.setdefault(self._alike(amended), []).append(amended)
        return amended

    def exit(self, exited: ProcessExit) -> None:
        """Keep the end of a process."""
        self.attempt += may_start_again(exited)
        self._name(exited.rank)
        self._meet()
        self._run_ends.exit(exited)
        if len(self.exited) < MAX_EXITED:
            self.exited.append(exited)
        else:
            self.more += 1

    def wants_error(self, line: LogLine) -> bool:
        """Whether another line of that rank that speaks of an error is still kept."""
        if len(self._errors) < MAX_ERRORS and self._errors_of[self._in_run(line)] < MAX_ERRORS_OF_A_RANK:
            return True
        self.more += 1
        return False

    def error(self, line: LogLine, told: list[LogLine]) -> None:
        """Keep a line that speaks of an error. told: that line; or, where it only announces one, what takes the lines behind it."""
        self._errors_of[self._in_run(line)] += 1
        self._errors.append((self._whose(line), told))

    def harmless(self, text: LogSign, line: LogLine) -> HealthyMessage:
        """Count a message of healthy runs."""
        if text.starts_run:
            self._run_ends.start(line)
        known = self._noise.setdefault(text.text, HealthyMessage(Noise(text.text, text.why, 0, line)))
        known.times += 1
        return known

    def rank_said(self, rank: int, process: tuple[str, int] | None) -> None:
        """Take note that a line itself names the rank of the process that wrote it."""
        if process and len(self.rank_of) < MAX_RANKS:
            self.rank_of.setdefault(process, rank)
        self._name(rank)
        if len(self.ranks) < MAX_RANKS:
            self.ranks.add(rank)

    def met(self, line: LogLine, said_by: str) -> None:
        """Take note whose a line is, whatever it says."""
        self._name(line.rank)
        if line.rank is not None and len(self.ranks) < MAX_RANKS:
            self.ranks.add(line.rank)
            if line.local_rank is not None and len(self._pairs) < MAX_RANKS:
                self._pairs[line.host, line.local_rank, line.rank] = None
        if self._first_date is None and line.time is not None and has_year(line.time):
            self._first_date = line.time
        if line.host and len(self.hosts) < MAX_HOSTS:
            self.hosts[line.host] = None
        if said_by:
            self.launchers[said_by] += 1

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
        exited = tuple(map(placing.exited, _without_tasks(self.exited)))
        last = sorted(map(placing.line, self._last.values()), key=_order)
        words = {
            (line.rank, line.host if names_process(line.host) else ""): LastWords(rank=line.rank, line=line)
            for line in last
        }
        trains = _trains(self._latest)
        ended = self._ended(trains)
        errors = {line.order: line for line in self._first_errors(ended)}
        if exited:
            # That an attempt failed is none beside words on a process's end.
            errors = {order: line for order, line in errors.items() if STARTS_AGAIN not in line.text}
        said = {end.rank for end in exited} | {line.rank for line in last}
        ranks = self.ranks | {rank for rank in said if rank is not None}
        return Log(
            files=tuple(self.files),
            notes=tuple(self.notes),
            launcher=max(self.launchers, key=self.launchers.__getitem__, default=""),
            world_size=self.world_size,
            ranks=tuple(sorted(ranks)),
            hosts=tuple(self.hosts),
            ahead=next(iter(self.ahead)) if len(self.ahead) == 1 else 0.0,
            sightings=_in_order(_sighting(seen, placing) for seen in self._first_sightings(ended)),
            raised=_with_own_lines(_in_order(map(placing.fact, chain.from_iterable(self._raised.values())))),
            stacks=_in_order(map(placing.fact, chain.from_iterable(self._stacks.values()))),
            exited=exited,
            errors=placing.lines(sorted(errors.values(), key=_order)),
            noise=tuple(
                msgspec.structs.replace(placing.fact(one.noise), times=one.times) for one in self._noise.values()
            ),
            last=tuple(sorted(words.values(), key=_rank_and_order)),
            steps=_steps(self._latest),
            recurs=_recurs(self._latest),
            trains=trains,
            ended=ended,
            more=self.more,
        )

    def _first_sightings(self, ended: Sequence[int]) -> Iterable[SeenSign]:
        """Return what each rank has said in each run, where it said it first: an end that was no run's parts nothing."""
        first: dict[tuple[object, ...], SeenSign] = {}
        for (number, quoted, (whose, _)), seen in self._sightings.items():
            known = first.setdefault((number, quoted, whose, bisect_left(ended, seen.line.number)), seen)
            if known is not seen:
                known.times += seen.times
        return first.values()

    def _first_errors(self, ended: Sequence[int]) -> Iterator[LogLine]:
        """Yield the first lines of each rank that speak of an error, in each run."""
        kept: Counter[object] = Counter()
        for whose, lines in self._errors:
            run = (whose, bisect_left(ended, lines[0].number)) if lines else None
            kept[run] += 1
            if lines and kept[run] <= MAX_ERRORS_OF_A_RANK:
                yield lines[0]

    def _ended(self, trains: LogLine | None) -> tuple[int, ...]:
        """Find the lines by which runs are over, of launchers on one host or of one process, behind which another one follows."""
        if len(self.hosts) > 1 or len(self.files) != 1:
            return ()
        self._meet()
        return tuple(sorted(set(self._run_ends.over(self.files[0], self._latest, trains))))

    def _meet(self) -> None:
        """Tell what is known so far of whose the lines are."""
        self._run_ends.meet(self.launchers, max(self.world_size or 1, self._highest + 1))

    def _placing(self) -> Placing:
        # A table names the host by its own name; the lines beside it have that of their label or file.
        said = [(host, end.local_rank, end.rank) for end in self.exited for host in {end.host, end.line.host}]
        tables = [(host, local, rank) for host, local, rank in said if local is not None and rank is not None]
        dates = [end.time for end in self.exited if end.time is not None and has_year(end.time)]
        return Placing([*self._pairs, *tables], self._first_date or next(iter(dates), None))


def _order(line: LogLine) -> int:
    return line.order


def _rank_and_order(words: LastWords) -> tuple[bool, int, int]:
    return words.rank is None, words.rank or 0, words.line.order


def _in_order(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(facts, key=lambda fact: fact.line.order))


def _without_tasks(exited: Sequence[ProcessExit]) -> Iterable[ProcessExit]:
    """Take srun's tasks for nodes, and for no ranks, where they are torchrun's agents."""
    if not any(end.said_by == "torchrun" for end in exited):
        return exited
    return (msgspec.structs.replace(end, rank=None) if end.said_by == "srun" else end for end in exited)


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
        # What the loader says of each version that was tried is the message of an error.
        if figures and not loader_fault(line.text[:500]):
            shapes.setdefault(shape, {})[line.text] = line
    return [list(lines.values()) for lines in shapes.values()]


def _steps(latest: Iterable[LogLine]) -> LogLine | None:
    """Return the last but two of the lines that recur with other figures."""
    recurring = [lines[-3] for lines in _shapes(latest) if len(lines) > 2]
    return max(recurring, key=_order, default=None)


def _recurs(latest: Iterable[LogLine]) -> LogLine | None:
    """Return the last but one of those that read like steps; what stands together may be the message of an error."""
    shapes = [lines for lines in _shapes(latest) if len(lines) > 1 and _STEP.match(lines[0].text)]
    apart = [lines[-2] for lines in shapes if lines[-1].number - lines[0].number >= len(lines)]
    return max(apart, key=_order, default=None)


def _trains(latest: Iterable[LogLine]) -> LogLine | None:
    """Return of the steps with their losses the one behind which there are so many."""
    steps = list({line.text: line for line in latest if _LOSS.match(line.text[:500])}.values())
    return steps[-STEPS_OF_GOING_ON] if len(steps) >= STEPS_OF_GOING_ON else None


def _with_own_lines(raised: Sequence[LoggedException]) -> tuple[LoggedException, ...]:
    """Give exceptions in whose traceback no line of the script is that of the exception that they led to, or of the
    process that passed a worker's on."""
    owned: dict[int, LogFrame | None] = {}
    for stream in grouped(raised, lambda one: one.line.stream).values():
        led_to: LogFrame | None = None
        for place, one in reversed(list(enumerate(stream))):
            led_to = one.own or (led_to if one.chained else None)
            passed_on = place > 0 and is_passed_on(stream[place - 1], one)
            owned[id(one)] = one.own or stream[place - 1].own if passed_on else led_to
    return tuple(msgspec.structs.replace(one, own=owned[id(one)]) for one in raised)
