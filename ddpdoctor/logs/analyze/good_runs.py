"""Compares a run with runs of the same command that ended well: what is new in it, what is missing, where it stops. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.redaction import redact_text
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogLine, Noise
from ddpdoctor.logs.analyze.endings import endings, says_complete
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.match.shape_tally import ShapeCount, ShapeTally

MAX_TOLD: Final = 20
"""Lines that are told of each kind of difference."""
CLEARLY_FEWER: Final = 0.95
"""Times as often as in each good run, below which lines stop earlier: where two ranks write at once, some are put into one."""
FAR_MORE_OFTEN: Final = 10
"""Times as often as in any good run, from which on a message is not that of a good run any more."""
LINES_BEFORE_EXIT: Final = 8
LINES_OF_EXIT: Final = 12
"""Lines before and behind the first of a launcher's words on a process that may be about it."""
WHY_KNOWN: Final = "lines of this kind stand in runs that ended well, too ({names}): it is not why this one failed"
_NAMED: Final = (RunOutcome.ILLNESS, RunOutcome.USER_ERROR, RunOutcome.STOPPED)
_SOUNDS_BAD: Final = compile_lazily(
    r"(?i)(?<![A-Za-z])(?:errors?|fail(?:ed|ure|ures|s|ing)?|fatal|panic|exception|abort(?:ed|ing)?|kill(?:ed|ing)?|crash(?:ed)?"
    r"|lost|unreachable|refused|denied|time(?:d )?out|unable|cannot|can't|could not|couldn't|invalid|corrupt(?:ed)?|mismatch(?:ed)?"
    r"|nan|inf|degraded|giv(?:es|ing) up|gave up|stall(?:ed)?|hung|stuck|critical|warn(?:ing)?|dropped)(?![A-Za-z])"
    r"|[A-Za-z](?:Error|Exception)(?![A-Za-z])"
)


class GoodShape(msgspec.Struct, frozen=True):
    """A kind of line in a run that ended well. file, number, text: of its first line, without secrets."""

    times: int
    even: bool
    closes: bool
    order: int
    number: int
    file: str
    text: str


class GoodRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended well. shapes: by their marks. signs: of illnesses that it shows all the same. whole: no kind was left out."""

    name: str
    shapes: dict[int, GoodShape]
    signs: frozenset[str]
    whole: bool


class StoppedLine(msgspec.Struct, frozen=True, kw_only=True):
    """The last of lines that recur evenly, and end earlier here. good_times: how often they stand in each good run at least."""

    line: LogLine
    times: int
    good_times: int


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run beside good ones.

    Args:
        good: names of the runs that it was compared with.
        refused: name of each other run, and why it isn't taken for a good one.
        new: the first line of each kind that stands in no good run, and that nothing else in the report accounts for: those that
            speak of an error, else the last ones.
        new_kinds: all kinds that are in no good run.
        missing: lines of every good run that are not in this one, in their order.
        stopped: those that recur evenly in every good run, and less often here.
        alike_until: the latest line of those that recur evenly in every good run.
        ends_early: whether it stops before what every good run goes on with, or ends with.
        whole: whether all kinds of lines were compared.
    """

    good: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    new: tuple[LogLine, ...] = ()
    new_kinds: int = 0
    missing: tuple[GoodShape, ...] = ()
    stopped: tuple[StoppedLine, ...] = ()
    alike_until: LogLine | None = None
    ends_early: bool = False
    whole: bool = True

    @property
    def new_errors(self) -> tuple[LogLine, ...]:
        """The new lines that speak of an error."""
        return tuple(line for line in self.new if sounds_bad(line.text))


def sounds_bad(text: str) -> bool:
    """Whether a line speaks of something bad, in any programme's words: that alone proves nothing."""
    return bool(_SOUNDS_BAD.search(text))


# --- runs that ended well -----------------------------------------------------------------------------------------------


