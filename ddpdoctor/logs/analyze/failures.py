"""The failures that a log tells of: each exception, ended process or sign of an illness, with the signs that belong to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import ABORT, endings, same_process, signal_of, with_early_end, with_signal
from ddpdoctor.logs.analyze.false_positives import real_sightings
from ddpdoctor.logs.analyze.rules import LogRule
from ddpdoctor.logs.exceptions import (
    NAMED,
    is_cut,
    is_from_outside,
    is_mistake,
    is_of_launcher,
    is_of_parent,
    is_ordinary,
    is_passed_on,
    is_told_better_by,
    is_within_launcher,
    may_be_caught,
    says_nothing,
    tells_of_another,
)
from ddpdoctor.logs.launch_failures import TERMINATIONS
from ddpdoctor.logs.parse.labels import process_of

SHORTENED: Final = "HYDRA_FULL_ERROR"
"""In hydra's last line, behind whatever exception; where there is none, the configuration could not be put together."""
MAX_LINES_OF_MESSAGE: Final = 40
"""Lines of a stream behind an exception's name that may still be its message."""
MAX_LINES_OF_CODE: Final = 2000
"""The same where nothing stands behind the name: torch's compilers put all of a kernel before the compiler's own words."""
MAX_LINES_ABOUT_EXIT: Final = 8
"""Lines behind the first of a launcher's words on a process that may still be about it."""

_HEADER: Final = "Traceback (most recent call last)"
_SKIPS: Final = compile_lazily(
    r"(?i)\bskip(?:s|ping|ped)?[ -](?:this |the |that |current )*(?:(?:mini-?)?batch|sample)\b|^[\[(<]skip(?:s|ping|ped)?[\])>]"
)


