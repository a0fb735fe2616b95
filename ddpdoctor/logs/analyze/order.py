"""Which of several failures came first, as far as a log can tell, and which has most to say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.analyze.exceptions import short_name
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, is_of, stream
from ddpdoctor.logs.analyze.handled_exceptions import merely_labelled, only_announced
from ddpdoctor.logs.analyze.illness_traits import is_about_others, is_certain, is_grave

SAME_MOMENT: Final = 1.0
"""Seconds within which the order of two ranks' failures says nothing."""
LINES_OF_A_BURST: Final = 40
"""Lines a rank within which it says nothing either: the ranks' lines are mixed in one file."""
OUTLIVED_SECONDS: Final = 60.0
"""Seconds that a rank goes on after words of an illness, and so did not fail by it."""
OUTLIVED_LINES: Final = 80
"""Lines of a rank that say the same."""
LEAST_WEIGHT: Final = 9
"""The weight of a hint at what would not even end a training."""
MAX_LEADING_WEIGHT: Final = 5
"""Failures of that weight and less lead if they came first."""
ANY_EXCEPTION: Final = 1
"""The code with which Python ends on whatever exception, those that a lost rank leads to among them."""


SAY_LITTLE: Final = {"", "AssertionError", "RuntimeError", "SystemExit", "ImportError", "OSError"}
"""Exceptions by which a script gives up over something that another line says."""


_OF_GPUS: Final = compile_lazily(r"(?i)\bn(?:um)?_?gpus?\b|\bgpus?\b|\bcuda\b|device_count")


def says_much(failure: Failure) -> bool:
    """Whether an exception needs no other line to explain it: neither one by which a script gives up, nor what comes of there being no
    GPU, as `rank % torch.cuda.device_count()`."""
    raised = failure.raised
    if raised is None or short_name(raised.exception) in SAY_LITTLE:
        return False
    called = raised.frames[-1].code if raised.frames else ""
    return not _OF_GPUS.search(f"{raised.message} {called}")


