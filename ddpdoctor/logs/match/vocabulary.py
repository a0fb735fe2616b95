"""The literal texts that a log is searched for, all in one automaton, and what each is wanted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import ahocorasick_rs

from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.logs.parse.tracebacks import HEADER


class Wanted(Enum):
    """The use of a literal text to the engine itself."""

    TRACEBACK = "traceback"
    FRAME = "frame"
    STACK = "stack"
    EXIT = "exit"
    FACT = "fact"
    ERROR = "error"
    FOREIGN = "foreign"

    # Enum's own is slow, and asked for in every line that is read.
    __hash__ = object.__hash__


_PATIENCE: Final = {
    Wanted.TRACEBACK: 500,
    Wanted.FRAME: 500,
    Wanted.STACK: 500,
    Wanted.EXIT: 2000,
    Wanted.FACT: 20,
    Wanted.ERROR: 300,
    Wanted.FOREIGN: 1000,
}


class VocabularySign(NamedTuple):
    """A sign and its illness. near: the place of its second literal among the texts, or -1."""

    number: int
    slug: str
    sign: LogSign
    pattern: re.Pattern[str] | None
    near: int


class Vocabulary:
    """All texts that a log is searched for. They are found wherever they stand, also within each other."""

    def __init__(
        self,
        signs: Iterable[tuple[str, LogSign]],
        harmless: Iterable[LogSign] = (),
        others: Iterable[tuple[str, Wanted]] = ((HEADER, Wanted.TRACEBACK),),
    ) -> None:
        self.texts: list[bytes] = []
        self.words: list[str] = []
        self.signs: list[list[VocabularySign]] = []
        self.harmless: list[LogSign | None] = []
        self.wanted: list[set[Wanted]] = []
        self._places: dict[bytes, int] = {}
        for number, (slug, sign) in enumerate(signs):
            near = self._place(sign.near) if sign.near else -1
            pattern = re.compile(sign.pattern) if sign.pattern else None
            self.signs[self._place(sign.text)].append(VocabularySign(number, slug, sign, pattern, near))
        for harmless_text in harmless:
            self.harmless[self._place(harmless_text.text)] = harmless_text
        for text, wanted in others:
            self.wanted[self._place(text)].add(wanted)
        self.nears = frozenset(
            vocabulary_sign.near for signs in self.signs for vocabulary_sign in signs if vocabulary_sign.near >= 0
        )
        self.patience = list(map(self._patience, range(len(self.texts))))

    def _patience(self, place: int) -> int:
        """Count the lines of a rank with that text that are read before the rest may be routine."""
        signs = self.signs[place]
        waits = place in self.nears or any(sign.near >= 0 for sign in signs)
        return max(
            1,
            300 * any(sign.pattern is not None for sign in signs),
            1000 * waits,
            *(_PATIENCE[wanted] for wanted in self.wanted[place]),
        )

    def _place(self, text: str) -> int:
        literal = text.encode()
        if literal not in self._places:
            self._places[literal] = len(self.texts)
            self.texts.append(literal)
            self.words.append(text)
            self.signs.append([])
            self.harmless.append(None)
            self.wanted.append(set())
        return self._places[literal]

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.texts), default=1)

    @cached_property
    def automaton(self) -> ahocorasick_rs.BytesAhoCorasick:
        return ahocorasick_rs.BytesAhoCorasick(self.texts, implementation=ahocorasick_rs.Implementation.DFA)

    def matches(self, text: memoryview) -> Sequence[tuple[int, int, int]]:
        """Find all texts that stand in it: (place among the texts, start, end), by end."""
        found: Sequence[tuple[int, int, int]] = self.automaton.find_matches_as_indexes(text, overlapping=True)
        return found
