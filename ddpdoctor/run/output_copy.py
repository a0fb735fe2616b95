"""Puts the copy of a run's output together as one text: whole lines, and a mark where something was left out."""

from __future__ import annotations

import os
from typing import Final

HEAD_BYTES: Final = 2 << 20
TAIL_BYTES: Final = 14 << 20
"""That are kept in memory of the beginning and of the end."""
FILE_TAIL_BYTES: Final = 62 << 20
"""Bytes of output that is in a file anyway: more of it is read."""
MAX_LINE_BYTES: Final = 1 << 16
"""For which the end of a line is waited for, where two streams go into one copy."""


MARK: Final = b"[ddpdoctor run: "


def mark(left_out: int) -> bytes:
    """The line that stands for what was left out."""
    return MARK + b"%d bytes left out here]\n" % left_out


def join_copy(head: bytes, left_out: int, tail: bytes) -> bytes:
    """Join the beginning and the end of an output. Where something was left out, the lines beside that are whole."""
    if not left_out:
        return head + tail
    end = head.rfind(b"\n") + 1 or len(head)
    begin = tail.find(b"\n") + 1
    whole = head[:end] if head[:end].endswith(b"\n") else head[:end] + b"\n"
    return whole + mark(left_out + len(head) - end + begin) + tail[begin:]


def read_part(descriptor: int, start: int, end: int) -> bytes:
    """Read a file from start to end; of a long part its first and last bytes."""
    if end - start <= HEAD_BYTES + FILE_TAIL_BYTES:
        return _read(descriptor, start, end)
    head, tail = _read(descriptor, start, start + HEAD_BYTES), _read(descriptor, end - FILE_TAIL_BYTES, end)
    return join_copy(head, end - start - HEAD_BYTES - FILE_TAIL_BYTES, tail)


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
        """Add a piece of a stream. Returns the lines that are whole by now."""
        text = self._begun[stream] + data
        end = text.rfind(b"\n") + 1
        if len(text) - end > MAX_LINE_BYTES:
            end = len(text)
        self._begun[stream] = text[end:]
        return text[:end]

    def rest(self, stream: int) -> bytes:
        """Take the line that was begun and has no end."""
        begun, self._begun[stream] = self._begun[stream], b""
        return begun
