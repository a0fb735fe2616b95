"""Commands that somebody copies into a shell: what of others' words may stand in them, and how."""

from __future__ import annotations

import shlex
import unicodedata


def quoted(text: object) -> str:
    """Quote a path for a shell. One that begins with a dash would be taken for an option."""
    word = str(text)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)


def is_typeable(command: str) -> bool:
    """Whether a terminal shows the command as a shell reads it: one line, without controls, bytes that are no text, and
    characters that turn its direction or have no width. Quotes don't help there: what is pasted is typed."""
    return command.isprintable() or not any(
        unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for letter in command
    )
