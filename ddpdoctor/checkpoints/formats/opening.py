"""A checkpoint opened and read: its layout, and its pickles with what the symbolic machine made of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.checkpoints.errors import NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.layouts import Layout
from ddpdoctor.checkpoints.kinds.file_head import printable
from ddpdoctor.checkpoints.pickles.machine import Program, scan
from ddpdoctor.checkpoints.pickles.opcodes import OldProtocol


class FilePart(NamedTuple):
    """One of the file's pickles. name: data.pkl, constants.pkl."""

    name: str
    data: bytes
    program: Program


@contextmanager
def open_layout(path: Path, kind: str) -> Iterator[Layout]:
    """Open a file in the format that it was recognised as. CheckpointError is raised where it isn't, or is damaged.

    Raises:
        NotACheckpoint: that format isn't one that we rewrite.
    """
    with ByteSource(path) as source:
        if kind == "legacy":
            from ddpdoctor.checkpoints.formats.legacy import read_legacy

            yield read_legacy(source)
        elif kind in ("zip", "torchscript"):
            from ddpdoctor.checkpoints.formats.zip_archive import read_archive

            yield read_archive(source)
        else:
            raise NotACheckpoint(f"{path} is not a checkpoint that can be rewritten")


def read_parts(layout: Layout) -> list[FilePart]:
    """Read the pickles to the ground. CheckpointError is raised where that can't be.

    Raises:
        Refused: one is of an old protocol, or something follows it.
    """
    parts = []
    for name, data in layout.pickles().items():
        try:
            program = scan(data)
        except OldProtocol as old:
            raise Refused(*_judged(old, data)) from old
        if program.end != len(data):
            # Whatever stands there, torch doesn't read it and we can't judge it.
            raise Refused(f"{name} goes on for {len(data) - program.end:,} bytes after the end of its pickle")
        layout.check(program.storages, name)
        parts.append(FilePart(name, data, program))
    return parts


def _judged(old: OldProtocol, data: bytes) -> tuple[str, str]:
    """The refusal's text and advice, with a word on what is dangerous in it."""
    from ddpdoctor.checkpoints.pickle_globals import is_dangerous, meaning
    from ddpdoctor.checkpoints.pickles.named_globals import named_in
    from ddpdoctor.checkpoints.weights_only import DO_NOT_LOAD

    named = named_in(io.BytesIO(data))
    dangerous = [name for name in (*named.sure, *named.perhaps) if is_dangerous(name)]
    if dangerous:
        return f"{old.text}; it names {printable(dangerous[0])}, which {meaning(dangerous[0])[0]}", DO_NOT_LOAD
    return old.text, old.advice
