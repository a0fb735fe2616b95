"""Source files as text and as trees: Python and notebooks, whatever is written in them; why a file can't be read, in a sentence."""

from __future__ import annotations

import ast
import io
import os
import re
import stat
import tokenize
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.ownership import who_misleads
from ddpdoctor.base.regular_files import NotRegularError, open_regular
from ddpdoctor.base.text import LONGEST_QUOTE, clip, human
from ddpdoctor.engine.redaction import redact_source

MAX_SOURCE_BYTES: Final = 2 << 20
"""A tree takes a hundred times as much memory as its text."""
MAX_NOTEBOOK_BYTES: Final = 64 << 20
"""With the pictures in it."""
NOTEBOOK: Final = ".ipynb"
REDACTED_CHARACTERS: Final = 1000
"""Of a line, from which secrets are taken out before its beginning is shown: a minified file is one line."""
STDIN_NAME: Final = "<stdin>"
"""By which standard input is shown."""

_NUL: Final = "not read: there is a NUL character in it"
_MAGIC: Final = compile_lazily(
    r"^([ \t]*)(?:(?:[%!?]|(?:\w{1,80} ?= ?)?[!%]\w)(?:.*\\\n)*.*|[\w.]{1,200}\?\??[ \t]*)$", re.MULTILINE
)
"""Lines of IPython's own in a cell: commands, also over several lines, and questions."""
_CELL_OF_PYTHON: Final = compile_lazily(r"\s*%%(?:time|timeit|capture|prun|memit)\b")
"""How a cell begins that is Python although IPython does something with it."""
_PYTHON_2: Final = compile_lazily(
    r"^[ \t]{0,60}(?:print [\"'\w]|exec [\"']|except \w{1,80} ?, ?\w{1,80} ?:|raise \w{1,80} ?,)", re.MULTILINE
)


class SourceText(NamedTuple):
    """A source as it is shown: its name, and its lines; of a notebook the cell of each line."""

    name: str
    lines: Sequence[str]
    cells: Sequence[tuple[int, int]] = ()
    """Of a notebook: each line's cell and line in it, from 1."""
    left_out: Sequence[tuple[str, str]] = ()
    """Of a notebook: the cells that are no Python, and so stop by themselves as they are run, and why."""

    def line(self, number: int) -> str:
        """The line of that number, from 1, without secrets and blanks at its ends; of a long one its beginning."""
        return without_secrets(self.lines[number - 1]) if 0 < number <= len(self.lines) else ""


def without_secrets(text: str, most: int = LONGEST_QUOTE) -> str:
    """A piece of source in one line of at most so many characters. Secrets are taken out of more than that: none is cut so that it isn't known."""
    return clip(redact_source(clip(text, REDACTED_CHARACTERS)), most)


class UnreadableSource(Exception):
    """A file of which nothing can be said, and why."""


def read_source(path: str | os.PathLike[str]) -> bytes:
    """Read a file that may be source.

    Raises:
        UnreadableSource: it can't be, or must not be.
    """
    most = MAX_NOTEBOOK_BYTES if Path(path).suffix == NOTEBOOK else MAX_SOURCE_BYTES
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            if foothold := who_misleads(file.fileno(), path):
                raise UnreadableSource(f"not read: it is not for everybody's eyes, and {foothold.words}")
            content = file.read(most + 1)
    except NotRegularError as error:
        raise UnreadableSource(not_regular(error.mode)) from error
    except (OSError, ValueError) as error:
        raise UnreadableSource((isinstance(error, OSError) and error.strerror) or str(error)) from error
    if len(content) > most:
        raise UnreadableSource(too_large(most))
    return content


def not_regular(mode: int) -> str:
    """Say what a file with that mode is, which is no regular one."""
    what = "a pipe; one is read by ddpdoctor lint -" if stat.S_ISFIFO(mode) else "no regular file"
    return f"not read: it is {what}"


def too_large(most: int) -> str:
    """Say that a source has more than so many bytes."""
    return f"not read: it is larger than {human(most)}"


def decode_source(content: bytes, name: str) -> SourceText:
    """Make text of a file's bytes, by the encoding that it names itself.

    Args:
        content: of the file.
        name: by which it is shown.

    Raises:
        UnreadableSource: it is no text, or no notebook.
    """
    if Path(name).suffix == NOTEBOOK or _looks_like_a_notebook(content):
        return _notebook(content, name)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise UnreadableSource(
            "not read: its bytes are not the text that its encoding says (UTF-8, if it names none)"
        ) from error
    return SourceText(name, text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def parse_source(source: SourceText) -> ast.Module:
    """Parse it by the grammar of the Python that runs here.

    Raises:
        UnreadableSource: it can't be, and why.
    """
    return _parse("\n".join(source.lines))


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableSource(_syntax(error, text)) from error
    except (RecursionError, MemoryError) as error:
        raise UnreadableSource("not read: it is nested too deeply") from error
    except ValueError as error:
        raise UnreadableSource(_NUL) from error


def _syntax(error: SyntaxError, text: str) -> str:
    if _PYTHON_2.search(text):
        return "not read: it is written in Python 2"
    if "null bytes" in str(error.msg):
        return _NUL
    if "nested" in str(error.msg):
        return "not read: it is nested too deeply"
    import platform

    where = f", line {error.lineno}" if error.lineno else ""
    return (
        f"not read: no syntax of Python {platform.python_version()}{where}: {clip(error.msg or 'invalid syntax', 80)}"
    )


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: str | list[str] = ""


class _Notebook(msgspec.Struct):
    cells: list[_Cell]


def _looks_like_a_notebook(content: bytes) -> bool:
    """Whether it is one by its text, as on standard input."""
    return content.lstrip().startswith(b"{") and b'"nbformat"' in content


def _notebook(content: bytes, name: str) -> SourceText:
    try:
        notebook = msgspec.json.decode(content, type=_Notebook)
    except msgspec.DecodeError as error:
        raise UnreadableSource("not read: it is no notebook of Jupyter's format 4") from error
    lines: list[str] = []
    cells: list[tuple[int, int]] = []
    left_out: list[tuple[str, str]] = []
    for number, cell in enumerate(notebook.cells, 1):
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        if cell.cell_type != "code" or (text.lstrip().startswith("%%") and not _CELL_OF_PYTHON.match(text)):
            continue
        python = _MAGIC.sub(lambda magic: f"{magic[1]}pass" + "\n" * magic[0].count("\n"), text)
        try:
            _parse(python)
        except UnreadableSource as problem:
            left_out.append((f"{name}:cell {number}", str(problem)))
            continue
        own = python.split("\n")
        lines += own
        cells += [(number, line) for line in range(1, len(own) + 1)]
    return SourceText(name, lines, cells, left_out)
