"""Reads lines of bounded length from the network, without control characters, and unpacks the snapshots in them."""

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
    """No line came that we take; `partial` is the beginning of what did."""

    def __init__(self, words: str, partial: bytes) -> None:
        super().__init__(words)
        self.partial = partial[:256]


class TooLongError(LineError):
    """The line goes on past the limit."""


class ConnectionEndedError(LineError):
    """The connection was closed before the line's end."""


class LineReader:
    """Reads lines from a connection, and holds no more of it than the line's limit and READ_BYTES bytes.

    Attributes:
        last_bytes_at: when something came last, by the event loop's clock.
        last_line_at: when the last whole line came.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self.last_bytes_at = self.last_line_at = self._loop.time()

    @property
    def partial_line(self) -> bytes:
        """Beginning of the line that hasn't ended yet."""
        return bytes(self._buffer[:256])

    def restart_clocks(self) -> None:
        """Let the other side's silence begin now: we ourselves were halted, so nothing can be said of it."""
        self.last_bytes_at = self.last_line_at = self._loop.time()

    async def read_line(self, allowed: int | Callable[[], int]) -> bytes:
        """Read the next line, without its end and without invisible characters, which would reach somebody's terminal.

        Args:
            allowed: bytes that it may have; a call where that changes while it comes.

        Raises:
            TooLongError: it has more.
            ConnectionEndedError: the connection was closed or reset.
        """
        searched = 0
        while True:
            most = allowed if isinstance(allowed, int) else allowed()
            end = self._buffer.find(b"\n", searched, most + 1)
            if end >= 0:
                self.last_line_at = self._loop.time()
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return mask_controls(line)
            if len(self._buffer) > most:
                raise TooLongError(f"a line of more than {most} bytes", self.partial_line)
            searched = len(self._buffer)
            try:
                chunk = await self._reader.read(min(READ_BYTES, most + 1 - searched))
            except OSError as error:
                raise ConnectionEndedError("the connection was reset", self.partial_line) from error
            if not chunk:
                raise ConnectionEndedError("the connection was closed", self.partial_line)
            self.last_bytes_at = self._loop.time()
            self._buffer += chunk


def mask_controls(line: bytes) -> bytes:
    """Replace everything invisible in a JSON text, escaped or raw, by a question mark. What can't be JSON stays as it is."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return line
    return _ESCAPED.sub(_visible_escape, _RAW.sub("?", text)).encode()


def _visible_escape(escape: re.Match[str]) -> str:
    """The escape as it is, or "?" where it stands for something invisible."""
    if escape[1]:
        return escape[1]
    if escape[2]:
        code = 0x10000 + ((int(escape[2], 16) & 0x3FF) << 10) + (int(escape[3], 16) & 0x3FF)
    elif escape[4]:
        code = int(escape[4], 16)
    else:
        return "?"
    return "?" if _CODE.match(chr(code)) else escape[0]


def plain(text: str, most: int = 120) -> str:
    """Make a foreign text fit for one line of a report."""
    return clip(masked(text[: 4 * most]), most)


def unpack(packed: bytes) -> bytes:
    """Unpack the JSON in a HostFacts.

    Raises:
        ValueError: the data isn't deflated, is cut off, or unpacks to more than MAX_UNPACKED_BYTES.
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
