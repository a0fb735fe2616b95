"""Finds where progress bars begin in a file, and for how long the latest one has run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.log import LogLine

MAX_OF_BLOCK: Final = 64
"""Bars that begin in a block of which note is taken: its last ones."""
MAX_KINDS: Final = 1000
_BEGINS: Final = b" [00:00<?"
_BAR: Final = re.compile(r"/(?P<most>\d{1,12}) \[(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d\d):(?P<seconds>\d\d)<")
_MOST: Final = re.compile(rb"/(\d{1,12})$")
_MOVES_FILES: Final = re.compile(
    r"(?i)upload|download|fetching|saving|writing|processing files|new data|push|cop(?:y|ied)"
)
"""What is done behind a failure, too."""
_DIGITS: Final = 13
"""Bytes before a bar's times in which it says how much there is to do."""


class ProgressBars:
    """The bars of tqdm in one file, told apart by how much they have to do."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}
        """The line at which one with so much to do began last."""

    def seek(self, text: bytes, start: int, number: int) -> None:
        """Look for bars that begin in a block of whole lines from there on, whose first line has that number."""
        found: list[int] = []
        at = len(text)
        while len(found) < MAX_OF_BLOCK and (at := text.rfind(_BEGINS, start, at)) >= 0:
            found.append(at)
        counted = start
        for at in reversed(found):
            number += text.count(b"\n", counted, at)
            counted = at
            most = _MOST.search(text[max(start, at - _DIGITS) : at])
            if most and (len(self._begun) < MAX_KINDS or int(most[1]) in self._begun):
                self._begun[int(most[1])] = number

    def ran_since(self, line: int, latest: Iterable[LogLine]) -> float:
        """Tell for how many seconds bars of work have run behind that line, by the latest lines of the file: one that began there, or one
        after the other, as for each epoch, and of the first of them, that may have begun before, only what it went on.

        Args:
            line: its number.
            latest: the last lines of the file.
        """
        ran: defaultdict[int, float] = defaultdict(float)
        shown: dict[int, tuple[float, str]] = {}
        for one in latest:
            if one.number <= line or _MOVES_FILES.search(one.text):
                continue
            for bar in _BAR.finditer(one.text):
                most, seconds, name = int(bar["most"]), _seconds(bar), one.text[: bar.start()].partition("|")[0]
                began = line < self._begun.get(most, 0) <= one.number
                before, its_name = shown.get(most, (0.0 if began else seconds, name))
                is_next = seconds < before or (seconds == before and name != its_name)
                ran[most] += seconds - (0.0 if is_next else before)
                shown[most] = seconds, name
        return max(ran.values(), default=0.0)


def _seconds(bar: re.Match[str]) -> float:
    return 3600.0 * int(bar["hours"] or 0) + 60.0 * int(bar["minutes"]) + int(bar["seconds"])