def good_run(name: str, log: Log, tally: ShapeTally) -> GoodRun:
    """Keep of a run that ended well what others are compared with."""
    shapes = {
        mark: GoodShape(
            times=shape.times,
            even=tally.is_even(shape),
            closes=shape.closes,
            order=shape.first.order,
            number=shape.first.number,
            file=log.files[shape.first.file].name,
            text=redact_text(shape.first.text),
        )
        for mark, shape in tally.shapes.items()
    }
    signs = frozenset(sighting.sign for sighting in log.sightings)
    return GoodRun(name=name, shapes=shapes, signs=signs, whole=not tally.left_out)


def without_got_over(log: Log, tally: ShapeTally) -> Log:
    """Drop the signs of illnesses behind which the run went on as before."""
    last = [sighting for sighting in log.sightings if not tally.goes_on_behind(sighting.line.order)]
    return msgspec.structs.replace(log, sightings=tuple(last))


def ended_well(log: Log, verdict: LogVerdict) -> bool:
    """Whether nothing in a log says that its run failed. A mere sign of an illness doesn't, if the run came to its end."""
    if verdict.ended_well or verdict.outcome is RunOutcome.NOTHING:
        return True
    if verdict.raised or verdict.exited or endings(log):
        return False
    return says_complete(max((words.line for words in log.last), key=lambda line: line.order, default=None))


class GoodRuns:
    """Some runs that ended well.

    Args:
        runs: at least one.
    """

    def __init__(self, runs: Sequence[GoodRun]) -> None:
        self.runs = runs
        self.kinds: dict[int, list[GoodShape]] = {}
        """By its mark each kind of lines that any run has, as the runs have it, in their order."""
        for mark, shape in (item for run in runs for item in run.shapes.items()):
            self.kinds.setdefault(mark, []).append(shape)
        self.in_every = {mark: shapes for mark, shapes in self.kinds.items() if len(shapes) == len(runs)}
        self.even = frozenset(mark for mark, shapes in self.in_every.items() if all(shape.even for shape in shapes))
        """Marks of those that recur evenly in each run."""

    def most(self, mark: int) -> int:
        """Tell how often lines of a kind stand in any of them at most; 0: in none."""
        return max((shape.times for shape in self.kinds.get(mark, ())), default=0)


# --- the run at hand ------------------------------------------------------------------------------------------------------


def beside_good_runs(
    log: Log, tally: ShapeTally, good: GoodRuns, catalogue: Catalogue, refused: tuple[tuple[str, str], ...] = ()
) -> tuple[Log, RunComparison]:
    """Compare a run with good ones; return its log, in which what stands in those as well is noise, and what differs.

    Args:
        log: of the run.
        tally: the kinds of its lines, those watched that recur evenly in good runs.
        good: the good runs.
        catalogue: the checks to judge it by.
        refused: name of each log that was to be a good one and isn't, and why.
    """
    # An exception that a good run got over may end another one, where nothing else does.
    strict = _without_known(log, tally, good, exceptions=True)
    verdict = verdict_of(strict, catalogue)
    shown = verdict.raised is not None or any(suspect.sightings for suspect in verdict.suspects)
    kept = strict if shown and verdict.outcome in _NAMED else _without_known(log, tally, good, exceptions=False)
    return kept, msgspec.structs.replace(_comparison(kept, tally, good), refused=refused)


def _without_known(log: Log, tally: ShapeTally, good: GoodRuns, *, exceptions: bool) -> Log:
    """The log without what stands in good runs as well; exceptions stay in it unless asked for."""
    signs = {sign for run in good.runs for sign in run.signs}
    why = WHY_KNOWN.format(names=", ".join(run.name for run in good.runs))

    def is_known(line: LogLine) -> bool:
        kind = tally.kind_of(line.text)
        return kind is not None and kind.times <= FAR_MORE_OFTEN * good.most(kind.mark)

    noise: dict[str, Noise] = {}
    new = []
    for sighting in log.sightings:
        # The same words with another figure may mean another thing.
        if sighting.sign in signs and is_known(sighting.line):
            noise.setdefault(sighting.sign, Noise(sighting.line.text, why, sighting.times, sighting.line))
        else:
            new.append(sighting)
    return msgspec.structs.replace(
        log,
        sightings=tuple(new),
        noise=(*log.noise, *noise.values()),
        errors=tuple(error for error in log.errors if not is_known(error)),
        raised=tuple(raised for raised in log.raised if not (exceptions and is_known(raised.line))),
    )


