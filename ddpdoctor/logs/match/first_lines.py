"""Finds where the first lines of a file come again, as those of each run do in a file to which several were written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.exceptions import NAMED
from ddpdoctor.logs.parse.tracebacks import HEADER

FIRST: Final = 20
"""Lines of a file among which those that are sought again are chosen."""
LETTERS: Final = 6
"""Of a line that isn't only drawn."""
AT_ONCE: Final = 6
"""Lines at a file's beginning, before a run may be over, among which one that comes again is a step's, or each rank's."""
MAX_SOUGHT: Final = 4
NEAR: Final = 10
"""Lines among which two of them make a beginning."""
MAX_HITS: Final = 1000
"""A line of whose words others have so many begins no run."""
_FIGURES: Final = re.compile(r"\d+")
_TELLING: Final = re.compile(r"[^\d]{10,200}")
"""A part of a line without figures, long enough to be found by."""


class _Sought(NamedTuple):
    shape: str
    part: bytes


class FirstLines:
    """The first lines of one file, and where they stood again."""

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: of the file's first lines, without labels and clocks."""
        sought: dict[str, _Sought] = {}
        at_once = takewhile(lambda text: not _is_of_traceback(text), texts[:AT_ONCE])
        shapes = Counter(_FIGURES.sub("", text) for text in at_once)
        routine = {shape for shape, times in shapes.items() if times > 1}
        for text in texts[:FIRST]:
            part = max(_TELLING.findall(text), key=len, default="").strip()
            if (
                len(part) >= 10
                and sum(map(str.isalpha, part)) >= LETTERS
                and not text[:1].isspace()
                and not _is_of_traceback(text)
            ):
                shape = _FIGURES.sub("", text)
                if shape not in routine:
                    sought.setdefault(shape, _Sought(shape, part.encode()))
        self.number = 0
        """Of the line that begins the file: what comes behind it is another beginning."""
        self._sought = list(sought.values())[:MAX_SOUGHT]
        self._hits: list[tuple[LogLine, int]] = []
        self._count = [0] * len(self._sought)

    def seek(self, text: bytes, start: int, number: int, line_at: Callable[[bytes, int], LogLine]) -> None:
        """Look for them in a block of whole lines from there on, whose first line has that number."""
        for place, one in enumerate(self._sought):
            at, counted, here = start, start, number
            while self._count[place] < MAX_HITS and (at := text.find(one.part, at)) >= 0:
                begin = text.rfind(b"\n", start, at) + 1 or start
                end = text.find(b"\n", at)
                at = len(text) if end < 0 else end
                here += text.count(b"\n", counted, begin)
                counted = begin
                line = line_at(text[begin:at].rstrip(b"\r"), here)
                self._count[place] += 1
                if _FIGURES.sub("", line.text) == one.shape:
                    if place == 0 and not self.number:
                        self.number = line.number
                    self._hits.append((line, place))

    def begun(self) -> Iterator[LogLine]:
        """The lines at which the file begins, and begins again, with the first of them and at least another one, in their order."""
        rare = sorted(
            ((line, place) for line, place in self._hits if self._count[place] < MAX_HITS),
            key=lambda hit: hit[0].number,
        )
        begun: LogLine | None = None
        for (line, place), (later, place_of_later) in pairwise(rare):
            goes_on = (
                (place == 0 or begun is not None) and place < place_of_later and later.number - line.number <= NEAR
            )
            if goes_on and begun is None:
                yield line
            begun = line if goes_on else None


def _is_of_traceback(text: str) -> bool:
    return text.startswith(HEADER) or bool(NAMED.match(text))