class Timeline:
    """The course of a run: how far its lines are from each other."""

    def __init__(self, log: Log, failures: Sequence[Failure], catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._log = log
        self._ranks = max(len(log.ranks), 1)
        self._failures = failures
        self._own = [
            failure
            for failure in failures
            if failure.kind is FailureKind.RAISED and not failure.is_effect and not failure.is_from_outside
        ]
        self._last = {last_words.rank: last_words.line for last_words in log.last}
        self._trains = log.trains
        self._steps = log.steps
        self._ends = [failure.line for failure in failures if failure.kind is FailureKind.ENDED]
        self._first = [failure.exited for failure in failures if failure.exited and failure.exited.first]
        times = [process_exit.time for process_exit in self._first if process_exit.time is not None]
        self._first_end = min(times) if len(times) == len(self._first) > 1 else None

    def share(self, line: LogLine) -> int:
        """Count the ranks among which the lines of its file are shared out."""
        return self._ranks if line.rank is not None else 1

    def far(self, one: LogLine, later: LogLine) -> bool:
        """Whether a rank has gone on for long between the two."""
        if one.time is not None and later.time is not None and not one.lent:
            return later.time - one.time > OUTLIVED_SECONDS
        return one.file == later.file and later.number - one.number > OUTLIVED_LINES * self.share(one)

    def gone_on_after(self, line: LogLine) -> bool:
        """Whether its rank wrote for long after that line, or the training took many steps."""
        if self._trains is not None and line.file == self._trains.file and line.order < self._trains.order:
            return True
        last = self._last.get(line.rank)
        # A rank whose last words are the same has not got over it.
        return last is not None and last.text != line.text and self.far(line, last)

    def outlived(self, failure: Failure) -> bool:
        """Whether the rank went on for long after those words, and only then fell by something else."""
        if failure.kind is FailureKind.ENDED:
            return False
        later = [
            follower
            for follower in self._own
            if stream(follower.line) == stream(failure.line) and follower is not failure
        ]
        if failure.kind is FailureKind.SAID:
            gone_on = failure.line.rank is not None and self.gone_on_after(failure.line)
            own = [
                follower for follower in later if follower.is_ordinary and follower.began.number > failure.line.number
            ]
            return gone_on or any(says_much(follower) or self.far(failure.line, follower.began) for follower in own)
        # An exception that was caught, unless the launcher started the rank again after it.
        return any(
            self.far(failure.line, follower.began) and not self._ended_between(failure.line, follower.began)
            for follower in later
        )

    def only_announced(self, failure: Failure) -> bool:
        """Whether it is a traceback that was announced as one that need not end its process, and that it got over."""
        last = self._last.get(failure.line.rank)
        return only_announced(failure, self._failures, self.catalogue, last, self._steps) or merely_labelled(
            failure, last, self._log
        )

    def _ended_between(self, one: LogLine, later: LogLine) -> bool:
        return any(end.file != one.file or one.number <= end.number <= later.number for end in self._ends)

    def ended_first(self, failure: Failure) -> bool:
        """Whether the launcher saw that rank end first; of several nodes' launchers each only knows its own ranks."""
        first = [
            process_exit
            for process_exit in self._first
            if self._first_end is None or process_exit.time == self._first_end
        ]
        return any(
            process_exit is failure.exited or (failure.raised and is_of(failure.line, process_exit))
            for process_exit in first
        )

    def says_less(self, failure: Failure) -> bool:
        """Whether it is a launcher's mere word that a rank ended, too, beside one that the same launcher saw end first, and that says why."""
        exited = failure.exited
        if exited is None or exited.first or exited.error or failure.signs or exited.exit_code != ANY_EXCEPTION:
            return False
        first = [
            process_exit
            for process_exit in self._first
            if process_exit.line.file == exited.line.file and process_exit.host == exited.host
        ]
        spoke = [follower for follower in self._own if not (self.outlived(follower) or self.only_announced(follower))]
        return any(is_of(follower.line, process_exit) for follower in spoke for process_exit in first)

    def near(self, failure: Failure, lead: Failure) -> bool:
        """Whether words stand shortly before, or right behind, what its rank fell by."""
        if stream(failure.line) != stream(lead.line) and not _of_one_rank(failure, lead):
            return False
        gap = lead.began.number - failure.line.number
        if gap < 0:
            return failure.line.number - lead.line.number <= LINES_OF_A_BURST * self.share(lead.line)
        return not self.far(failure.line, lead.began)

    def clearly_before(self, one: Failure, other: Failure) -> bool:
        """Whether the log proves that one failed before another, and not just about then."""
        if one.attempt != other.attempt:
            return one.attempt < other.attempt
        if FailureKind.ENDED in (one.kind, other.kind):
            return False
        if one.line.time is not None and other.line.time is not None:
            if not one.line.lent and one.line.time < other.line.time - SAME_MOMENT:
                return True
            if not other.line.lent and (not one.line.lent or one.line.time > other.line.time):
                return False
        if one.line.file != other.line.file:
            return False
        burst = 0 if stream(one.line) == stream(other.line) and one.line.rank is not None else LINES_OF_A_BURST
        return one.line.number < other.began.number - burst * self.share(one.line)


def _of_one_rank(one: Failure, other: Failure) -> bool:
    """Whether a file has both of the same rank, where what tells its end has no label of its own."""
    return one.line.file == other.line.file and one.rank is not None and one.rank == other.rank


def weight(failure: Failure, course: Timeline) -> int:
    """Weigh how much a failure has to say of the cause: the less the better. What only may be a cause comes behind
    what surely ended a rank."""
    names, catalogue = failure.names, course.catalogue
    about_others = bool(names) and all(is_about_others(catalogue, name.slug) for name in names)
    if failure.is_from_outside:
        return 5
    if course.only_announced(failure) or (failure.kind is FailureKind.RAISED and course.outlived(failure)):
        return 7
    if course.says_less(failure):
        return 7
    if failure.is_ordinary:
        return 1
    if failure.kind is FailureKind.SAID:
        if not any(is_grave(catalogue, sign.slug, sign.sign) for sign in failure.signs):
            return (
                8
                if names or any(is_certain(catalogue, sign.slug, sign.sign) for sign in failure.signs)
                else LEAST_WEIGHT
            )
        if course.outlived(failure):
            return 7
        return (2 if about_others else 1) if names else 7
    if names:
        return 3 if about_others else 0
    if failure.exited:
        return 1
    return 4 if failure.signs else 6


def _are_mixed(one: Failure, other: Failure) -> bool:
    """Whether each began before the other was over, so that the order of their lines says nothing."""
    same = one.line.file == other.line.file
    return same and one.began.number <= other.over.number and other.began.number <= one.over.number


def lead_of(failures: Sequence[Failure], course: Timeline) -> Failure | None:
    """Pick the failure that leads; failures: without mere effects."""
    ended = {id(failure) for failure in failures if course.ended_first(failure)}
    # What a rank itself says tells more than its launcher's word on its end.
    ordered = sorted(
        failures,
        key=lambda failure: (
            weight(failure, course),
            not (failure.exited and id(failure) in ended) or failure.explained,
            failure.line.order,
        ),
    )
    if not ordered:
        return None
    best = ordered[0]
    if id(best) not in ended:
        mixed = (candidate for candidate in ordered if id(candidate) in ended and _are_mixed(candidate, best))
        best = next((candidate for candidate in mixed if weight(candidate, course) == weight(best, course)), best)
    for candidate in ordered[1:]:
        # Words by themselves may be a warning; an exception that names its cause is not behind it.
        may_lead = weight(candidate, course) <= MAX_LEADING_WEIGHT and (
            candidate.kind is not FailureKind.SAID or weight(best, course) > 0
        )
        if may_lead and course.clearly_before(candidate, best):
            best = candidate
    return best
