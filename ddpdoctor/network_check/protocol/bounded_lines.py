"""Lines of bounded length from somebody on the network, and the snapshots that are packed into them."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Final

from ddpdoctor.base.text import UNSEEN, clip, masked

READ_BYTES: Final = 64 * 1024
"""Bytes of one read, and what may wait unread in a connection's own buffer."""

MAX_UNPACKED_BYTES: Final = 1024 * 1024
"""Bytes of a node's facts as JSON. Real ones have some tens of kilobytes, with a thousand packages a few hundred."""

_RAW = re.compile(rf"(?![\x00-\x1f])[{UNSEEN}]")
"""Raw controls below 32 are left as they are: JSON has none."""
_CODE = re.compile(f"[{UNSEEN}]")
_ESCAPED = re.compile(
    r"(\\\\)|\\[bfr]|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})"
)


class LineError(Exception):
    """What came is no line that we take. `partial`: its beginning."""

    def __init__(self, words: str, partial: bytes) -> None:
        super().__init__(words)
        self.partial = partial[:256]


class TooLongError(LineError):
    """It goes on past the limit."""


class ConnectionEndedError(LineError):
    """The connection was closed before the line's end."""


class LineReader:
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

    async def next(self, allowed: int | Callable[[], int]) -> bytes:
        """The next line, without its end and without what is unseen, which would reach somebody's terminal.

        allowed: bytes that it may have; a call where that changes while it comes.

        Raises:
            TooLongError: it has more.
            EndedError: the connection was closed or reset.
        """
        searched = 0
        while True:
            most = allowed if isinstance(allowed, int) else allowed()
            end = self._held.find(b"\n", searched, most + 1)
            if end >= 0:
                self.whole = self._loop.time()
                line = bytes(self._held[:end])
                del self._held[: end + 1]
                return mask_controls(line)
            if len(self._held) > most:
                raise TooLongError(f"a line of more than {most} bytes", self.held)
            searched = len(self._held)
            try:
                chunk = await self._reader.read(min(READ_BYTES, most + 1 - searched))
            except OSError as error:
                raise ConnectionEndedError("the connection was reset", self.held) from error
            if not chunk:
                raise ConnectionEndedError("the connection was closed", self.held)
            self.heard = self._loop.time()
            self._held += chunk


def mask_controls(line: bytes) -> bytes:
    """JSON in which everything unseen, escaped or raw, is a question mark. What can't be JSON stays as it is."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return line
    return _ESCAPED.sub(_seen, _RAW.sub("?", text)).encode()


def _seen(found: re.Match[str]) -> str:
    """An escape as it is, or "?"."""
    if found[1]:
        return found[1]
    if found[2]:
        code = 0x10000 + ((int(found[2], 16) & 0x3FF) << 10) + (int(found[3], 16) & 0x3FF)
    elif found[4]:
        code = int(found[4], 16)
    else:
        return "?"
    return "?" if _CODE.match(chr(code)) else found[0]


def plain(text: str, most: int = 120) -> str:
    """What somebody said, fit for one line of a report."""
    return clip(masked(text[: 4 * most]), most)


def unpack(packed: bytes) -> bytes:
    """The JSON in a Manifest.

    Raises:
        ValueError: it isn't deflated, is cut off, or unpacks to more than MOST_UNPACKED.
    """
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(packed, MAX_UNPACKED_BYTES + 1)
    except zlib.error as error:
        raise ValueError("its facts can't be unpacked") from error
    if len(content) > MAX_UNPACKED_BYTES:
        raise ValueError(f"its facts unpack to more than {MAX_UNPACKED_BYTES >> 20} MiB")
    if not inflater.eof:
        raise ValueError("its facts are cut off")
    return mask_controls(content)
