"""The course of a run, as far as a log tells: which of its lines came first, and how far they are from each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogLine, ProcessExit
from ddpdoctor.logs.analyze.endings import CANCELLED, endings
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, is_of
from ddpdoctor.logs.analyze.illness_traits import is_about_others
from ddpdoctor.logs.exceptions import is_optional, short_name

SAME_MOMENT: Final = 1.0
"""Seconds within which the order of two ranks' failures says nothing."""
LINES_OF_A_BURST: Final = 40
"""Lines a rank within which it says nothing either: the ranks' lines are mixed in one file."""
OUTLIVED_SECONDS: Final = 60.0
"""Seconds that a rank goes on after words of an illness, and so did not fail by it."""
OUTLIVED_LINES: Final = 60
"""Lines of a rank that say the same."""
SAY_LITTLE: Final = {"", "AssertionError", "RuntimeError", "SystemExit", "ImportError", "OSError"}
"""Exceptions by which a script gives up over something that another line says."""
_RAISED_BY_TORCH: Final = "RuntimeError"
"""Of these the one that torch raises for whatever goes wrong, with its reason."""
_OF_GPUS: Final = compile_lazily(r"(?i)\bn(?:um)?_?gpus?\b|\bgpus?\b|\bcuda\b|device_count")
_WARNS: Final = compile_lazily(r"(?:\S.{0,300}[: ])?\w*Warning: |(?:.{0,160}?[ :])?\[W[\d ]")
"""What a library only warns of, by Python's warnings or torch's own."""
_OF_WHAT_IS_WARNED_OF: Final = compile_lazily(
    r"(?i)cuda|gpu|device|driver|nvidia|nccl|cudnn|cublas|\b(?:hip|xpu|npu)\b|accelerator|backend|\bcpu|_cpu|half\b|float16|fp16|bf16|scalar type"
    r"|memory|\bshm\b|worker|killed|signal|exit|network|socket|connect|address|host|port\b|tim(?:ed?|ing) ?out|\brank|world.?size|process|distributed"
    r"|collective|barrier|reduc|param|state_dict|checkpoint|version mismatch|symbol|librar|extension|compil|instal"
)
"""What a warning may be about that ends a run after all: devices, memory, processes, the network, packages."""


def is_other_than_warned(failure: Failure) -> bool:
    """Whether an exception says something that no warning before it explains, as that shapes don't fit."""
    raised = failure.raised
    if raised is None or not raised.message or short_name(raised.exception) != _RAISED_BY_TORCH:
        return False
    last = f"{raised.frames[-1].path.split('site-packages')[-1]} {raised.frames[-1].code}" if raised.frames else ""
    return not _OF_WHAT_IS_WARNED_OF.search(f"{raised.message} {last}")


def says_much(failure: Failure) -> bool:
    """Whether an exception needs no other line to explain it: neither one by which a script gives up, nor what comes of there being no
    GPU, as `rank % torch.cuda.device_count()`."""
    raised = failure.raised
    if raised is None or short_name(raised.exception) in SAY_LITTLE:
        return False
    called = raised.frames[-1].code if raised.frames else ""
    return not _OF_GPUS.search(f"{raised.message} {called}")