class FailureKind(Enum):
    """The way in which a failure shows itself."""

    RAISED = "an exception"
    ENDED = "a process that ended, as its launcher says"
    SAID = "a sign of an illness, by itself"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of one rank. raised: the first of its chain; may_be_caught: whether somebody may have caught what it led to in the end. signs: of illnesses, within it. effects: signs within it which say that another
    rank fell. over: the last line of its chain. explained: of a process that ended, whether something else in the log says why."""

    line: LogLine
    began: LogLine
    over: LogLine
    raised: LoggedException | None = None
    may_be_caught: bool = False
    exited: ProcessExit | None = None
    explained: bool = False
    signs: tuple[SignMatch, ...] = ()
    effects: tuple[SignMatch, ...] = ()
    topic: LogTopic | None = None
    """What all of its signs say, where that is no illness: that the run was to end, or that the script has a mistake."""

    @property
    def kind(self) -> FailureKind:
        return FailureKind.RAISED if self.raised else FailureKind.ENDED if self.exited else FailureKind.SAID

    @property
    def rank(self) -> int | None:
        return self.exited.rank if self.line.rank is None and self.exited else self.line.rank

    def raises(self, kind: Callable[[LoggedException], bool]) -> bool:
        """Whether it is an exception of that kind."""
        return self.raised is not None and kind(self.raised)

    @property
    def slugs(self) -> set[str]:
        return {sign.slug for sign in self.signs}

    @property
    def names(self) -> list[SignMatch]:
        """List the signs that only one illness has."""
        return [sign for sign in self.signs if sign.role is SignRole.NAMES]

    @property
    def is_effect(self) -> bool:
        """Whether it only says that another rank fell, or that the launcher ended this one."""
        if self.exited is not None:
            told = signal_of(self.exited) in TERMINATIONS and not self.exited.first
            only_ended = self.exited.told_to or self.explained or told or self.exited.exit_code is None
            return only_ended and not self.names
        if self.signs and not self.raises(is_of_parent):
            return False
        return bool(self.effects) or self.raises(is_of_launcher) or self.raises(tells_of_another)

    @property
    def is_from_outside(self) -> bool:
        """Whether it only says that the run was told to end."""
        return self.raises(is_from_outside) or self.topic is LogTopic.STOPPED

    @property
    def is_ordinary(self) -> bool:
        """Whether it is a mistake in the script, as far as it shows: its exception, or that it ended itself."""
        if self.slugs:
            return self.topic is LogTopic.MISTAKE
        if self.exited is not None:
            return signal_of(self.exited) == 0
        return self.raises(is_ordinary)


def _last_line(raised: LoggedException) -> LogLine:
    """Find the last line of its message, as far as that is known."""
    line = raised.line
    return msgspec.structs.replace(line, number=line.number + raised.below, order=line.order + raised.below)


def failures_of(log: Log, catalogue: Catalogue) -> list[Failure]:
    """List all failures, effects too, in the order in which they were read."""
    context = real_sightings(log, catalogue)
    real, again = context.seen, context.recovered
    stopped = catalogue.slug_for(LogTopic.STOPPED)
    chains = list(_chains(exception for exception in log.raised if exception not in again))
    raised: list[Failure] = []
    taken: set[int] = set()
    of_stream = grouped(real, lambda match: match.line.stream)
    for chain, until in chains:
        within = [
            match
            for match in of_stream.get(chain[-1].line.stream, ())
            if _is_within(match, chain, until) and not _is_behind_rows(match, chain, log.exited)
        ]
        if not is_from_outside(_root(chain)):
            # Behind an exception it is another's word, mostly a launcher's on what came of it.
            within = [match for match in within if match.slug != stopped]
        taken.update(id(match) for match in within if chain[0].began.number <= match.line.number)
        # Hydra ends the process behind a traceback that it has shortened.
        caught = may_be_caught(chain[-1]) and not any(SHORTENED in match.sign for match in within)
        if not any(map(is_cut, chain)):
            # What the exception says decides, and not that hydra has shortened its traceback.
            within = [match for match in within if SHORTENED not in match.sign]
        one = _failure(catalogue, chain[0].began, within, raised=_root(chain))
        raised.append(msgspec.structs.replace(one, over=_last_line(chain[-1]), may_be_caught=caught))
    hints = [match for match in real if SHORTENED in match.sign and id(match) not in taken]
    for hint in hints:
        # However long the exception's message was, or what others wrote into it.
        before = (failure for failure in raised if failure.line.order < hint.line.order and not failure.raises(is_cut))
        if any(failure.line.stream == hint.line.stream for failure in before):
            taken.add(id(hint))
    ended: list[Failure] = []
    exits = endings(log)
    for exited in exits:
        told = [process_exit for process_exit in log.exited if same_process(process_exit, exited)]
        within = [
            match
            for match in real
            if id(match) not in taken and any(_is_about(match.line, process_exit, log.exited) for process_exit in told)
        ]
        taken.update(map(id, within))
        within = with_early_end(with_signal(within, exited, exits, catalogue), exited, log, catalogue)
        ended.append(_failure(catalogue, exited.line, within, exited=exited))
    alone = (match for match in real if id(match) not in taken)
    said = [
        _failure(catalogue, matches[0].line, matches)
        for matches in grouped(alone, lambda match: (match.line.file, match.line.number)).values()
        if not all(_was_skipped(match, log) for match in matches)
    ]
    # Hydra's last line only says that something else did.
    said = [
        failure for failure in said if any(SHORTENED not in sign.sign for sign in failure.signs) or not failure.signs
    ] or ([] if raised else said)
    own = [failure for failure in raised if not failure.raises(is_of_launcher)]
    words = SpokenWords(own + [failure for failure in said if NAMED.match(failure.line.text)], said, ended)
    ended = [
        msgspec.structs.replace(failure, explained=any(rule(failure.exited, words) for rule in EXPLANATIONS))
        for failure in ended
    ]
    return sorted([*raised, *ended, *said], key=lambda failure: failure.line.order)


def _was_skipped(seen: SignMatch, log: Log) -> bool:
    """Whether the script says so, or right behind it that it leaves that batch out, and it isn't what its rank says last."""
    if seen.role is SignRole.EFFECT or not any(_SKIPS.search(line.text) for line in (seen.line, *seen.after)):
        return False
    last = next((last_words.line for last_words in reversed(log.last) if last_words.rank == seen.line.rank), None)
    return last is not None and last.order > seen.line.order and seen.sign not in last.text


