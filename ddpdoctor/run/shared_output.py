"""Memory that supervisor, relay and diagnosis share: the bytes of each stream that are on their way, what was seen, and the copy.

It belongs to no file: nothing can be full, nothing is left behind, and a process that is killed takes nothing with it.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

CHUNK_BYTES: Final = 1 << 16
"""Bytes of one stream that are under way at a time."""
MAX_STREAMS: Final = 2
_NUMBERS_BYTES: Final = 4096
_LAST_OUTPUT, _DRAINED, _TOTAL, _COPY_ENDED = range(4)
_FLOWS: Final = 16
_SIGNALS: Final = 64


class SharedOutput:
    """One anonymous mapping. Every number is written by one process only: the relay, unless another is said.

    head, tail: bytes of the output's beginning and of its end that are kept.
    """

    def __init__(self, head: int, tail: int) -> None:
        size = _NUMBERS_BYTES + MAX_STREAMS * CHUNK_BYTES + head + tail
        view = memoryview(mmap.mmap(-1, size))
        self._numbers = view[:_NUMBERS_BYTES].cast("Q")
        start = _NUMBERS_BYTES + MAX_STREAMS * CHUNK_BYTES
        self._buffers = [
            view[_NUMBERS_BYTES + i * CHUNK_BYTES : _NUMBERS_BYTES + (i + 1) * CHUNK_BYTES] for i in range(MAX_STREAMS)
        ]
        self._head = view[start : start + head]
        self._tail = view[start + head :]
        self.note_output()

    # --- the streams --------------------------------------------------------------------------------------------------------

    def buffer(self, stream: int) -> memoryview:
        """The memory for what was read from that stream and is on its way."""
        return self._buffers[stream]

    def under_way(self, stream: int) -> tuple[int, int]:
        """The range in its buffer whose bytes have yet to be written."""
        return divmod(self._numbers[_FLOWS + 2 * stream], 1 << 32)

    def set_under_way(self, stream: int, start: int, end: int) -> None:
        # One number, so that there is no moment at which one of the two is old.
        self._numbers[_FLOWS + 2 * stream] = start << 32 | end

    def is_broken(self, stream: int) -> bool:
        """Whether nothing more can be written where that stream goes."""
        return bool(self._numbers[_FLOWS + 2 * stream + 1])

    def set_broken(self, stream: int) -> None:
        self._numbers[_FLOWS + 2 * stream + 1] = 1

    # --- what was seen ------------------------------------------------------------------------------------------------------

    def note_output(self) -> None:
        """Note that there was output just now."""
        self._numbers[_LAST_OUTPUT] = time.monotonic_ns()

    @property
    def last_output(self) -> float:
        """The moment of the last output, in seconds of the monotonic clock."""
        return float(self._numbers[_LAST_OUTPUT]) / 1e9

    @property
    def is_drained(self) -> bool:
        """Whether nothing was left to be read after the command had ended."""
        return bool(self._numbers[_DRAINED])

    def set_drained(self) -> None:
        self._numbers[_DRAINED] = 1

    def count_signal(self, number: int) -> None:
        """Note that the relay, too, has received that signal."""
        self._numbers[_SIGNALS + number] += 1

    def signal_count(self, number: int) -> int:
        """The number of times that the relay has received that signal."""
        return self._numbers[_SIGNALS + number]

    # --- the copy -----------------------------------------------------------------------------------------------------------

    def keep(self, data: bytes | memoryview) -> None:
        """Add to the copy: to its head until that is full, then to its tail, over the oldest there."""
        if self._numbers[_COPY_ENDED]:
            return
        data = memoryview(data)
        total = self._numbers[_TOTAL]
        first = data[: max(0, len(self._head) - total)]
        self._head[total : total + len(first)] = first
        total += len(first)
        rest = data[len(first) :]
        skipped = max(0, len(rest) - len(self._tail))
        total += skipped
        rest = rest[skipped:]
        at = (total - len(self._head)) % len(self._tail) if rest else 0
        before_the_end = rest[: len(self._tail) - at]
        self._tail[at : at + len(before_the_end)] = before_the_end
        again = rest[len(before_the_end) :]
        self._tail[: len(again)] = again
        self._numbers[_TOTAL] = total + len(rest)

    def end_copy(self) -> None:
        """Leave the copy as it is: called by the supervisor, once the command has ended."""
        self._numbers[_COPY_ENDED] = 1

    def copy(self) -> tuple[bytes, int, bytes]:
        """The copy: its head, the number of bytes that were left out behind it, and its tail."""
        total = self._numbers[_TOTAL]
        behind = max(0, total - len(self._head))
        head = bytes(self._head[: min(total, len(self._head))])
        if behind <= len(self._tail):
            return head, 0, bytes(self._tail[:behind])
        at = behind % len(self._tail)
        return head, behind - len(self._tail), bytes(self._tail[at:]) + bytes(self._tail[:at])
