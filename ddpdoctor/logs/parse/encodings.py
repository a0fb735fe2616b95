"""Makes plain lines of a log that isn't written so: UTF-16 and UTF-32, and one JSON object a line."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ddpdoctor.logs.parse.tracebacks import IN_A_TABLE

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_RAW: Final = "textPayload"
"""Of Google's collector: a line as the container wrote it. Its severity is that of the whole stream."""
_OF_FIELDS: Final = "jsonPayload"
"""The same of what was an object itself."""
_MESSAGES: Final = ("log", "message", "msg", "event", "text", _RAW, "line", "MESSAGE")
_LEVELS: Final = ("level", "log.level", "levelname", "severity", "lvl")
_TIMES: Final = ("time", "ts", "timestamp", "@timestamp", "asctime", "__REALTIME_TIMESTAMP")
_OTHERS: Final = ("stream", "record", "ingestionTime")
"""What an object of a logger or a collector may have in place of a level or a time in words: loguru's, CloudWatch's."""
_RANKS: Final = ("rank", "RANK", "global_rank")
_EXCEPTIONS: Final = ("exc", "exc_info", "exception", "traceback", "stack_trace", "error.stack_trace", "error", "err")
_BEFORE_OBJECT: Final = re.compile(rb"(?:\d{4}-\d\d-\d\dT\S{8,30} std(?:out|err) F |\x1e)?(?=\{)")
"""What stands before an object: a container runtime's label, or the mark of a sequence of JSON texts."""
_OF_DOCKER: Final = re.compile(rb"[\x01\x02]\0{4}[\0-\xff]{3}")
"""What its daemon puts before each text where nobody has taken both streams apart: which of them, and how long it is."""
_SAMPLE_BYTES: Final = 1 << 16
"""Bytes in which they are looked for."""
_LETTER: Final = re.compile(rb"[A-Za-z]")
_MAX_MARGIN: Final = 256
_NEVER_INDENTED: Final = rb"Traceback \(most|[\w.]{0,200}(?:Error|Exception)\b|\[|\d\d"
"""Beginnings of lines: of tracebacks, exceptions, labels and clocks."""
_IN_A_TABLE: Final = re.compile(rf"(?m)^{IN_A_TABLE}".encode())
_MIN_LETTERS: Final = 16
"""Letters of a text that is known for UTF-16 without a mark."""
_MAX_OBJECT_BYTES: Final = 1 << 20
"""Bytes of a line that may be an object."""
_MAX_LONG_OBJECTS: Final = 1 << 16
"""Objects with many lines that are remembered for the lines' numbers."""


class _Docker(msgspec.Struct):
    """A line of its json-file driver: most objects by far are such ones."""

    log: str
    stream: str
    time: str


_DOCKER: Final = msgspec.json.Decoder(_Docker)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def encoding_of(sample: bytes) -> str:
    """Name the encoding by its mark; also that of a text in UTF-16 whose beginning is elsewhere: most of its letters
    have a NUL before them, or all behind them. "" of UTF-8, and of what isn't known."""
    if marked := next((name for mark, name in _MARKS if sample.startswith(mark)), ""):
        return marked
    half = len(sample) // 2
    before, behind = sample[::2].count(0), sample[1::2].count(0)
    most = half >= _MIN_LETTERS and max(before, behind) * 2 > half and min(before, behind) * 20 < half
    return ("utf-16-le" if behind > before else "utf-16-be") if most and is_text(sample) else ""


