"""Reads the logs of a run: the files, folders and standard input that were named."""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from ddpdoctor.base.ownership import who_misleads
from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.logs.match.gathering import GatheredLog
from ddpdoctor.logs.match.scanning import BLOCK_BYTES, FileScan
from ddpdoctor.logs.match.shape_tally import ShapeTally
from ddpdoctor.logs.match.vocabulary import Vocabulary
from ddpdoctor.logs.parse.compressed import GZIP, DamagedArchive, how_to_unpack, unpacked
from ddpdoctor.logs.parse.encodings import (
    Unwrapped,
    decoded,
    encoding_of,
    is_objects,
    is_text,
    with_newlines,
    without_holes,
)
from ddpdoctor.logs.parse.file_names import LinePlace, place_of, places_of
from ddpdoctor.logs.parse.folders import contents_of_all
from ddpdoctor.logs.parse.other_texts import SOURCES, kind_of_text
from ddpdoctor.probes.files import NotRegularError, open_regular, read_start

STDIN: Final = "-"
NO_TEXT: Final = "this is no text, and so no log"
SOURCE: Final = "this is source code, and no log"
DEVICE: Final = "this is a device, and no log"
SAMPLE_BYTES: Final = 4096
"""Bytes by which text is told from what is none."""
FIRST_PIECE_BYTES: Final = 1 << 16
"""Bytes by which it is told how a log is written; a pipe gives a line at a time."""

Progress = Callable[[str, int, int], None]
"""Is told a file's name, how many bytes of it were read, and how many it has: 0 where that isn't known."""


def read_logs(
    paths: Sequence[str],
    *,
    stdin: BinaryIO,
    vocabulary: Vocabulary,
    progress: Progress = lambda name, done, size: None,
    shapes: ShapeTally | None = None,
) -> Log:
    """Read logs in that order, folders with all that is in them. What can't be read is a file with a problem. shapes: where the kinds
    of their lines are counted."""
    gathered = GatheredLog(shapes=shapes)
    # Of a folder's files the names tell more beside those of the others.
    contents = contents_of_all([Path(path) for path in paths if path != STDIN], _may_be_log)
    places = places_of([str(name) for found in contents for name in found.files])
    of_others = iter(contents)
    for path in paths:
        if path == STDIN:
            read_stream(stdin, STDIN, vocabulary, gathered, progress=progress)
            continue
        found = next(of_others)
        for name in found.files:
            _read_file(name, vocabulary, gathered, progress, places[str(name)], is_named=name == Path(path))
        gathered.files += [LogFile(name=name, problem=why) for name, why in found.problems]
        gathered.notes += found.notes
    return gathered.log()