def _comparison(log: Log, tally: ShapeTally, good: GoodRuns) -> RunComparison:
    here = tally.shapes
    new = sorted((shape for mark, shape in here.items() if mark not in good.kinds), key=lambda shape: shape.first.order)
    accounted = _Accounted(log)
    untold = [shape.first for shape in new if shape.first not in accounted]
    bad = [line for line in untold if sounds_bad(line.text)]
    absent = [shapes[0] for mark, shapes in good.in_every.items() if mark not in here]
    # One that stands in a single run once, and not at its end, may be chance.
    missing = [shape for shape in absent if len(good.runs) > 1 or shape.times > 1 or shape.closes]
    missing.sort(key=lambda shape: shape.order)
    stopped = _stopped(here, good)
    closing = [mark for mark, shapes in good.in_every.items() if all(shape.closes for shape in shapes)]
    whole = all(run.whole for run in good.runs) and not tally.left_out
    return RunComparison(
        good=tuple(run.name for run in good.runs),
        new=tuple(map(_redacted, bad[:MAX_TOLD] if bad else untold[-MAX_TOLD:])),
        new_kinds=len(new),
        missing=() if tally.left_out else tuple(missing[:MAX_TOLD]),
        stopped=stopped[:MAX_TOLD],
        alike_until=max(
            (_redacted(shape.last) for shape in here.values() if shape.last),
            key=lambda line: line.order,
            default=None,
        ),
        ends_early=bool(stopped) and not any(mark in here for mark in closing),
        whole=whole,
    )


def _stopped(here: dict[int, ShapeCount], good: GoodRuns) -> tuple[StoppedLine, ...]:
    """The most frequent first."""
    least = {mark: min(shape.times for shape in good.in_every[mark]) for mark in good.even}
    found = [
        StoppedLine(line=_redacted(shape.last), times=shape.times, good_times=least[mark])
        for mark in good.even
        if (shape := here.get(mark)) and shape.last and shape.times < CLEARLY_FEWER * least[mark]
    ]
    return tuple(sorted(found, key=lambda stopped: -stopped.good_times))


def _redacted(line: LogLine) -> LogLine:
    return msgspec.structs.replace(line, text=redact_text(line.text))


class _Accounted:
    """The lines that the report tells of anyway: of signs, tracebacks, launchers' words, and messages of healthy runs."""

    def __init__(self, log: Log) -> None:
        self._healthy = [noise.text for noise in log.noise]
        spans: list[tuple[object, int, int]] = [
            *((sighting.line.stream, sighting.line.order, sighting.line.order) for sighting in log.sightings),
            *((raised.line.stream, raised.began.order, raised.line.order + raised.below) for raised in log.raised),
        ]
        for line in (process_exit.line for process_exit in log.exited):
            # Its words on one rank stand among those on others.
            spans.append((line.file, line.order - LINES_BEFORE_EXIT, line.order + LINES_OF_EXIT))
        self._spans = grouped(sorted(spans, key=_begin), lambda span: span[0])

    def __contains__(self, line: LogLine) -> bool:
        return any(self._holds(key, line.order) for key in (line.stream, line.file)) or any(
            text in line.text for text in self._healthy
        )

    def _holds(self, key: object, order: int) -> bool:
        spans = self._spans.get(key, [])
        at = bisect_right(spans, order, key=_begin) - 1
        return at >= 0 and spans[at][2] >= order


def _begin(span: tuple[object, int, int]) -> int:
    return span[1]