class Timeline:
    """The course of a run: what failed in it, how its processes ended, and how far its lines are from each other."""

    def __init__(self, log: Log, failures: Sequence[Failure], catalogue: Catalogue) -> None:
        self.log = log
        self.failures = failures
        self.catalogue = catalogue
        self.last = {last_words.rank: last_words.line for last_words in log.last}
        """What each rank said last."""
        self.latest = max(self.last.values(), key=lambda line: line.order, default=None)
        self.own = [
            failure
            for failure in failures
            if failure.kind is FailureKind.RAISED and not failure.is_effect and not failure.is_from_outside
        ]
        self._ranks = max(len(log.ranks), 1)
        self.first = [failure.exited for failure in failures if failure.exited and failure.exited.first]

    @cached_property
    def ends(self) -> list[ProcessExit]:
        """How each process ended."""
        return endings(self.log)

    @cached_property
    def _own_of(self) -> Mapping[object, list[Failure]]:
        """The exceptions of each stream that are nobody else's doing."""
        return grouped(self.own, lambda failure: failure.line.stream)

    @cached_property
    def _first_of_all(self) -> list[ProcessExit]:
        """Of the ends that launchers saw first the earliest ones, where all have a time."""
        times = [process_exit.time for process_exit in self.first if process_exit.time is not None]
        if len(times) < len(self.first):
            return self.first
        return [process_exit for process_exit in self.first if process_exit.time == min(times)]

    def share(self, line: LogLine) -> int:
        """Count the ranks among which the lines of its file are shared out."""
        return self._ranks if line.rank is not None else 1

    def far(self, one: LogLine, later: LogLine, seconds: float = OUTLIVED_SECONDS) -> bool:
        """Whether a rank has gone on for long between the two. seconds: how long, where the log tells the time."""
        if one.time is not None and later.time is not None and not one.lent:
            return later.time - one.time > seconds
        return one.file == later.file and later.number - one.number > OUTLIVED_LINES * self.share(one)

    def gone_on_after(self, line: LogLine) -> bool:
        """Whether its rank wrote for long after that line, or the training took many steps."""
        if self.log.trains is not None and line.file == self.log.trains.file and line.order < self.log.trains.order:
            return True
        last = self.last.get(line.rank)
        # A rank whose last words are the same has not got over it.
        return last is not None and last.text != line.text and self.far(line, last)

    def outlived(self, failure: Failure) -> bool:
        """Whether the rank went on for long after those words, and only then fell by something else."""
        if failure.kind is FailureKind.ENDED:
            return False
        line, later = failure.line, self._own_of.get(failure.line.stream, [])
        if failure.kind is FailureKind.RAISED:
            return any(
                self.far(failure.over, follower.began) for follower in later if follower is not failure
            ) or self._was_caught(failure)
        if line.rank is not None and self.gone_on_after(line):
            return True
        warns = bool(_WARNS.match(line.text))
        if warns and line.rank is None:
            # It may be any rank's.
            later = [follower for follower in self.own if follower.line.file == line.file]
        return any(
            says_much(follower) or (warns and is_other_than_warned(follower)) or self.far(line, follower.began)
            for follower in later
            if follower.is_ordinary and follower.began.number > line.number
        )

    def _was_caught(self, failure: Failure) -> bool:
        """Whether steps follow a traceback that somebody may have caught, and another exception behind those ends the run: a process dies of
        one alone. What a rank says of others, of which one is gone, may come of the first."""
        steps = [line.order for line in (self.log.recurs, self.log.trains) if line and line.order > failure.over.order]
        if not steps or failure.raised is None or not (failure.may_be_caught or is_optional(failure.raised)):
            return False
        return any(
            follower.line.file == failure.line.file
            and failure.rank in (None, follower.rank)
            and min(steps) < follower.began.order
            and (follower.is_ordinary or not any(is_about_others(self.catalogue, slug) for slug in follower.slugs))
            for follower in self.own
        )

    def went_on_until_stopped(self, failure: Failure) -> bool:
        """Whether mere words are followed by many steps, and the run was ended from outside: who hangs takes none."""
        trains, line = self.log.trains, failure.line
        if trains is None or failure.kind is not FailureKind.SAID or line.file != trains.file:
            return False
        stops = [
            other.line.order
            for other in self.failures
            if other.line.file == line.file
            and (other.is_from_outside or (other.exited and CANCELLED in other.line.text))
        ]
        return bool(stops) and line.order < min(trains.order, *stops)

    def only_warned(self, failure: Failure) -> bool:
        """Whether a library warned by those words, and its rank went on for long."""
        # Its message may begin below the warning's own line.
        above = [
            line.text for sign in failure.signs for line in sign.before[-1:] if line.text.rstrip().endswith("Warning:")
        ]
        return any(map(_WARNS.match, (failure.line.text, *above))) and self.gone_on_after(failure.line)

    def ended_first(self, failure: Failure) -> bool:
        """Whether the launcher saw that rank end first; of several nodes' launchers each only knows its own ranks."""
        return any(
            process_exit is failure.exited or (failure.raised and is_of(failure.line, process_exit))
            for process_exit in self._first_of_all
        )

    def near(self, failure: Failure, lead: Failure) -> bool:
        """Whether words stand shortly before, or right behind, what its rank fell by."""
        # What tells the rank's end may have no label of its own.
        of_its_rank = failure.rank is not None and (failure.line.file, failure.rank) == (lead.line.file, lead.rank)
        if failure.line.stream != lead.line.stream and not of_its_rank:
            return False
        gap = lead.began.number - failure.line.number
        if gap < 0:
            return failure.line.number - lead.line.number <= LINES_OF_A_BURST * self.share(lead.line)
        return not self.far(failure.line, lead.began)

    def clearly_before(self, one: Failure, other: Failure) -> bool:
        """Whether the log proves that one failed before another, and not just about then."""
        if FailureKind.ENDED in (one.kind, other.kind):
            return False
        if one.line.time is not None and other.line.time is not None:
            if not one.line.lent and one.line.time < other.line.time - SAME_MOMENT:
                return True
            if not other.line.lent and (not one.line.lent or one.line.time > other.line.time):
                return False
        if one.line.file != other.line.file:
            return False
        burst = 0 if one.line.stream == other.line.stream and one.line.rank is not None else LINES_OF_A_BURST
        return one.line.number < other.began.number - burst * self.share(one.line)
