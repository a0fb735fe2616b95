"""The answer of recognition, in the words of kinds.json, and the first look at a file from which it is decided."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec

from ddpdoctor.base.regular_files import open_regular
from ddpdoctor.base.tables import read_table
from ddpdoctor.base.text import capital, clip, masked
from ddpdoctor.checkpoints.formats.byte_source import read_exactly
from ddpdoctor.facts.remedies import Remedy, commands_of

HEAD_BYTES = 4096
"""At the front of a file, which are looked at first."""
BUSY = "busy"
"""The kind of a file that somebody is changing at this moment: a little later it has another."""


class Recognised(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to what a file or folder is.

    kind: "zip", "legacy" and "torchscript" are what we rewrite; any other names what it is.
    called: the kind in plain words, with its article. problem: why nothing can be done with it, one sentence without
    a full stop; "" for what we rewrite and for what holds no device, so that there is nothing to rewrite.
    damaged: it is truncated or corrupt. advice, remedies: what to do. names: classes and functions that a pickle names
    which isn't one of those that we rewrite.
    """

    kind: str
    called: str
    problem: str = ""
    damaged: bool = False
    advice: str = ""
    remedies: tuple[Remedy, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        return commands_of(self.remedies)

    @property
    def rewritable(self) -> bool:
        """Whether it is one of the formats that we rewrite, as far as the first look tells."""
        return not self.problem and self.kind in ("zip", "legacy", "torchscript")


class _Sentences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of a kind in kinds.json. problem: None where it is only no checkpoint of torch."""

    called: str
    problem: str | None = None
    advice: str = ""
    damaged: bool = False


@cache
def _sentences() -> dict[str, _Sentences]:
    return read_table(__name__, "kinds.json", dict[str, _Sentences])


def recognised(key: str, *remedies: Remedy, **words: object) -> Recognised:
    """Say what a file or folder is, by an entry of kinds.json (the kind, and behind a slash which case of it) and the words for
    the braces in its sentences. remedies: what brings a checkpoint within reach."""
    sentences = _sentences()[key]
    called = sentences.called.format(**words)
    problem = not_torchs(called) if sentences.problem is None else sentences.problem.format(**words)
    return Recognised(
        kind=key.partition("/")[0],
        called=called,
        problem=problem,
        damaged=sentences.damaged,
        advice=sentences.advice.format(**words),
        remedies=remedies,
    )


def not_torchs(called: str) -> str:
    """The problem with what is only something else: "An ONNX model, not a checkpoint of torch"."""
    return f"{capital(called)}, not a checkpoint of torch"


class FileHead:
    """A regular file, opened for reading, and its first bytes. Reads by position, and less than asked where it ends."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it can't be read; NotRegularError for a pipe or device, also one put in the file's place since it
                was looked at.
        """
        self.path = path
        self.fd = open_regular(path)
        try:
            self.size = os.fstat(self.fd).st_size
            self.head = self.read(0, HEAD_BYTES)
        except OSError:
            os.close(self.fd)
            raise

    def read(self, offset: int, length: int) -> bytes:
        # A file's own numbers may be larger than the system takes.
        return read_exactly(self.fd, min(length, self.size - offset), offset)

    def __enter__(self) -> FileHead:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def mode_of(path: Path) -> int:
    """The mode of what a path leads to; 0 if that can't be told."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def printable(text: str | bytes, most: int = 80) -> str:
    """Text from a file as it may be shown: in one line, without control characters, at most so many characters."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return clip(masked(text[: 4 * most]), most)