def decoded(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Recode the text in UTF-8."""
    return (text.encode("utf-8", "replace") for text in codecs.iterdecode(pieces, encoding, "replace"))


def without_holes(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same without NUL bytes, which a log has that was truncated while it was written, or whose writer counts them to its texts;
    without Docker's marks, which have some, and the one that stands before UTF-8."""
    begins = True
    for piece in pieces:
        text = _OF_DOCKER.sub(b"", piece).replace(b"\0", b"") if b"\0" in piece else piece
        if begins:
            text = text.removeprefix(codecs.BOM_UTF8)
        if text:
            begins = False
            yield text


def with_newlines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Write a line's end as others write it, where a terminal has put a second carriage return before it."""
    doubled = None
    for piece in pieces:
        doubled = b"\r\r\n" in piece if doubled is None else doubled
        yield piece.replace(b"\r\r\n", b"\r\n") if doubled else piece


def is_objects(piece: bytes) -> bool:
    """Whether most of its first lines are JSON objects of a logger or of Docker. Others may stand between them, as a launcher's."""
    lines = [line for line in piece[:_SAMPLE_BYTES].split(b"\n")[:100] if line.strip()]
    return sum(_object(line)[1] is not None for line in lines) * 2 > len(lines)


class Unwrapped:
    """The lines that are within objects; and which line of the file each of them is from."""

    def __init__(self) -> None:
        self._at = [0]
        """Lines of what is unwrapped at which objects with several lines begin."""
        self._extra = [0]
        """Lines, by the end of each, that the file doesn't have."""
        self._lines = 0

    def number(self, line: int) -> int:
        """Of the file's line."""
        place = bisect_right(self._at, line) - 1
        # Within one object all lines are that object's.
        return max(line - self._extra[place], self._at[place] - self._extra[max(place - 1, 0)])

    def lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what the objects say, as a rank would have printed it."""
        rest = b""
        for piece in pieces:
            whole, newline, last = (rest + piece).rpartition(b"\n") if b"\n" in piece else (b"", b"", rest + piece)
            rest = last
            if newline:
                yield b"".join(self._plain(line) for line in whole.split(b"\n"))
            if len(rest) > _MAX_OBJECT_BYTES:
                yield rest
                rest = b""
        if rest:
            yield self._plain(rest)

    def _plain(self, line: bytes) -> bytes:
        label, found = _object(line)
        if not found:
            self._lines += 1
            return line + b"\n"
        first = self._lines + 1
        self._lines += len(found)
        if len(found) > 1 and len(self._at) < _MAX_LONG_OBJECTS:
            self._at.append(first)
            self._extra.append(self._extra[-1] + len(found) - 1)
        return b"".join(label + line.encode("utf-8", "replace") + b"\n" for line in found)


def _object(line: bytes) -> tuple[bytes, list[str] | None]:
    """Split an object into its label and what it says."""
    before = _BEFORE_OBJECT.match(line) if len(line) <= _MAX_OBJECT_BYTES else None
    return (before[0].strip(b"\x1e"), _lines_of(line[before.end() :])) if before else (b"", None)


def _lines_of(line: bytes) -> list[str] | None:
    """Return what one object says; None where it is no logger's."""
    if line.startswith(b'{"log":'):
        try:
            docker = _DOCKER.decode(line)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            if "\n" not in docker.log[:-1]:
                return [f"{docker.time} {docker.log.removesuffix(chr(10))}"]
    try:
        said = _OBJECT.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(fields := said.get(_OF_FIELDS), dict):
        said |= fields
    message, level = _word(said, _MESSAGES), "" if _RAW in said else (_word(said, _LEVELS) or "").upper()
    raised, time = _word(said, _EXCEPTIONS) or "", _word(said, _TIMES) or ""
    is_logged = message is not None and (level or time or any(name in said for name in _OTHERS))
    if not raised and not is_logged:
        return None
    rank = next((said[name] for name in _RANKS if type(said.get(name)) is int), None)
    head = (f"{time} " if time[:4].isdigit() and "T" in time else "") + (f"[rank{rank}]: " if rank is not None else "")
    text = [
        *(f"{level} {message or ''}" if level else message or "").rstrip("\n").split("\n"),
        *raised.replace("\r\n", "\n").split("\n"),
    ]
    return [head + line for line in text if line.strip() or len(text) == 1]


def _word(said: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((said[name] for name in names if isinstance(said.get(name), str)), None)


# --- colours, and what is no text ---------------------------------------------------------------------------------------


_ESCAPES: Final = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)|[@-Z\\^_=>])"
)
_SPELLED_OUT: Final = re.compile(
    rb"(?:#033|\^\[|\\(?:x1[bB]|033|u001[bB])|\xe2\x90\x9b)\[[\d;]{0,24}[mK]|\[\d{1,3}(?:;\d{1,3}){0,6}m"
)
"""Colours whose escape somebody has written out, as rsyslog, cat -v and less do, or has lost, as a browser does."""
_RESET: Final = b"[0m"
"""Behind whatever is coloured."""
_BOLD: Final = re.compile(rb"^\*\*(?=[\w\[])([^*\n]{0,400}[^*\s])\*\*(?!\*)", re.MULTILINE)
"""Markdown's, by which whoever pasted a log marks what matters in it."""
_CONTROLS: Final = re.compile(rb"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")


def colourless(text: bytes) -> bytes:
    """Strip colours and other sequences of a terminal, and write lines that begin in bold type as they were written."""
    text = _ESCAPES.sub(b"", text) if b"\x1b" in text else text
    # Going backwards takes Python a quarter of the time.
    text = _SPELLED_OUT.sub(b"", text) if text.rfind(_RESET) >= 0 else text
    return _BOLD.sub(rb"\1", text) if text.rfind(b"\n**") >= 0 or text.startswith(b"**") else text


def margin_of(text: bytes) -> re.Pattern[bytes] | None:
    """Find the indentation, or the marks of a quotation, that all lines with words in them have in common, as of what was pasted into a report.
    What is indented by itself, as the rest of a table or of a group of exceptions, stays so."""
    common: bytes | None = None
    for line in text.split(b"\n"):
        words = line.lstrip(b" \t>")
        if _LETTER.search(words):
            margin = line[: len(line) - len(words)][:_MAX_MARGIN]
            common = margin if common is None else common
            while not margin.startswith(common):
                common = common[:-1]
            if not common:
                return None
    if not common:
        return None
    margin, bare = re.escape(common), re.escape(common.rstrip())
    begins = re.compile(rb"(?m)^%b(?:%b)" % (margin, _NEVER_INDENTED))
    if not bare and (_IN_A_TABLE.search(text) or not begins.search(text)):
        return None
    return re.compile(rb"(?m)^(?:%b%b)" % (margin, rb"|%b$" % bare if bare else b""))


def is_text(sample: bytes) -> bool:
    """Whether the beginning of a file looks like a log. NUL bytes alone don't speak against it: a log that was truncated while it
    was written begins with a hole of them."""
    letters = sample.replace(b"\0", b"")
    return len(_CONTROLS.findall(letters)) * 20 <= len(letters)
