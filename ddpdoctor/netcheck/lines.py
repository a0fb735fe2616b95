"""Lines of bounded length from somebody on the network, and the snapshots that are packed into them."""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import Final

CHUNK: Final = 64 * 1024
"""Bytes of one read, and what may wait unread in a connection's own buffer."""

MOST_UNPACKED: Final = 16 * 1024 * 1024
"""Bytes of a node's facts as JSON. Real ones have some hundred kilobytes."""

_CONTROLS = re.compile(rb"(\\\\)|\\u00(?:[01][0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|\xc2[\x80-\x9f]|\x7f")


class LineError(Exception):
    """What came is no line that we take. `partial`: its beginning."""

    def __init__(self, words: str, partial: bytes) -> None:
        super().__init__(words)
        self.partial = partial[:256]


class TooLongError(LineError):
    """It goes on past the limit."""


class EndedError(LineError):
    """The connection was closed before the line's end."""


class Lines:
    """Reads lines from a connection. Holds no more of it than the line's limit and CHUNK bytes.

    heard, whole: when something came last, and when the last whole line did, by the event loop's clock.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._held = bytearray()
        self._loop = asyncio.get_running_loop()
        self.heard = self.whole = self._loop.time()

    @property
    def held(self) -> bytes:
        """The beginning of the line that hasn't ended yet."""
        return bytes(self._held[:256])

    def excuse(self) -> None:
        """We ourselves were halted, so nothing can be said of the other side's silence: it begins now."""
        self.heard = self.whole = self._loop.time()

    async def next(self, most: int) -> bytes:
        """The next line, without its end and without control characters, which would reach somebody's terminal.

        Raises:
            TooLongError: it has more than `most` bytes.
            EndedError: the connection was closed or reset.
        """
        searched = 0
        while True:
            end = self._held.find(b"\n", searched, most + 1)
            if end >= 0:
                self.whole = self._loop.time()
                line = bytes(self._held[:end])
                del self._held[: end + 1]
                return harmless(line)
            if len(self._held) > most:
                raise TooLongError(f"a line of more than {most} bytes", self.held)
            searched = len(self._held)
            try:
                chunk = await self._reader.read(min(CHUNK, most + 1 - searched))
            except OSError as error:
                raise EndedError("the connection was reset", self.held) from error
            if not chunk:
                raise EndedError("the connection was closed", self.held)
            self.heard = self._loop.time()
            self._held += chunk


def harmless(line: bytes) -> bytes:
    """JSON in which every escaped or raw control character but tab and newline is a question mark."""
    return _CONTROLS.sub(lambda found: found[1] or b"?", line)


def plain(text: str, most: int = 120) -> str:
    """What somebody said, fit for one line of a report."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def unpack(packed: bytes) -> bytes:
    """The JSON in a Manifest.

    Raises:
        ValueError: it isn't deflated, is cut off, or unpacks to more than MOST_UNPACKED.
    """
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(packed, MOST_UNPACKED + 1)
    except zlib.error as error:
        raise ValueError("its facts can't be unpacked") from error
    if len(content) > MOST_UNPACKED:
        raise ValueError(f"its facts unpack to more than {MOST_UNPACKED >> 20} MiB")
    if not inflater.eof:
        raise ValueError("its facts are cut off")
    return harmless(content)
