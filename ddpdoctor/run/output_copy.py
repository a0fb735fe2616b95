"""The copy of a run's output as one text: whole lines, and a mark where something was left out."""

from __future__ import annotations

import os
from typing import BinaryIO, Final

HEAD: Final = 2 << 20
TAIL: Final = 14 << 20
"""Bytes that are kept in memory of the beginning and of the end."""
FILE_TAIL: Final = 62 << 20
"""Of output that is in a file anyway, more is read."""
LONGEST_LINE: Final = 1 << 16
"""Of two streams in one copy, that much is waited for until a line is whole."""


def mark(left_out: int) -> bytes:
    """The line that stands for what was left out."""
    return b"[ddpdoctor run: %d bytes left out here]\n" % left_out


def joined(head: bytes, left_out: int, tail: bytes) -> bytes:
    """Where something was left out, the lines beside that are whole."""
    if not left_out:
        return head + tail
    end = head.rfind(b"\n") + 1 or len(head)
    begin = tail.find(b"\n") + 1
    whole = head[:end] if head[:end].endswith(b"\n") else head[:end] + b"\n"
    return whole + mark(left_out + len(head) - end + begin) + tail[begin:]


def part_of(descriptor: int, start: int, end: int) -> bytes:
    """What stands in a file from start to end: its first and last bytes."""
    if end - start <= HEAD + FILE_TAIL:
        return _read(descriptor, start, end)
    head, tail = _read(descriptor, start, start + HEAD), _read(descriptor, end - FILE_TAIL, end)
    return joined(head, end - start - HEAD - FILE_TAIL, tail)


def _read(descriptor: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end and (piece := os.pread(descriptor, min(end - start, 1 << 20), start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


class WholeLines:
    """Puts several streams into one copy line by line, so that none breaks into another's line."""

    def __init__(self, streams: int) -> None:
        self._begun = [b""] * streams

    def add(self, stream: int, data: memoryview) -> bytes:
        """What of it can be kept now."""
        text = self._begun[stream] + data
        end = text.rfind(b"\n") + 1
        if len(text) - end > LONGEST_LINE:
            end = len(text)
        self._begun[stream] = text[end:]
        return text[:end]

    def rest(self, stream: int) -> bytes:
        """The line that was begun and has no end."""
        begun, self._begun[stream] = self._begun[stream], b""
        return begun


def save(data: bytes, file: BinaryIO) -> None:
    """Writes all of it, or raises OSError."""
    file.write(data)
    file.flush()