def _failure(
    catalogue: Catalogue,
    began: LogLine,
    within: Sequence[SignMatch],
    raised: LoggedException | None = None,
    exited: ProcessExit | None = None,
) -> Failure:
    line = raised.line if raised else began
    signs = tuple(match for match in within if match.role in (SignRole.NAMES, SignRole.HINTS))
    slugs = {sign.slug for sign in signs}
    topics = (topic for topic in (LogTopic.STOPPED, LogTopic.MISTAKE) if slugs == {catalogue.slug_for(topic)})
    return Failure(
        line=line,
        began=began,
        over=line,
        raised=raised,
        exited=exited,
        signs=signs,
        effects=tuple(match for match in within if match.role is SignRole.EFFECT),
        topic=next(topics, None),
    )


def _chains(raised: Iterable[LoggedException]) -> Iterable[tuple[list[LoggedException], int]]:
    """Group exceptions with those raised while they were handled; with the line where the next group begins."""
    streams: dict[tuple[object, ...], list[list[LoggedException]]] = {}
    for exception in sorted(raised, key=lambda exception: exception.line.order):
        chains = streams.setdefault(exception.line.stream, [])
        if chains and (chains[-1][-1].chained or is_passed_on(chains[-1][-1], exception)):
            chains[-1].append(exception)
        else:
            chains.append([exception])
    for chains in streams.values():
        ends = [after[0].began.number for _, after in pairwise(chains)]
        yield from zip(chains, [*ends, 1 << 62], strict=True)


def _root(chain: Sequence[LoggedException]) -> LoggedException:
    """Pick the first that says something, or the worker's own; a launcher says by the last what it could not do."""
    if len(chain) > 1 and is_within_launcher(chain[0]) and not is_of_launcher(chain[-1]):
        return chain[-1]
    if len(chain) > 1 and (is_told_better_by(*chain[:2]) or (says_nothing(chain[0]) and not is_cut(chain[1]))):
        return _root(chain[1:])
    return next(
        (
            one
            for before, one in pairwise(chain)
            if is_passed_on(before, one) and not (is_cut(one) and is_mistake(before))
        ),
        chain[0],
    )


def passed_over(raised: Iterable[LoggedException]) -> set[int]:
    """The lines of exceptions of which another one of their chain tells more."""
    return {exception.line.order for chain, _ in _chains(raised) for exception in chain[: chain.index(_root(chain))]}


def _is_within(seen: SignMatch, chain: Sequence[LoggedException], until: int) -> bool:
    """Whether words of the same stream stand in a traceback, or in the message behind it."""
    began, last = chain[0].began, chain[-1].line
    # A traceback may begin within a line that wasn't ended: what that says is of the one before.
    first = began.number + (seen.line.text != began.text and began.text.rstrip(": ") == _HEADER)
    long = seen.role is SignRole.NAMES and last.text.endswith(":")
    reach = last.number + (MAX_LINES_OF_CODE if long else MAX_LINES_OF_MESSAGE)
    if first <= seen.line.number <= min(reach, until - (until != last.number)):
        return True
    # Of a sign that a rank says again, only the first place is known.
    return seen.times > 1 and seen.line.number < began.number and any(seen.sign in raised.message for raised in chain)


def _is_behind_rows(seen: SignMatch, chain: Sequence[LoggedException], exits: Sequence[ProcessExit]) -> bool:
    """Whether a line behind a launcher's exception stands in, or below, the table of the ranks that ended: that speaks of them."""
    return is_of_launcher(chain[-1]) and _tells_between(exits, chain[-1].line, seen.line)


def _is_about(line: LogLine, exited: ProcessExit, others: Sequence[ProcessExit]) -> bool:
    """Whether a line stands in the launcher's words on the end of that process."""
    near = line.file == exited.line.file and 0 <= line.number - exited.line.number <= MAX_LINES_ABOUT_EXIT
    # A progress bar leaves its line open, and the launcher writes behind what it showed before.
    within = line.number > exited.line.number or line.text == exited.line.text
    return near and within and not _tells_between(others, exited.line, line)


