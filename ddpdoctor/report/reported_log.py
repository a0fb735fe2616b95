"""A log that was judged, as JSON tells it. All text is without secrets and the sequences that colour it."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpdoctor.facts.log import LogFile, LogFrame

OutcomeName = Literal["illness", "user-error", "stopped", "unrecognised", "effects-only", "nothing"]
HeldName = Literal["confirmed", "contradicted", "not-confirmed", "not-tested"]


class ReportedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log. number: from 1. rank: null where nothing tells. time: seconds since 1970, as if the log's clock were UTC
    where it has no zone; null where it has none."""

    file: str
    number: int
    text: str
    rank: int | None
    host: str
    time: float | None


class ReportedSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """An illness that the log speaks of. sure: the failure that came first was named by a sign that only this illness has. why: why it
    stands at this place in the order. lines: those that it rests on, each rank's first. held, held_words: what the facts of a host
    (--here, --snapshot) say of it; null and "" where none were asked."""

    slug: str
    sure: bool
    why: str
    lines: tuple[ReportedLine, ...]
    held: HeldName | None = None
    held_words: str = ""


class ReportedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of ranks that fell with another. sign: the text by which it was recognised; ranks: those that said it; times: in all."""

    sign: str
    ranks: tuple[int, ...]
    times: int
    first: ReportedLine


class ReportedNoise(msgspec.Struct, frozen=True, kw_only=True):
    """A message that healthy runs print, too, and why it is harmless."""

    text: str
    why: str
    times: int


class ReportedException(msgspec.Struct, frozen=True, kw_only=True):
    """With which the lead failed. exception: "" where the log ends within its traceback. calls: the last ones, innermost last.
    own: the innermost that is in nobody's library."""

    exception: str
    message: str
    calls: tuple[LogFrame, ...]
    own: LogFrame | None


class ReportedExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the lead's process, as its launcher says. exit_code: negative for a signal, null where that isn't said."""

    said_by: str
    exit_code: int | None
    error: str


class ReportedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Another attempt of a launcher that started the ranks again. attempt: from 0. lead: the line in which its failure shows itself first."""

    attempt: int
    outcome: OutcomeName
    lead: ReportedLine | None


class ReportedStop(msgspec.Struct, frozen=True, kw_only=True):
    """The last of lines that recur evenly in good runs, and less often here. good_times: how often in each of them at least."""

    line: ReportedLine
    times: int
    good_times: int


class ReportedMissing(msgspec.Struct, frozen=True, kw_only=True):
    """A line that stands in every good run, as in the first of them, and none like it in this run."""

    file: str
    number: int
    text: str


class ReportedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was to be a good one and isn't, and why."""

    name: str
    why: str


class ReportedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run beside good ones (--good). good: those that it was compared with. new: at most 20 lines of kinds that are in no good run and that
    nothing else in the report accounts for: those that speak of an error, else the last ones; new_kinds: all such kinds. alike_until:
    the latest line as good runs have them evenly. ends_early: it stops before what every good run goes on with. whole: false where
    there are more kinds of lines than are kept."""

    good: tuple[str, ...]
    refused: tuple[ReportedRefusal, ...]
    new: tuple[ReportedLine, ...]
    new_kinds: int
    missing: tuple[ReportedMissing, ...]
    stopped: tuple[ReportedStop, ...]
    alike_until: ReportedLine | None
    ends_early: bool
    whole: bool


class ReportedRankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says of which rank failed first. rank: null where it says that it can't be told. score: up to 10; of each rank they are
    added up, and the most points win."""

    words: str
    score: int
    rank: int | None


class ReportedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a log. lead: the line in which the failure shows itself first; rank, host, time: its own, null or "" where the log
    doesn't tell. suspects: at most three, the likeliest first; also: what else the log speaks of, and the failure doesn't come from.
    not_kept: further messages that were only counted. attempt: of a launcher that started the ranks again, the one that all this is on.
    comparison: with runs that ended well; null where none were named."""

    outcome: OutcomeName
    headline: str
    lead: ReportedLine | None
    rank: int | None
    host: str
    time: float | None
    exception: ReportedException | None
    exit: ReportedExit | None
    suspects: tuple[ReportedSuspect, ...]
    also: tuple[ReportedSuspect, ...]
    effects: tuple[ReportedEffect, ...]
    noise: tuple[ReportedNoise, ...]
    files: tuple[LogFile, ...]
    launcher: str
    world_size: int | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    not_kept: int
    rank_evidence: tuple[ReportedRankEvidence, ...] = ()
    attempt: int = 0
    other_attempts: tuple[ReportedAttempt, ...] = ()
    comparison: ReportedComparison | None = None
