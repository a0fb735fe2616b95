"""Collects the lines of NCCL's own diagnosis from what ranks print, as they come."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.text import masked
from ddpdoctor.knowledge.nccl_diagnosis import MARK

MAX_REPORT_BYTES: Final = 32 * 1024
MAX_LINE_BYTES: Final = 1000
"""Of a longer line the rest is left out."""

_MARK: Final = MARK.encode()


class NcclReport:
    """The report, however its text is cut into pieces."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._bytes = 0
        self._begun: dict[int, bytes] = {}
        """By rank: a line that has no end yet."""

    def add_output(self, rank: int, text: bytes) -> None:
        """Take in a piece of what a rank prints."""
        whole = self._begun.get(rank, b"") + text
        *lines, rest = whole.split(b"\n")
        self._begun[rank] = rest[:MAX_LINE_BYTES]
        for line in lines:
            if _MARK in line[:MAX_LINE_BYTES] and self._bytes < MAX_REPORT_BYTES:
                self.lines.append(masked(line[:MAX_LINE_BYTES].decode("utf-8", "replace").strip()))
                self._bytes += len(self.lines[-1])
