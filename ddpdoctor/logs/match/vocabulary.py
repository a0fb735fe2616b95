"""The literal texts that a log is searched for, all in one automaton, and what each is wanted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import ahocorasick_rs

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.logs.parse.tracebacks import HEADER

LEFT_OF_A_TEXT = 24
"""Bytes of a sign's text by which it is known where a log breaks off within it."""


class Wanted(Enum):
    """The use of a literal text to the engine itself, and how many lines of a rank with it are read before the rest may be routine."""

    TRACEBACK = "traceback", 500
    FRAME = "frame", 500
    STACK = "stack", 500
    EXIT = "exit", 2000
    FACT = "fact", 20
    ERROR = "error", 300
    FOREIGN = "foreign", 1000

    # Enum's own is slow, and asked for in every line that is read.
    __hash__ = object.__hash__


class VocabularySign(NamedTuple):
    """A sign and its illness."""

    number: int
    slug: str
    sign: LogSign
    pattern: re.Pattern[str] | None


@dataclass
class SoughtText:
    """A literal text, and what it is wanted for."""

    text: str
    signs: list[VocabularySign] = field(default_factory=list)
    harmless: LogSign | None = None
    wanted: set[Wanted] = field(default_factory=set)
    is_near: bool = False
    """It makes a sign certain that stands near it."""

    @property
    def patience(self) -> int:
        """Count the lines of a rank with that text that are read before the rest may be routine."""
        waits = self.is_near or any(sign.sign.near for sign in self.signs)
        patterned = any(sign.pattern is not None for sign in self.signs)
        return max(1, 300 * patterned, 1000 * waits, *(wanted.value[1] for wanted in self.wanted))


class Vocabulary:
    """All texts that a log is searched for. They are found wherever they stand, also within each other."""

    def __init__(
        self,
        signs: Iterable[tuple[str, LogSign]],
        harmless: Iterable[LogSign] = (),
        others: Iterable[tuple[str, Wanted]] = ((HEADER, Wanted.TRACEBACK),),
    ) -> None:
        known: dict[str, SoughtText] = {}

        def sought(text: str) -> SoughtText:
            return known.setdefault(text, SoughtText(text))

        for number, (slug, sign) in enumerate(signs):
            if sign.near:
                sought(sign.near).is_near = True
            pattern = compile_lazily(sign.pattern) if sign.pattern else None
            sought(sign.text).signs.append(VocabularySign(number, slug, sign, pattern))
        for harmless_text in harmless:
            sought(harmless_text.text).harmless = harmless_text
        for text, wanted in others:
            sought(text).wanted.add(wanted)
        self.texts = list(known.values())

    @cached_property
    def longest(self) -> int:
        return max((len(sought.text.encode()) for sought in self.texts), default=1)

    @cached_property
    def automaton(self) -> ahocorasick_rs.BytesAhoCorasick:
        literals = [sought.text.encode() for sought in self.texts]
        return ahocorasick_rs.BytesAhoCorasick(literals, implementation=ahocorasick_rs.Implementation.DFA)

    def cut_off(self, text: bytes) -> tuple[int, int, int] | None:
        """Find the text of a sign in one of whose words what is there breaks off, as a log that was cut may.

        Only signs that ask for no more of their line than that text are looked for.
        """
        found: list[tuple[int, int, int]] = []
        for place, sought in enumerate(self.texts):
            literal = sought.text.encode()
            begin = text.rfind(literal[:LEFT_OF_A_TEXT]) if len(literal) > LEFT_OF_A_TEXT else -1
            alone = any(sign.pattern is None and not sign.sign.near for sign in sought.signs)
            left = len(text) - begin
            if begin >= 0 and alone and literal.startswith(text[begin:]) and literal[left - 1 : left + 1].isalpha():
                found.append((place, begin, len(text)))
        slugs = {frozenset(sign.slug for sign in self.texts[place].signs) for place, _, _ in found}
        return found[0] if len(slugs) == 1 else None

    def matches(self, text: memoryview) -> Sequence[tuple[int, int, int]]:
        """Find all texts that stand in it: (place among the texts, start, end), by end."""
        found: Sequence[tuple[int, int, int]] = self.automaton.find_matches_as_indexes(text, overlapping=True)
        return found
