"""Finds in a file to which several runs were written, one behind the other, where each but the last one is over."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from operator import attrgetter
from typing import Final, NamedTuple

from ddpdoctor.facts.log import LogFile, LoggedException, LogLine, ProcessExit
from ddpdoctor.logs.exceptions import (
    LINES_OF_ANOTHER_RUN,
    ends_its_run,
    is_from_outside,
    is_of_launcher,
    is_within_launcher,
)
from ddpdoctor.logs.launch_failures import may_start_again
from ddpdoctor.logs.match.first_lines import FirstLines
from ddpdoctor.logs.match.global_ranks import has_year
from ddpdoctor.logs.match.progress_bars import ProgressBars
from ddpdoctor.logs.parse.exits import SHELL
from ddpdoctor.logs.parse.timestamps import seconds_of

MAX_ENDS: Final = 4096
MOST_HELD_BACK: Final = 4 * 8192
"""Characters: several times what Python's buffer of a file takes, since they are estimated by the last lines."""
LINES_OF_A_MESSAGE: Final = 8
"""Lines behind an exception within which another process's begins that is its message."""
LINES_OF_A_ROW: Final = 16
"""Lines from torchrun's exception to the end of a rank in its table, or from one rank to the next."""
BARS: Final = 10
MAX_UNSURE: Final = 64
"""Ends of which there are only an illness's words: the last ones are kept."""
AT_ONCE: Final = 4
"""Lines behind an end within which the file begins again where somebody starts the next run at once."""
TWICE: Final = 2
FAR_MORE: Final = 4
"""Times as many lines as may have been held back, and steps among them: no job goes on so for long that has lost a rank."""
MIN_LINES: Final = 10
"""Behind the last beginning; fewer may be those of another rank, which waits for those that are gone."""
LASTING: Final = 120.0
"""Seconds behind an end for which nobody works on whose job is over: a launcher ends the other ranks within 30, and who waits for one does nothing."""
MIN_STEPS: Final = 3
LAST_IMPORT: Final = 60
"""Lines of a script among which its imports stand."""
STARTS_NO_RANKS: Final = frozenset({"lightning"})
"""The launcher beside which a run may still be of one process."""
SAYS_IT_LAST: Final = "deepspeed"
"""The launcher that says itself, without an exception, with which code its run failed."""
EVEN: Final = 1.5
"""By which factor the times between a file's beginnings differ at most that a clock makes, and nobody who starts runs."""
_BAR: Final = re.compile(r".{0,80}?\b\d{1,2}%\|.{0,200}?\[\d")
"""One that isn't at its end yet."""
_IMPORTS: Final = re.compile(r"(?:import|from)\s")
"""The outermost line of a traceback by which a script was still at its imports."""
_REFUSED: Final = re.compile(
    r"[^:]{1,100}: error: (?:the following arguments|unrecognized arguments|argument |ambiguous option)|(?:Syntax|Indentation)Error: "
)
"""The last words of argparse, and of a script that can't be read."""
_STEP: Final = re.compile(
    r"(?i).*\b(?:step|iter|iteration|epoch|batch|update|train|training|test|val|validation|eval|evaluation)\b.{0,20}?\d"
)
_NEVER_HELD_BACK: Final = re.compile(r"wandb: |.{0,80}?\b\d{1,3}%\|.{0,200}?\[\d")
"""What goes to stderr, which has no buffer: wandb's words, and bars."""
_GIVES_UP: Final = re.compile(r"(?i)\bgiv(?:e|es|en|ing) up\b|\bafter \d+ (?:attempts|tries|retries)\b")
_STEP_OF_JOB: Final = re.compile(r"\bStepId=(\d{1,12})(?!\d)")
_JOB: Final = re.compile(
    r"\*\*\* (?:STEP|JOB) (\d{1,12})(?!\d)[^*]{0,200} CANCELLED AT (?:(?P<date>\d{4}-\d\d-\d\d)T(?P<clock>\d\d:\d\d:\d\d)(?P<part>))?"
)
"""Slurm tells no part of a second."""