def read_stream(
    stream: BinaryIO,
    name: str,
    vocabulary: Vocabulary,
    gathered: GatheredLog,
    most: int | None = None,
    progress: Progress = lambda name, done, size: None,
    place: LinePlace | None = None,
) -> None:
    """Read one stream, or as many bytes as given. place: whose it is, by its name beside others."""
    unwrapped = Unwrapped()
    gathered.begins(name)
    scan = FileScan(vocabulary, gathered, len(gathered.files), place or place_of(name), unwrapped.number)
    problem, first, size = "", b"", 0

    def counted(pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            size += len(piece)
            yield piece

    try:
        pieces = _pieces(stream, most, lambda done: progress(name, done, most or 0))
        first = next(pieces, b"")
        is_whole = len(first) == most or len(first) < FIRST_PIECE_BYTES
        if is_whole and (kind := kind_of_text(first)):
            problem, size, first = f"this is {kind}, and no log of a run", len(first), b""
        pieces = chain([first], pieces)
        for piece in _lines(counted(unpacked(pieces) if first.startswith(GZIP) else pieces), unwrapped):
            problem = problem or ("" if scan.bytes or is_text(piece[:SAMPLE_BYTES]) else NO_TEXT)
            scan.feed(piece)
    except (OSError, DamagedArchive) as error:
        problem = problem or _words(error)
    scan.end()
    if scan.left_out:
        gathered.notes.append(_left_out(name, sorted(map(unwrapped.number, scan.left_out))))
    problem = problem or (NO_TEXT if size and not scan.bytes else "")
    if problem == NO_TEXT and (packed := how_to_unpack(first, name)):
        problem = f"{NO_TEXT}: {packed}"
    gathered.files.append(LogFile(name=name, bytes=size, lines=unwrapped.number(scan.lines), problem=problem))


def _read_file(
    path: Path, vocabulary: Vocabulary, gathered: GatheredLog, progress: Progress, place: LinePlace, *, is_named: bool
) -> None:
    # A file that is named on the command line may be a pipe; others lie in a folder that was.
    try:
        if path.suffix in SOURCES:
            raise OSError(0, SOURCE)
        with path.open("rb", buffering=0) if is_named else os.fdopen(open_regular(path), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISCHR(status.st_mode) and not file.isatty() and status.st_rdev != os.stat(os.devnull).st_rdev:  # noqa: PTH116
                raise OSError(0, DEVICE)
            if foothold := who_misleads(file.fileno(), path):
                raise OSError(0, f"not read: it is not for everybody's eyes, and {foothold.words}")
            most = status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None
            stream: BinaryIO = file
            if path.name == ERROR_FILE and most and most <= MAX_ERROR_FILE_BYTES:
                stream, most = io.BytesIO(_error_file_as_log(file.read(most))), None
            read_stream(stream, str(path), vocabulary, gathered, most, progress, place)
    except (OSError, ValueError) as error:
        gathered.files.append(LogFile(name=str(path), problem=_words(error)))


def _may_be_log(path: Path) -> bool:
    """Whether a file of a folder is read: checkpoints and the like lie there, too. What can't be opened is told later."""
    if path.suffix in SOURCES:
        return False
    try:
        sample = read_start(path, SAMPLE_BYTES)
    except NotRegularError:
        return False
    except OSError:
        return True
    return sample.startswith(GZIP) or bool(encoding_of(sample)) or is_text(sample)


def _pieces(stream: BinaryIO, most: int | None, told: Callable[[int], None]) -> Iterator[bytes]:
    # First a piece by which the others can be judged; what was read before an error, too.
    done, held = 0, b""
    try:
        while most is None or done < most:
            told(done)
            piece: bytes | None = stream.read(BLOCK_BYTES if most is None else min(BLOCK_BYTES, most - done))
            if piece is None:
                # Whoever opened it doesn't want to wait, as some do with the standard input that they pass on.
                select.select([stream], [], [])
                continue
            if not piece:
                break
            done += len(piece)
            held += piece
            if done >= FIRST_PIECE_BYTES:
                yield held
                held = b""
    except OSError:
        yield held
        raise
    if held:
        yield held


def _lines(pieces: Iterator[bytes], unwrapped: Unwrapped) -> Iterator[bytes]:
    """Yield plain text, whatever the pieces are written in."""
    first = next(pieces, b"")
    if encoding := encoding_of(first[:FIRST_PIECE_BYTES]):
        pieces = decoded(chain([first], pieces), encoding)
        first = next(pieces, b"")
    pieces = with_newlines(without_holes(chain([first], pieces)))
    first = next(pieces, b"")
    whole = chain([first], pieces)
    return unwrapped.lines(whole) if is_objects(first) else whole


def _left_out(name: str, lines: Sequence[int]) -> str:
    """Say of which lines not all was read."""
    several = f" and {len(lines) - 1} more lines are" if len(lines) > 1 else " is"
    which = "the input" if name == STDIN else name
    return f"line {lines[0]:,} of {which}{several} so long that not all that stands between beginning and end was read"


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


# --- torchrun's error.json ----------------------------------------------------------------------------------------------


ERROR_FILE: Final = "error.json"
MAX_ERROR_FILE_BYTES: Final = 1 << 22
"""Bytes of one."""


class _Extra(msgspec.Struct):
    py_callstack: str = ""
    timestamp: str | int | float = ""


class _Message(msgspec.Struct):
    message: str = ""
    extraInfo: _Extra = msgspec.field(default_factory=_Extra)


class _ErrorFile(msgspec.Struct):
    message: str | _Message = ""


def _error_file_as_log(content: bytes) -> bytes:
    """Write the file as the rank would have printed it, with its time; leave it where it isn't torch's."""
    try:
        said = msgspec.json.decode(content, type=_ErrorFile).message
    except msgspec.DecodeError:
        return content
    if isinstance(said, str):
        return said.encode() or content
    text = said.extraInfo.py_callstack or said.message
    return (_clock(said.extraInfo.timestamp) + text).encode() if text else content


def _clock(timestamp: str | float) -> str:
    try:
        return f"{datetime.fromtimestamp(float(timestamp), timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ} "
    except (ValueError, OverflowError, OSError):
        return ""
