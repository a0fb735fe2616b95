"""Makes plain lines of a log that isn't written so: UTF-16 and UTF-32, and one JSON object a line."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MESSAGES: Final = ("log", "message", "msg", "event", "text")
_LEVELS: Final = ("level", "log.level", "levelname", "severity", "lvl")
_TIMES: Final = ("time", "ts", "timestamp", "@timestamp", "asctime")
_RANKS: Final = ("rank", "RANK", "global_rank")
_EXCEPTIONS: Final = ("exc", "exc_info", "exception", "traceback", "stack_trace", "error.stack_trace", "error", "err")
_SAMPLE: Final = 1 << 16
"""Bytes in which they are looked for."""
_LONGEST: Final = 1 << 20
"""Bytes of a line that may be an object."""
_MOST_EXTRA: Final = 1 << 16
"""Objects with many lines that are remembered for the lines' numbers."""


class _Docker(msgspec.Struct):
    """A line of its json-file driver: most objects by far are such ones."""

    log: str
    stream: str
    time: str


_DOCKER: Final = msgspec.json.Decoder(_Docker)


def mark_of(sample: bytes) -> str:
    """The encoding that a byte order mark at the beginning names; "" where there is none."""
    return next((name for mark, name in _MARKS if sample.startswith(mark)), "")


def decoded(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def is_objects(piece: bytes) -> bool:
    """Whether most of its first lines are JSON objects of a logger or of Docker. Others may stand between them, as a launcher's."""
    lines = [one for one in piece[:_SAMPLE].split(b"\n")[:100] if one.strip()]
    return sum(one.startswith(b"{") and _lines_of(one) is not None for one in lines) * 2 > len(lines)


class Unwrapped:
    """The lines that are within objects; and which line of the file each of them is from."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._extra: list[int] = []
        self._lines = 0
        self._more = 0

    def number(self, line: int) -> int:
        """Of the file's line."""
        place = bisect_right(self._at, line)
        if not place:
            return line
        # Within one object all lines are that object's.
        return max(line - self._extra[place - 1], self._at[place - 1] - self._before(place - 1))

    def lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """What the objects say, as a rank would have printed it."""
        rest = b""
        for piece in pieces:
            whole, newline, last = (rest + piece).rpartition(b"\n") if b"\n" in piece else (b"", b"", rest + piece)
            rest = last
            if newline:
                yield b"".join(self._plain(one) for one in whole.split(b"\n"))
            if len(rest) > _LONGEST:
                yield rest
                rest = b""
        if rest:
            yield self._plain(rest)

    def _before(self, place: int) -> int:
        return self._extra[place - 1] if place else 0

    def _plain(self, line: bytes) -> bytes:
        found = _lines_of(line) if line.startswith(b"{") and len(line) <= _LONGEST else None
        if not found:
            self._lines += 1
            return line + b"\n"
        first = self._lines + 1
        self._lines += len(found)
        if len(found) > 1 and len(self._at) < _MOST_EXTRA:
            self._more += len(found) - 1
            self._at.append(first)
            self._extra.append(self._more)
        return "".join(f"{one}\n" for one in found).encode("utf-8", "replace")


def _lines_of(line: bytes) -> list[str] | None:
    """What one object says; None where it is no logger's."""
    if line.startswith(b'{"log":'):
        try:
            docker = _DOCKER.decode(line)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            if "\n" not in docker.log[:-1]:
                return [f"{docker.time} {docker.log.removesuffix(chr(10))}"]
    try:
        said = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    message, level = _word(said, _MESSAGES), _word(said, _LEVELS).upper()
    raised = _word(said, _EXCEPTIONS)
    if not raised and not any(name in said for name in _MESSAGES):
        return None
    if not raised and not level and not _word(said, _TIMES) and "stream" not in said and "record" not in said:
        return None
    rank = next((said[name] for name in _RANKS if type(said.get(name)) is int), None)
    time = _word(said, _TIMES)
    head = (f"{time} " if time[:4].isdigit() and "T" in time else "") + (f"[rank{rank}]: " if rank is not None else "")
    text = [*(f"{level} {message}" if level else message).rstrip("\n").split("\n"), *raised.splitlines()]
    return [head + one for one in text if one.strip() or len(text) == 1]


def _word(said: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((said[name] for name in names if isinstance(said.get(name), str)), "")