class RunEnd(NamedTuple):
    """The lines at which an end began, and was over. alone: it ends the run only if that is of one process. job: Slurm's number of what is over.
    silent: nothing of the run's follows. early: it had done nothing yet that it could write of. sure: else only the words of
    an illness, which the run may have got over. told: it was told to end. words: the last ones. time: of the end, or of the
    line before it."""

    began: int
    over: int
    alone: bool = True
    job: str = ""
    silent: bool = False
    early: bool = False
    sure: bool = True
    told: bool = False
    words: str = ""
    time: float | None = None


@dataclass
class RunEnds:
    """The ends so far: exceptions that nobody caught, launchers' own, processes that a signal ended, jobs that Slurm ended."""

    count: int = 0
    """Of the ends, as far as each may have been a run's."""
    _ends: list[RunEnd] = field(default_factory=list)
    _unsure: deque[RunEnd] = field(default_factory=lambda: deque(maxlen=MAX_UNSURE))
    _alone: bool = True
    _begun: tuple[LogLine, ...] = ()
    """The lines at which the file begins, and begins again."""
    _again: tuple[LogLine, ...] = ()
    """Those of them behind another one."""
    _first: int = 0
    """The number of the first line that is sought again."""
    _bars: ProgressBars = field(default_factory=ProgressBars)
    _started: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_ENDS))
    """The numbers of lines by which somebody started a run."""

    def begins_again(self, first: FirstLines, bars: ProgressBars) -> None:
        """Take note of where the file begins, and of its progress bars."""
        self._begun, self._first, self._bars = tuple(first.begun()), first.number, bars
        self._again = tuple(line for line in self._begun if line.number > first.number)

    def meet(self, launchers: Collection[str], ranks: int) -> None:
        """Take note of whose lines there are so far."""
        self._alone = ranks < 2 and STARTS_NO_RANKS.issuperset(launchers)

    def start(self, line: LogLine) -> None:
        """Take note of a line by which somebody starts a run."""
        self._started.append(line.number)

    def raise_(self, raised: LoggedException) -> None:
        """Take note of an exception."""
        number = raised.line.number
        if ends_its_run(raised):
            alone = not (is_within_launcher(raised) or is_of_launcher(raised))
            early = raised.frames[0].line <= LAST_IMPORT and bool(_IMPORTS.match(raised.frames[0].code))
            time = raised.began.time if raised.line.time is None else raised.line.time
            told = is_from_outside(raised)
            self._add(
                RunEnd(raised.began.number, number, alone, early=early, told=told, words=raised.line.text, time=time)
            )
        elif self._ends and 0 <= raised.began.number - self._ends[-1].over <= LINES_OF_A_MESSAGE:
            self._ends[-1] = self._ends[-1]._replace(over=number)

    def led_on(self, raised: LoggedException) -> None:
        """Take note that another exception was raised while this one was handled: it ended nothing."""
        if self._ends and self._ends[-1].began == raised.began.number:
            self._ends.pop()

    def exit(self, exited: ProcessExit) -> None:
        """Take note of the end of a process."""
        number = exited.line.number
        if (job := _JOB.search(exited.line.text)) and not may_start_again(exited):
            self._add(RunEnd(number, number, alone=False, job=job[1], time=seconds_of(job) if job["clock"] else None))
        elif exited.said_by == SAYS_IT_LAST and exited.exit_code and not exited.told_to:
            self._add(RunEnd(number, number, alone=False, time=exited.line.time))
        elif self._ends and not self._ends[-1].alone and 0 < number - self._ends[-1].over <= LINES_OF_A_ROW:
            self._ends[-1] = self._ends[-1]._replace(over=number)  # torchrun's table, below its exception
        elif exited.said_by == SHELL and exited.exit_code:
            self._add(RunEnd(number, number, silent=True))

    def said(self, line: LogLine) -> None:
        """Take note of a line in which a sign was found."""
        number = line.number
        if _REFUSED.match(line.text):
            self._add(RunEnd(number, number, silent=True, early=True, words=line.text))
            return
        step = _STEP_OF_JOB.search(line.text)
        job = step[1] if step else ""
        self._unsure.append(RunEnd(number, number, alone=not job, sure=False, time=line.time, job=job))

    def _add(self, end: RunEnd) -> None:
        if len(self._ends) < MAX_ENDS:
            self._ends.append(end)
            self.count += self._alone or not end.alone

    def over(self, file: LogFile, latest: Sequence[LogLine], trains: LogLine | None) -> Iterator[int]:
        """Find the lines by which runs are over. An end that follows at once may be another rank's, unless the first was one at its imports, and says
        something else; and lines right behind are still the same run's, as are steps that Python has held back until it ended, as many as its
        buffer takes.

        Args:
            file: that the ends are of.
            latest: the last lines of the file.
            trains: the step behind which many others stand.
        """
        first = min((end.over for end in [*self._ends, *self._unsure]), default=file.lines)
        yield from (number - 1 for number in self._started if number > first)
        begun = self._begun_by_somebody()
        known = sorted(end for end in [*self._ends, *self._unsure] if self._alone or not end.alone)
        at_once = self._begun_at_once(known, file, latest, trains)
        # Of words that are said again and again the last ones count.
        latest_words = {end for end, later in zip_longest(known, known[1:]) if later is None or later.sure}
        ends = [
            end
            for end in known
            if end.sure
            or end in at_once
            or (end in latest_words and _begins_behind(end, None, begun))
            or any(end.job and later.job not in ("", end.job) for later in known if later > end)
        ]
        for end, later in zip_longest(ends, ends[1:]):
            # A launcher has ended all of its ranks before, who can't flush what they have held back.
            of_launcher = not (end.alone or end.job)
            begins = _first_between(end, later, self._again) if of_launcher else _begins_behind(end, later, begun)
            begins = at_once.get(end, begins)
            if begins and later is None and of_launcher and file.lines - begins.number < MIN_LINES:
                continue
            if begins:
                yield begins.number - 1
            elif later is None:
                if end.sure and self._goes_on(end, file, latest, trains):
                    yield end.over + LINES_OF_ANOTHER_RUN
            elif (later.silent and not later.early) or (end.job and (later.told or end.job == later.job)):
                continue  # A process may crash as it is taken down, and is told to end when its job is.
            elif end.early and later.sure and later.words not in ("", end.words):
                yield end.over
            elif end.job and later.job:
                yield min(end.over + LINES_OF_A_MESSAGE, later.began - 1)
            elif end.sure and later.began - end.over > LINES_OF_ANOTHER_RUN:
                yield end.over + LINES_OF_ANOTHER_RUN
        last = max(self._ends, default=None)
        if not self._alone and last and last.alone:
            # A rank's, of a job whose launcher says nothing.
            begins = _first_between(last, None, self._again)
            if begins and self._lasts(last, latest):
                yield begins.number - 1
            elif trains and trains.number > last.over and file.lines - last.over > FAR_MORE * _held_back(latest):
                yield last.over + LINES_OF_ANOTHER_RUN

    def _begun_at_once(
        self, ends: Sequence[RunEnd], file: LogFile, latest: Sequence[LogLine], trains: LogLine | None
    ) -> dict[RunEnd, LogLine]:
        """Find the ends right behind which the file begins again: what happens twice isn't another rank's. In a file that begins with an end
        Python has held back what stands behind each; and who tries again says in the end that he gives up."""
        ends = sorted((end for end in ends if end.sure or (trains and trains.number > end.over)), key=_by_over)
        if not ends or self._first > min(end.began for end in ends):
            return {}
        found = {}
        for line in (line for line in self._again if file.lines - line.number >= MIN_LINES):
            place = bisect_left(ends, line.number, key=attrgetter("over"))
            if place and line.number - ends[place - 1].over <= AT_ONCE:
                found[ends[place - 1]] = line
        last = max(found.values(), key=lambda line: line.number, default=None)
        if last and any(line.number > last.number and _GIVES_UP.search(line.text) for line in latest):
            return {}
        return found if len(found) >= TWICE else {}

    def _goes_on(self, end: RunEnd, file: LogFile, latest: Sequence[LogLine], trains: LogLine | None) -> bool:
        """Whether another run follows the last end."""
        begins = _first_between(end, None, self._again)
        again = begins is not None
        trained = trains is not None and trains.number > end.over
        if trains and trains.time and end.time and not end.alone and trains.time - end.time >= LASTING:
            return trained  # Its launcher, or Slurm, had ended all ranks before.
        if end.job:
            # Ranks may write for long until Slurm has ended them.
            return again
        held_back = _held_back(latest)
        if begins and trained and _NEVER_HELD_BACK.match(begins.text):
            # Ranks of one job are at the same step: who writes so much more is of another one.
            before = end.over - max((line.number for line in self._begun if line.number < end.began), default=0)
            return file.lines - begins.number > TWICE * before
        if file.lines - end.over > held_back and (end.silent or trained):
            return True
        if begins and file.lines - begins.number > held_back:
            return True
        bars = sum(map(bool, map(_BAR.match, {line.text for line in latest if line.number > end.over})))
        # Progress bars are never held back; where the file begins again, too, they aren't another rank's.
        if again and (bars >= BARS or self._lasts(end, latest)):
            return True
        # One of the same work may be another job's, of several side by side.
        return end.early and (trained or bars > 0 or self._bars.ran_since(end.over, latest) >= LASTING)

    def _lasts(self, end: RunEnd, latest: Sequence[LogLine]) -> bool:
        """Whether somebody works on for long behind it, by a progress bar that began there, or by the clocks of steps."""
        if self._bars.ran_since(end.over, latest) >= LASTING:
            return True
        steps = [
            line
            for line in latest
            if line.number > end.over and line.time is not None and not line.lent and _STEP.match(line.text[:500])
        ]
        times = [line.time for line in steps if line.time is not None]
        return len({line.text for line in steps}) >= MIN_STEPS and max(times) - min(times) >= LASTING

    def _begun_by_somebody(self) -> list[tuple[LogLine, float]]:
        """List the beginnings with their clocks, unless they come as evenly as what a program writes from time to time."""
        clocked = [(line, line.time) for line in self._begun if line.time is not None]
        apart = [later - time for (_, time), (_, later) in pairwise(clocked)]
        even = len(apart) > 1 and max(apart) <= EVEN * min(apart)
        return [] if even else clocked


