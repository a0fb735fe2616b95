"""What shells and the C library say of ends and errors in other languages, and the same in English, as everything else here reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from ddpdoctor.base.tables import read_table


class _Words(msgspec.Struct, frozen=True):
    """What `translations.json` holds.

    signals, errors: by what is said in English, the same in other languages. timeouts: of coreutils' timeout. dumped: that memory was dumped.
    """

    signals: dict[str, tuple[str, ...]]
    errors: dict[str, tuple[str, ...]]
    timeouts: tuple[str, ...]
    dumped: tuple[str, ...]


_WORDS: Final = read_table(__name__, "translations.json", _Words)
_TOO_COMMON: Final = ("Hangup", "Quit")
"""Their words stand in any text: alone they say nothing."""
_SIGNALS, _ERRORS = (
    {word: english for english, words in table.items() for word in words} for table in (_WORDS.signals, _WORDS.errors)
)
_LINES: Final = (" 行：", " 行: ", ": Zeile ", " : ligne ")
"""Of a script, where a shell is in it."""
LITERALS: Final = (
    *(word for word, english in (_SIGNALS | _ERRORS).items() if english not in _TOO_COMMON),
    *(word for word in _WORDS.dumped if not word.isascii() or "Speicher" in word),
    *_LINES,
    *(words.partition("{}")[0] for words in _WORDS.timeouts),
)
"""What a line in one of these languages is found by."""


def _any(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


_SIGNAL: Final = rf"(?P<signal>{_any(_SIGNALS)})"
_CORE: Final = rf"(?P<dumped>{_any(_WORDS.dumped)})"
_LINE: Final = re.compile(r"(?P<script>\S+?)\s?: (?:第 ?|行 ?|Zeile |ligne )?(?P<number>\d{1,9})(?: ?行)?\s?[:：] ?")
"""Where a shell is in a script, and the script's name: in front of the number or behind it stands the word for a line."""
_PROCESS: Final = re.compile(rf"\s*(?P<pid>\d{{1,9}}) {_SIGNAL}\s*(?:{_CORE}\s*)?(?=\S)")
_ALONE: Final = re.compile(rf"{_SIGNAL}\s*(?:{_CORE}\s*)?$")
_ERROR: Final = re.compile(rf"\s?[:：] ?(?P<error>{_any(_ERRORS)})\.?\s*$")
_TIMEOUT: Final = re.compile(
    "|".join(re.escape(words).replace(r"\{\}", r"(\w+)", 1).replace(r"\{\}", r"(.+)") for words in _WORDS.timeouts)
)


def in_english(text: str) -> str:
    """Return a line with what a shell, or the C library, says in it of a process's end or of an error in English; any other line as it is."""
    if found := _TIMEOUT.match(text):
        signal, command = (word for word in found.groups() if word)
        return f"timeout: sending signal {signal} to command {command}"
    if found := _LINE.match(text):
        rest = text[found.end() :]
        if process := _PROCESS.match(rest):
            dumped = "(core dumped) " if process["dumped"] else ""
            rest = f"{process['pid']} {_SIGNALS[process['signal']]:<23} {dumped}{rest[process.end() :]}"
        text = f"{found['script']}: line {found['number']}: {rest}"
    elif found := _ALONE.match(text):
        return f"{_SIGNALS[found['signal']]}{' (core dumped)' if found['dumped'] else ''}"
    if found := _ERROR.search(text):
        text = f"{text[: found.start()]}: {_ERRORS[found['error']]}"
    return text
