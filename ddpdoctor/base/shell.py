"""Commands that somebody copies into a shell: what of others' words may stand in them, and how."""

from __future__ import annotations

import os
import shlex

from ddpdoctor.base.text import has_unseen


def quoted(text: object) -> str:
    """Quote a path for a shell, and never for an option. What isn't seen is written as bytes, as bash understands."""
    word = str(text)
    path = f"./{word}" if word.startswith("-") else word
    if is_typeable(path):
        return shlex.quote(path)
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:
        # No file's name, but a text in one.
        data = path.encode(errors="replace")
    return f"$'{''.join(map(_escaped, data))}'"


def _escaped(byte: int) -> str:
    character = chr(byte)
    if character in "\\'":
        return f"\\{character}"
    return character if character.isascii() and character.isprintable() else f"\\x{byte:02x}"


def is_typeable(command: str) -> bool:
    """Whether a terminal shows the command as a shell reads it: one line, without controls, bytes that are no text, and
    characters that turn its direction or have no width. Quotes don't help there: what is pasted is typed."""
    return command.isprintable() or not (has_unseen(command) or "\n" in command or "\t" in command)