def _held_back(latest: Sequence[LogLine]) -> float:
    """Estimate by a file's last lines how many of them Python may have held back."""
    return MOST_HELD_BACK * len(latest) / max(1, sum(len(line.text) + 1 for line in latest))


def _begins_behind(end: RunEnd, later: RunEnd | None, begun: Sequence[tuple[LogLine, float]]) -> LogLine | None:
    """Find the line behind it, and before a later one, at which the file begins again, and by its clock was written later: of what Python has held
    back the clock is of before."""
    before = max((clock for line, clock in begun if line.number < end.began), default=None)
    time = before if end.time is None else end.time
    if time is None:
        return None
    return _first_between(end, later, [line for line, clock in begun if clock > time])


def _first_between(end: RunEnd, later: RunEnd | None, lines: Sequence[LogLine]) -> LogLine | None:
    """Find the first of those lines behind it, and before a later one, of which the clock doesn't say that it was written before it."""
    return next(
        (
            line
            for line in lines
            if line.number > end.over and (later is None or line.number < later.began) and not _is_before(line, end)
        ),
        None,
    )


def _is_before(line: LogLine, end: RunEnd) -> bool:
    if line.time is None or end.time is None or has_year(line.time) is not has_year(end.time):
        return False
    return line.time <= end.time


def _by_over(end: RunEnd) -> tuple[int, bool]:
    return end.over, end.sure