def _tells_between(exits: Sequence[ProcessExit], after: LogLine, until: LogLine) -> bool:
    """Whether a launcher tells of an end behind the one line, and not behind the other."""
    return any(
        process_exit.line.file == after.file and after.number < process_exit.line.number <= until.number
        for process_exit in exits
    )


class SpokenWords(NamedTuple):
    """The words beside an end. own: exceptions of ranks. said: words by themselves. ended: all ends."""

    own: Sequence[Failure]
    said: Sequence[Failure]
    ended: Sequence[Failure]

    @property
    def lost(self) -> list[Failure]:
        """What tells that another rank fell."""
        return [failure for failure in self.said if failure.effects]


def _speaks_itself(exited: ProcessExit, words: SpokenWords) -> bool:
    return any(is_of(failure.line, exited) for failure in (*words.own, *words.lost))


def _may_be_of(exited: ProcessExit, words: SpokenWords) -> bool:
    """Whether a rank whose own end isn't told raised something, and this end is told without its rank."""
    others = [end.exited for end in words.ended if end.exited and end.exited is not exited]
    ranks = [failure for failure in words.own if failure.line.rank is not None]
    return exited.rank is None and any(not any(is_of(rank.line, other) for other in others) for rank in ranks)


def _is_aborted_for_a_loss(exited: ProcessExit, words: SpokenWords) -> bool:
    """Whether a library that lost a peer may have aborted its process; without labels nobody knows whose words those are."""
    lost = [failure for failure in (*words.own, *words.said) if failure.effects]
    return signal_of(exited) == ABORT and any(None in (failure.rank, exited.rank) for failure in lost)


def _is_not_heard(exited: ProcessExit, words: SpokenWords) -> bool:
    """Whether a script that ended itself may have said why elsewhere: nobody's words are in this log."""
    return not signal_of(exited) and not (words.own or words.lost)


def _is_among_unlabelled(exited: ProcessExit, words: SpokenWords) -> bool:
    """Whether a script that ended itself may have raised what bears no label."""
    nobody = [failure for failure in words.own if failure.line.rank is None and failure.line.local_rank is None]
    codes = [end for end in words.ended if end.exited and not signal_of(end.exited)]
    doubt = len(nobody) >= len(codes) or not all(failure.is_effect for failure in nobody) or not exited.first
    return bool(nobody) and not signal_of(exited) and doubt


EXPLANATIONS: Final = (
    LogRule("speaks-itself", "apex-arch-missing/near-miss-torch-itself.log", _speaks_itself),
    LogRule("rank-without-end", "nccl-version-mismatch/sick-torchrun-under-srun.log", _may_be_of),
    LogRule("aborted-for-a-loss", "checkpoint-save-timeout/sick-deepspeed-consolidating.log", _is_aborted_for_a_loss),
    LogRule("not-heard", "container-lost-gpu/sick-nvidia-smi.log", _is_not_heard),
    LogRule("among-unlabelled", "container-network-isolated/near-miss-docker0.log", _is_among_unlabelled),
)
"""By what a rank itself says why it ended, or it can't be known that it didn't."""


def is_of_process(line: LogLine, exited: ProcessExit) -> bool:
    """Whether it is a line of NCCL's, of the process that a launcher tells the end of."""
    process = process_of(line.text)
    return process is not None and exited.pid == process[1] and exited.host in ("", process[0])


def is_of(line: LogLine, exited: ProcessExit) -> bool:
    """Whether a line is of the rank that a launcher tells the end of."""
    if line.rank is not None and exited.rank is not None:
        return line.rank == exited.rank
    if line.local_rank is not None and exited.local_rank is not None:
        return line.local_rank == exited.local_rank and (not line.host or not exited.host or line.host == exited.host)
    if is_of_process(line, exited):
        return True
    # On the first node both numbers are the same.
    same = line.host == exited.line.host or not line.host or not exited.line.host
    return same and line.rank is not None and exited.rank is None and line.rank == exited.local_rank
