"""Errors of the command line, in one line each: wrapped for who reads them at a terminal, and whole for a file or a pipe."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.terminal import terminal_is_ours

_UNBROKEN: Final = compile_lazily(
    r"(?:(?<=: )|^)(?:sudo \S+ )?ddpdoctor .+$|[^\s`]*`[^`]*`[^\s`]*|(?<!\S)'[^']+'(?=[\s.,;:)]|$)\S*|\S+"
)
"""A command that ends the line, or stands between backticks; a quoted path; a word."""


NO_MORE_THREADS: Final = (
    "it may start no more threads. The limit of processes (ulimit -u, pids.max of the container or job) or of "
    "memory (ulimit -v) is reached, and training would not start here either."
)


def lacks_threads(error: Exception) -> bool:
    """Whether that is how Python says that it may start no more threads."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def complain(text: str, file: TextIO | None = None) -> None:
    """Print the text on standard error, or into that file."""
    stream = file or sys.stderr
    width = _width(stream)
    print("\n".join(wrapped(line, width) for line in text.split("\n")) if width else text, file=stream)


def remark(text: str) -> None:
    """Say on standard error what somebody should know; in a program that calls us, to the logger `ddpdoctor`."""
    if terminal_is_ours():
        complain(text)
        return
    # Here and not above: the command line does without.
    import logging

    logger = logging.getLogger("ddpdoctor")
    if not logger.handlers:
        # Without any, Python itself would print it.
        logger.addHandler(logging.NullHandler())
    logger.warning(text)


def wrapped(line: str, width: int) -> str:
    """Break a line between words alone: a command or a path that is longer than the width stays whole, on a line of its own."""
    if len(line) <= width or line[:1].isspace():
        return line
    rows = [""]
    for found in _UNBROKEN.finditer(line):
        piece = found.group()
        if rows[-1] and len(rows[-1]) + 1 + len(piece) > width:
            rows.append(piece)
        else:
            rows[-1] = f"{rows[-1]} {piece}".lstrip(" ")
    return "\n".join(rows)


def _width(stream: TextIO) -> int:
    """Columns of the terminal that it is; 0 for anything else, or where it doesn't say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0
