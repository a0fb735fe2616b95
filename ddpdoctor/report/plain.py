"""Text from facts made harmless to show: a stranger's snapshot must not steer the terminal."""

from __future__ import annotations

import unicodedata


def plain(text: str) -> str:
    """The text with control, format and surrogate characters (ANSI escapes, bidirectional overrides) made visible."""
    if text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def one_line(text: str) -> str:
    """`plain`, and on one line."""
    return " ".join(plain(text).split())


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    if "\udc80" <= character <= "\udcff":
        # A byte of a file's name that is no character of this locale's encoding.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
