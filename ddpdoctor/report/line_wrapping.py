"""Breaks text into lines that fit on the screen: by the columns in which a terminal draws it, between words, and long words at their dots."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from ddpdoctor.base.text import visible
from ddpdoctor.report.document import StyledText, Words, pieces, plain

Line = tuple[StyledText, ...]

_WORD: Final = re.compile(r"\S+")
_PIECES: Final = re.compile(r"[^./]*[./]|[^./]+")
"""Pieces of a word that is longer than a line, a class's name or a path: it is broken behind its dots and slashes."""


def count_columns(text: str) -> int:
    """Count the columns in which a terminal draws a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def wrap_text(words: Words, width: int) -> Iterator[Line]:
    """Break a text into lines of at most so many columns; its line feeds stay."""
    spans = [StyledText(visible(text).replace("\t", " "), style) for text, style in pieces(words)]
    text = plain(tuple(spans))
    begins = 0
    for paragraph in text.split("\n"):
        for start, end in _breaks(paragraph, width):
            yield _cut(spans, begins + start, begins + end)
        begins += len(paragraph) + 1


def _breaks(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Find where the lines of a paragraph begin and end."""
    start = end = 0
    for first, last in _unbroken(text, width):
        if end and count_columns(text[start:last]) > width:
            yield start, end
            start = first
        end = last
    yield start, end


def _unbroken(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Find the pieces between which a line may be broken."""
    for word in _WORD.finditer(text):
        if count_columns(word[0]) <= width:
            yield word.span()
            continue
        for piece in _PIECES.finditer(text, *word.span()):
            yield from _chopped(text, *piece.span(), width)


def _chopped(text: str, start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    used = 0
    for place in range(start, end):
        columns = count_columns(text[place])
        if used + columns > width:
            yield start, place
            start, used = place, 0
        used += columns
    yield start, end


def _cut(spans: Iterable[StyledText], start: int, end: int) -> Line:
    """That part of a text in several styles."""
    line = []
    begins = 0
    for text, style in spans:
        if piece := text[max(0, start - begins) : max(0, end - begins)]:
            line.append(StyledText(piece, style))
        begins += len(text)
    return tuple(line)
