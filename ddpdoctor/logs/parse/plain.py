"""Takes escape sequences out of the bytes of a log, and tells text from what is none."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)|[@-Z\\^_=>])"
)
_SPELLED_OUT: Final = re.compile(
    rb"(?:#033|\^\[|\\(?:x1[bB]|033|u001[bB])|\xe2\x90\x9b)\[[\d;]{0,24}[mK]|\[\d{1,3}(?:;\d{1,3}){0,6}m"
)
"""Colours whose escape somebody has written out, as rsyslog, cat -v and less do, or has lost, as a browser does."""
_RESET: Final = b"[0m"
"""Behind whatever is coloured."""
_BOLD: Final = re.compile(rb"^\*\*(?=[\w\[])([^*\n]{0,400}[^*\s])\*\*(?!\*)", re.MULTILINE)
"""Markdown's, by which whoever pasted a log marks what matters in it."""
_CONTROLS: Final = re.compile(rb"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")


def colourless(text: bytes) -> bytes:
    """The bytes without colours and other sequences of a terminal, and lines that begin in bold type as they were written."""
    text = _ESCAPES.sub(b"", text) if b"\x1b" in text else text
    # Going backwards takes Python a quarter of the time.
    text = _SPELLED_OUT.sub(b"", text) if text.rfind(_RESET) >= 0 else text
    return _BOLD.sub(rb"\1", text) if text.rfind(b"\n**") >= 0 or text.startswith(b"**") else text


def is_text(sample: bytes) -> bool:
    """Whether the beginning of a file looks like a log. NUL bytes alone don't speak against it: a log that was truncated while it
    was written begins with a hole of them."""
    letters = sample.replace(b"\0", b"")
    return len(_CONTROLS.findall(letters)) * 20 <= len(letters)
