"""Others' text made fit to be shown: what a terminal obeys, or doesn't show, is named or masked. The one list of such characters."""

from __future__ import annotations

import re
from typing import Final, TextIO

UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
)
"""For a pattern's brackets: controls but tab and line feed (the second set of them, too, which a terminal may obey as it does an
escape), what turns the direction of writing round or breaks lines, tags, what has no width, what means something to one program
alone, and bytes that are no text."""

_ANY: Final = re.compile(f"[{UNSEEN}]")
_NEITHER_OURS: Final = re.compile(
    rf"(?!\r|\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x00-\x1f\x7f-\x9f]*\x1b\\|(?<=\S)\x1b\\)[{UNSEEN}]"
)
"""All of them but for what our own reports are made of: colours, the cursor's moves, and links with their end."""


def has_unseen(text: str) -> bool:
    return _ANY.search(text) is not None


def visible(text: str) -> str:
    r"""The text with what isn't seen written out: \x1b, \u202e. Tabs and line feeds stay."""
    return text if text.isprintable() else _ANY.sub(_named, text)


def masked(text: str) -> str:
    """The text with a question mark for each character that isn't seen. Tabs and line feeds stay."""
    return text if text.isprintable() else _ANY.sub("?", text)


def escaped_json(text: str) -> str:
    """The same JSON, with what isn't seen as escapes of JSON's own; it reads back as it was."""
    return _ANY.sub(_in_json, text)


def guard(stream: TextIO) -> None:
    """Let nothing through to a terminal that isn't seen, whoever forgot to make a text fit before."""
    write = stream.write

    def guarded(text: str) -> int:
        write(text if text.isprintable() else _NEITHER_OURS.sub(_named, text))
        return len(text)

    stream.write = guarded  # type: ignore[method-assign]


def _named(found: re.Match[str]) -> str:
    character = found[0]
    if "\udc80" <= character <= "\udcff":
        # A byte of a file's name that is no character of this locale's encoding.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def _in_json(found: re.Match[str]) -> str:
    pair = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[place : place + 4]}" for place in range(0, len(pair), 4))
