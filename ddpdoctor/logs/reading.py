"""Reads the logs of a run: the files, folders and standard input that were named."""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.logs import error_files
from ddpdoctor.logs.encodings import Unwrapped, decoded, is_objects, mark_of
from ddpdoctor.logs.file_names import place_of
from ddpdoctor.logs.folders import Contents, contents_of
from ddpdoctor.logs.gathering import Gathered
from ddpdoctor.logs.packed import how_to_unpack
from ddpdoctor.logs.plain import is_text
from ddpdoctor.logs.scanning import BLOCK, FileScan
from ddpdoctor.logs.vocabulary import Vocabulary
from ddpdoctor.logs.wanted import vocabulary as usual_vocabulary

STDIN: Final = "-"
NO_TEXT: Final = "this is no text, and so no log"
SOURCE: Final = "this is source code, and no log"
SOURCES: Final = frozenset((".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs"))
"""Suffixes of files that quote what programs say, and say nothing themselves."""
DEVICE: Final = "this is a device, and no log"
SAMPLE: Final = 4096
"""Bytes by which text is told from what is none."""

Progress = Callable[[str, int, int], None]
"""Is told a file's name, how many bytes of it were read, and how many it has: 0 where that isn't known."""


def read_logs(
    paths: Sequence[str],
    *,
    stdin: BinaryIO,
    vocabulary: Vocabulary | None = None,
    progress: Progress = lambda name, done, size: None,
) -> Log:
    """Reads them in that order, folders with all that is in them. What can't be read is a file with a problem."""
    words = vocabulary or usual_vocabulary()
    gathered = Gathered()
    for path in paths:
        if path == STDIN:
            read_stream(stdin, STDIN, words, gathered, progress=progress)
        else:
            found = contents_of(Path(path), _may_be_log) if Path(path).is_dir() else Contents([Path(path)])
            for name in found.files:
                _read_file(name, words, gathered, progress)
            gathered.files += [LogFile(name=name, problem=why) for name, why in found.problems]
            gathered.notes += found.notes
    return gathered.log()


def read_stream(
    stream: BinaryIO,
    name: str,
    vocabulary: Vocabulary,
    gathered: Gathered,
    most: int | None = None,
    progress: Progress = lambda name, done, size: None,
) -> None:
    """One stream to its end, or as many bytes as given."""
    unwrapped = Unwrapped()
    gathered.begins(name)
    scan = FileScan(vocabulary, gathered, len(gathered.files), place_of(name), unwrapped.number)
    compressed, problem, text, first, raw = False, "", False, b"", _Counted()
    try:
        pieces = _pieces(stream, most, lambda done: progress(name, done, most or 0))
        first = next(pieces, b"")
        compressed = first.startswith(b"\x1f\x8b")
        for piece in _lines(raw.of(_unpacked(first, pieces) if compressed else _with(first, pieces)), unwrapped):
            problem = problem or ("" if scan.bytes or is_text(piece[:SAMPLE]) else NO_TEXT)
            text = text or piece.count(b"\0") < len(piece)
            scan.feed(piece)
    except (OSError, EOFError, zlib.error) as error:
        problem = _words(error)
    scan.end()
    problem = problem or (NO_TEXT if scan.bytes and not text else "")
    if problem == NO_TEXT and (packed := how_to_unpack(first, name)):
        problem = f"{NO_TEXT}: {packed}"
    gathered.files.append(
        LogFile(name=name, bytes=raw.bytes, lines=unwrapped.number(scan.lines), compressed=compressed, problem=problem)
    )


def _read_file(path: Path, vocabulary: Vocabulary, gathered: Gathered, progress: Progress) -> None:
    try:
        if path.suffix in SOURCES:
            raise OSError(0, SOURCE)
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISCHR(status.st_mode) and not file.isatty() and status.st_rdev != os.stat(os.devnull).st_rdev:  # noqa: PTH116
                raise OSError(0, DEVICE)
            most = status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None
            stream: BinaryIO = file
            if path.name == error_files.NAME and most and most <= error_files.MOST:
                stream, most = io.BytesIO(error_files.as_log(file.read(most))), None
            read_stream(stream, str(path), vocabulary, gathered, most, progress)
    except (OSError, ValueError) as error:
        gathered.files.append(LogFile(name=str(path), problem=_words(error)))


def _may_be_log(path: Path) -> bool:
    """Whether a file of a folder is read: checkpoints and the like lie there, too. What can't be opened is told later."""
    if path.suffix in SOURCES:
        return False
    try:
        # Opening a pipe that nobody writes would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            sample = file.read(SAMPLE) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return True
    return sample is not None and (sample.startswith(b"\x1f\x8b") or bool(mark_of(sample)) or is_text(sample))


class _Counted:
    """How many bytes came, before they were decoded."""

    def __init__(self) -> None:
        self.bytes = 0

    def of(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.bytes += len(piece)
            yield piece


def _pieces(stream: BinaryIO, most: int | None, told: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    while most is None or done < most:
        told(done)
        piece = stream.read(BLOCK if most is None else min(BLOCK, most - done))
        if not piece:
            return
        done += len(piece)
        yield piece


def _with(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _lines(pieces: Iterator[bytes], unwrapped: Unwrapped) -> Iterator[bytes]:
    """As plain text, whatever they are written in."""
    first = next(pieces, b"")
    if encoding := mark_of(first):
        pieces = decoded(_with(first, pieces), encoding)
        first = next(pieces, b"")
    whole = _with(first, pieces)
    return unwrapped.lines(whole) if is_objects(first) else whole


def _unpacked(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Members one after the other, as gzip -d gives them."""
    unpacker = zlib.decompressobj(wbits=31)
    for piece in _with(first, pieces):
        data = piece
        while data:
            yield unpacker.decompress(data, BLOCK)
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data.lstrip(b"\0")
                if not data:
                    break
                unpacker = zlib.decompressobj(wbits=31)
    if not unpacker.eof:
        raise EOFError("the compressed file is cut off")


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
