"""A terminal without rich, for the command whose start-up counts: styles, wrapping, a label beside its text."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping
from typing import TextIO

from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.base.text import clip_middle

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "1;31",
    "green": "1;32",
    "yellow": "1;33",
    "blue": "1;34",
    "cyan": "36",
}


_LONG = re.compile(r"\S{401,}")
"""A name of thousands of characters, which nobody reads."""

_PIECES = re.compile(r"[^./]*[./]|[^./]+")


class _Wrapper(textwrap.TextWrapper):
    """Breaks what is longer than a line at its dots and slashes: names of classes, paths."""

    def _split(self, text: str) -> list[str]:
        return [
            piece
            for chunk in super()._split(text)
            for piece in (_PIECES.findall(chunk) if len(chunk) > self.width else [chunk])
        ]


class Screen:
    """Writes to `file`. `width` in columns; `colour`: whether styles become escape codes."""

    def __init__(self, file: TextIO, width: int, *, colour: bool) -> None:
        self._file = file
        self._width = width
        self._colour = colour

    def styled(self, text: str, style: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and text and self._colour else text

    def line(self, text: str = "", style: str = "") -> None:
        """One line as it is, however long: it is there to be copied."""
        self._file.write(self.styled(text, style) + "\n")

    def labelled(self, label: str, text: str, margin: int, label_style: str = "dim", style: str = "") -> None:
        """The text, wrapped in its own column `margin` from the left, and the label before its first line."""
        wrapper = _Wrapper(max(20, self._width - margin), break_on_hyphens=False)
        lines = [
            line
            for paragraph in text.split("\n")
            for line in wrapper.wrap(_LONG.sub(lambda long: clip_middle(long[0], 200), paragraph)) or [""]
        ]
        start = self.styled(label, label_style) + " " * (margin - len(label))
        for line in lines:
            self._file.write((start + self.styled(line, style)).rstrip() + "\n")
            start = " " * margin


def screen_for(file: TextIO, environ: Mapping[str, str]) -> Screen:
    """As wide as the terminal; in colour on a terminal that has some, unless NO_COLOR or FORCE_COLOR says otherwise."""
    if environ.get("NO_COLOR"):
        colour = False
    elif environ.get("FORCE_COLOR"):
        colour = True
    else:
        colour = moves_its_cursor(file, environ)
    return Screen(file, shutil.get_terminal_size().columns, colour=colour)
