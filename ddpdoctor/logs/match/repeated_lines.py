"""Keeps the cost of a message that is said a million times low: once a rank's lines with it bring nothing new, most are only counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ddpdoctor.logs.match.vocabulary import SoughtText

MAX_ENTRIES: Final = 20_000
STILL_READ: Final = 64
"""Of so many routine lines one is read all the same."""
_CLOCK: Final = re.compile(
    rb"(?:\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d[.,\dZ+:-]*\]?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)[ \t]*"
)
_RANKED: Final = re.compile(rb"\[rank\d{1,6}\]:|\[(?:[\w.@-]{0,80}[,@])?\d{1,9},\d{1,6}\]<(?:stderr|stdout|stddiag)>:")
"""Labels that tell the rank, whatever follows."""
_LABEL: Final = re.compile(
    rb" {0,6}(?:\[[^\]\s]{1,520}\](?:<std[a-z]{3,4}>)?:? ?|\d{1,6}: ?|[Rr](?:ANK|ank)[ =]\d{1,6} ?[|:] "
    rb"|\[[Rr](?:ANK|ank)[ =:] ?\d{1,6}\]:? |[A-Za-z][\w.-]{0,300}(?: +\| ?|: )|\d{1,3}(?:\.\d{1,3}){3}: "
    rb"|[0-9a-f]{8} (?:\[rank=\d{1,6}\] )?\|\| ?|\([A-Za-z_][\w.:-]{0,80} pid=\d{1,9}(?:, ip=[\w.:]{2,60})?\) ?"
    rb"|\([Rr](?:ANK|ank)[ =:]? ?\d{1,6}\):? |[\w.-]{1,80} [\w./@-]{1,80}\[\d{1,9}\]: )"
)
"""What looks like a label, whether it is one or not: in doubt there are two keys for what is the same."""
_MAX_LABELS: Final = 5
_RANK: Final = b"Rank "
_INNER: Final = b"[rank"
"""torch's label, behind a logger's prefix or a line that wasn't ended."""
_RANKS_IN_TEXT: Final = 4
_NO_KEY: Final = b" "
_MAX_TEXT_BYTES: Final = 450
"""Bytes behind the labels in which a line may name its rank."""
_CLOCKS_BEGIN: Final = frozenset(b"0123456789[ADFJMNOS")
"""With a digit, a bracket or a month."""


class CountedLines(Protocol):
    """Something that counts how often it was said."""

    times: int


@dataclass
class RoutineEntry:
    """One text in the lines of one rank. patience: how many lines are read before the rest may be routine."""

    patience: int
    times: int = 0
    counted: Sequence[CountedLines] = ()
    """What the last line that was read has counted."""

    @property
    def is_routine(self) -> bool:
        return self.times > self.patience and self.times % STILL_READ != 0

    def read(self, counted: Sequence[CountedLines]) -> None:
        """Take note that such a line was read, and has counted these."""
        self.times += 1
        self.counted = counted

    def count(self) -> None:
        """Count another such line, which isn't read."""
        self.times += 1
        for counter in self.counted:
            counter.times += 1


class Routine:
    """The texts of one file that may be routine."""

    def __init__(self, texts: Sequence[SoughtText]) -> None:
        self._texts = texts
        self._entries: dict[tuple[int, bytes], RoutineEntry] = {}

    def entry(self, text: int, key: bytes) -> RoutineEntry:
        """Return the entry of the text of that number, in lines of that key."""
        found = self._entries.get((text, key))
        if found is None:
            if len(self._entries) >= MAX_ENTRIES:
                # Shared by ranks, an entry would hide what one of them says first.
                self._entries.clear()
            found = self._entries[text, key] = RoutineEntry(self._texts[text].patience)
        return found


def key_of(text: bytes, start: int, end: int) -> bytes:
    """Return a line's labels, the word behind them and the ranks that it names: what lines of one rank have in common."""
    labels = b""
    for _ in range(_MAX_LABELS):
        if start < end and text[start] in _CLOCKS_BEGIN and (found := _CLOCK.match(text, start, end)):
            start = found.end()
        elif found := _RANKED.match(text, start, end):
            return labels + found.group()
        elif found := _LABEL.match(text, start, end):
            labels += found.group()
            start = found.end()
        else:
            break
    space = text.find(b" ", start, min(end, start + 64))
    key = labels + text[start : space if space >= 0 else min(end, start + 24)]
    until = min(end, start + _MAX_TEXT_BYTES)
    inner = text.find(_INNER, start, until)
    if inner >= 0:
        key += text[inner : text.find(b"]", inner, inner + 12) + 1]
    rank = text.find(_RANK, start, until)
    for _ in range(_RANKS_IN_TEXT):
        if rank < 0:
            break
        key += text[rank : rank + 11]
        rank = text.find(_RANK, rank + 5, until)
    return key or _NO_KEY
