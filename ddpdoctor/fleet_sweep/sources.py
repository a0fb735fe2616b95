"""Where the snapshots of a sweep come from: files, folders, and a pipe with a snapshot a line and whatever a launcher writes before it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, Final, NamedTuple

import msgspec

from ddpdoctor.base.regular_files import open_regular
from ddpdoctor.base.text import clip, one_line
from ddpdoctor.engine.snapshot_lines import BEGINNING_BYTES, MARK, SnapshotLines
from ddpdoctor.fleet_sweep.profiles import claims_to_be_profile
from ddpdoctor.knowledge.hostlist import FAILING_NODES, PASSING_NODES

MAX_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024
"""A real snapshot has some tens of kilobytes; ten thousand are to be read in little memory."""
ENDINGS: Final = (".json", ".txt", ".log", ".out")
"""Files of a folder that may hold snapshots; the rest of it is passed over."""
MAX_PREFIX: Final = 300
STDIN: Final = "-"
STDIN_NAME: Final = "standard input"
NOTHING_ARRIVED: Final = (
    "nothing arrived: the command before the | has failed, or printed nothing. Run that alone and read what it says, as with "
    "`srun --ntasks-per-node=1 ddpdoctor snapshot | head -n 3`"
)


class SnapshotSource(msgspec.Struct, frozen=True, array_like=True):
    """One snapshot that is to be read, or why it can't be.

    Args:
        name: of the file, or what tells which line it was.
        path: of the file; "" where the content is here.
        content: of a line; where there is a problem, what came of it.
        problem: why there is none.
        labels: what a launcher or the file's name calls it, which may be its host's name.
    """

    name: str
    path: str = ""
    content: bytes = b""
    problem: str = ""
    labels: tuple[str, ...] = ()


def find_sources(inputs: Iterable[str], stdin: IO[bytes] | None) -> Iterator[SnapshotSource]:
    """All snapshots of these inputs, in their order.

    Args:
        inputs: files and folders; "-" is the pipe.
        stdin: the pipe.
    """
    for name in inputs:
        if name == STDIN:
            yield from _Lines(f"{STDIN_NAME}, ").read(stdin) if stdin else ()
        elif os.path.isdir(name):  # noqa: PTH112 (a name may be no path's)
            yield from _folder(name)
        else:
            yield _file(name)


def _file(path: str) -> SnapshotSource:
    return SnapshotSource(path, path=path, labels=(os.path.splitext(os.path.basename(path))[0],))  # noqa: PTH119, PTH122


def _folder(name: str) -> Iterator[SnapshotSource]:
    try:
        files = sorted(entry for entry in os.listdir(name) if entry.endswith(ENDINGS))  # noqa: PTH208
    except OSError as error:
        yield SnapshotSource(name, problem=f"{name}: {error.strerror or error}")
        return
    if not files:
        yield SnapshotSource(name, problem=f"{name}: there is no file in it whose name ends in {', '.join(ENDINGS)}")
    for entry in files:
        path = os.path.join(name, entry)  # noqa: PTH118
        yield _file(path)


def read_source(source: SnapshotSource) -> Iterator[SnapshotSource]:
    """The snapshots with their contents: a file may hold one, or be the saved output of a launcher, with one a line.

    A problem stands in the place of what can't be read. What an earlier sweep has written beside the snapshots is passed over. The output
    of a large job has hundreds of megabytes: it is never held whole.
    """
    if not source.path:
        yield source
        return
    if os.path.basename(source.path) in (PASSING_NODES, FAILING_NODES):  # noqa: PTH119
        return
    try:
        with os.fdopen(open_regular(source.path), "rb") as file:
            content = file.read(MAX_SNAPSHOT_BYTES + 1)
            if not _is_one_document(content):
                file.seek(0)
                yield from _Lines(f"{source.name}, ", source).read(file)
            elif claims_to_be_profile(content):
                return
            elif len(content) <= MAX_SNAPSHOT_BYTES:
                yield SnapshotSource(source.name, content=content, labels=source.labels)
            else:
                begin = content[:BEGINNING_BYTES]
                yield SnapshotSource(source.name, content=begin, problem=_too_large(source.name), labels=source.labels)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        yield SnapshotSource(source.name, problem=f"{source.name}: {reason or error}", labels=source.labels)


def _is_one_document(content: bytes) -> bool:
    """Whether that is one snapshot from its first character on, or nothing: no second one begins at the begin of a line, nor after a whole one."""
    begin = content[:MAX_SNAPSHOT_BYTES].lstrip()
    first, _, rest = begin.partition(b"\n")
    has_more = b"\n{" in rest or (bool(rest.strip()) and b"ddpdoctor_snapshot" in first)
    return not begin or (begin.startswith(b"{") and not has_more)


def _too_large(name: str) -> str:
    return f"{name}: larger than {MAX_SNAPSHOT_BYTES >> 20} MiB, so this is no snapshot; nothing of it was used"


# --- lines ----------------------------------------------------------------------------------------------------------------------

_OPENING: Final = re.compile(rb'([^{}"]{0,%d})\{\s*' % MAX_PREFIX)
"""The first line of an indented snapshot; within one a brace stands behind a name or blanks alone."""
_JSON: Final = re.compile(rb'([^{"]{0,%d})\{\s*(?:["}]|\Z)' % MAX_PREFIX)
_INNER: Final = frozenset((b" ", b"\t", b'"', b"}", b"]"))
"""How lines of an indented snapshot begin."""
MAX_PENDING_BYTES: Final = 128 * 1024 * 1024
"""Of indented snapshots that haven't arrived whole."""
PENDING_OVERHEAD: Final = 512


class _Lines:
    """The snapshots in lines, each as soon as it is whole; those of several hosts may come mixed.

    Args:
        where: stands in front of a line's number.
        file: where these are a file's.
    """

    def __init__(self, where: str, file: SnapshotSource | None = None) -> None:
        self._where = where
        self._file = file
        self._packed = SnapshotLines()
        self._indented = _IndentedSnapshots()
        self._foreign = _ForeignLines()
        self._labels: set[str] = set()
        self._found_at: list[int] = []

    def read(self, stream: IO[bytes]) -> Iterator[SnapshotSource]:
        """Read to the end, and then say of whatever else there was that it is no snapshot."""
        read, first = 0, b""
        for number, line in enumerate(_untangled(_bounded(stream)), 1):
            read += len(line)
            first = first or line.strip()
            yield from self._snapshots(f"{self._where}line {number}", number, line)
            if self._file and not self._found_at and read > MAX_SNAPSHOT_BYTES:
                break
        if not first and not self._file:
            yield SnapshotSource("", problem=f"{STDIN_NAME}: {NOTHING_ARRIVED}")
            return
        for name, number, prefix, content in self._indented.cut():
            yield self._snapshot(name, number, prefix, content)
        lacks = list(self._packed.lacking())
        if self._file and not self._found_at and not lacks:
            begin = clip(one_line(first.decode(errors="replace")))
            name = self._file.name
            yield SnapshotSource(
                "", problem=f"{name}: there is no snapshot in it; it begins: {begin}", labels=self._file.labels
            )
            return
        for lack in lacks:
            labels = lack.labels or self._file_labels
            yield SnapshotSource("", content=lack.beginning, problem=f"{self._where}{lack.text}", labels=labels)
        # A file with one snapshot is one host's: what came before it is a banner, or the word of a module.
        begin_at = self._found_at[0] if self._file and len(self._found_at) == 1 else 0
        for problem, labels in self._foreign.problems(self._labels, begin_at):
            yield SnapshotSource("", problem=f"{self._where}{problem}", labels=labels)

    def _snapshots(self, name: str, number: int, line: bytes) -> Iterator[SnapshotSource]:
        if len(line) > MAX_SNAPSHOT_BYTES:
            label, _ = _label_and_words(line[:MAX_FOREIGN_BYTES])
            yield SnapshotSource(name, problem=_too_large(name), labels=(label,) if label else self._file_labels)
        elif (whole := self._packed.add(line)) is not None:
            prefix = line[: line.index(MARK)]
            self._labels.add(_label(prefix))
            if whole:
                yield self._snapshot(name, number, prefix, whole)
        elif (indented := self._indented.add(name, number, line)) is not None:
            for snapshot in indented:
                yield self._snapshot(*snapshot)
        elif matched := _JSON.match(line):
            yield self._snapshot(name, number, matched[1], line[matched.end(1) :].rstrip())
        elif line.strip():
            self._foreign.add(number, line)

    def _snapshot(self, name: str, number: int, prefix: bytes, content: bytes) -> SnapshotSource:
        label = _label(prefix)
        self._labels.add(label)
        self._found_at.append(number)
        labels = (label,) if label else self._file_labels
        return SnapshotSource(f"{name} ({label})" if label else name, content=content, labels=labels)

    @property
    def _file_labels(self) -> tuple[str, ...]:
        return self._file.labels if self._file else ()


class _Indented(NamedTuple):
    """A snapshot of several lines, as far as it has come. begin: the name and number of its first line."""

    begin: tuple[str, int]
    prefix: bytes
    content: bytearray

    @property
    def whole(self) -> tuple[str, int, bytes, bytes]:
        """As it is handed on."""
        return *self.begin, self.prefix, bytes(self.content)


class _IndentedSnapshots:
    """Puts together what was written in several lines. A launcher puts the same words before each of a host's lines, and may mix hosts."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Indented] = {}
        self._lengths: Counter[int] = Counter()
        self._bytes = 0

    def add(self, name: str, number: int, line: bytes) -> list[tuple[str, int, bytes, bytes]] | None:
        """Take a line, and give back what is whole by it, or has to be given up; None where it is no line of such a snapshot."""
        closed = []
        snapshot = self._continued_by(line)
        opening = None if snapshot and snapshot.prefix else _OPENING.fullmatch(line)
        if opening and (not opening[1] or opening[1].strip()):
            prefix = opening[1]
            if prefix in self._open:
                closed.append(self._close(prefix))
            self._open[prefix] = _Indented((name, number), prefix, bytearray(line[len(prefix) :]))
            self._lengths[len(prefix)] += 1
            self._bytes += len(line) + PENDING_OVERHEAD
        elif snapshot:
            rest = line[len(snapshot.prefix) :]
            snapshot.content.extend(rest)
            self._bytes += len(rest)
            if rest.rstrip() == b"}" or len(snapshot.content) > MAX_SNAPSHOT_BYTES:
                closed.append(self._close(snapshot.prefix))
        else:
            return None
        while self._bytes > MAX_PENDING_BYTES:
            closed.append(self._close(next(iter(self._open))))
        return closed

    def _continued_by(self, line: bytes) -> _Indented | None:
        for length in sorted(self._lengths, reverse=True):
            if line[length : length + 1] in _INNER and (snapshot := self._open.get(line[:length])):
                return snapshot
        return None

    def _close(self, prefix: bytes) -> tuple[str, int, bytes, bytes]:
        snapshot = self._open.pop(prefix)
        self._bytes -= len(prefix) + len(snapshot.content) + PENDING_OVERHEAD
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]
        return snapshot.whole

    def cut(self) -> Iterator[tuple[str, int, bytes, bytes]]:
        """What has not come to its end."""
        for prefix in list(self._open):
            yield self._close(prefix)


def _label(prefix: bytes) -> str:
    """A launcher's words before a line, as they may be shown; the same for what goes to standard error."""
    return clip(one_line(prefix.replace(b"<stderr>", b"<stdout>").decode(errors="replace")).strip(" :"), 80)


def _bounded(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines; of one that is too long its beginning, a byte longer than it may be."""
    while line := stream.readline(MAX_SNAPSHOT_BYTES + 1):
        yield line
        while len(line) > MAX_SNAPSHOT_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_SNAPSHOT_BYTES + 1)


_TAG: Final = re.compile(rb"\[[^][\s]{1,80}\]<std(?:out|err)>:")


def _untangled(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines as they were written. `mpirun --tag-output` reads 4 kB of a task at a time, however its lines end: it puts the tag
    within a line, too, and between its parts what others have written."""
    begun: dict[bytes, bytearray] = {}
    held = 0
    for line in lines:
        tags = list(_TAG.finditer(line)) if line.startswith(b"[") else []
        if not tags or tags[0].start():
            yield line
            continue
        for tag, end in zip(tags, [*(tag.start() for tag in tags[1:]), len(line)], strict=True):
            if tag[0] not in begun:
                begun[tag[0]] = bytearray(tag[0])
                held += len(tag[0]) + PENDING_OVERHEAD
            begun[tag[0]] += line[tag.end() : end]
            held += end - tag.end()
            whole = [tag[0]] if line.endswith(b"\n", 0, end) or len(begun[tag[0]]) > MAX_SNAPSHOT_BYTES else []
            while whole or held > MAX_PENDING_BYTES:
                text = bytes(begun.pop(whole.pop() if whole else next(iter(begun))))
                held -= len(text) + PENDING_OVERHEAD
                yield text
    yield from map(bytes, begun.values())


class _ForeignLines:
    """Lines in which there is no snapshot: "node07: bash: ddpdoctor: command not found". Those that say the same are named once."""

    MAX_TEXTS = 200
    MAX_LINES = 20_000
    SHOWN = 3

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[str, int]]] = {}
        self._count = 0
        self._more = 0

    def add(self, number: int, line: bytes) -> None:
        label, words = _label_and_words(line[:MAX_FOREIGN_BYTES])
        if self._count >= self.MAX_LINES or (words not in self._lines and len(self._lines) >= self.MAX_TEXTS):
            self._more += 1
        else:
            self._count += 1
            self._lines.setdefault(words, []).append((label, number))

    def problems(self, answered: Collection[str], begin_at: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """A problem for each text, and the labels of the lines.

        Args:
            answered: labels of which snapshots came, too; "" alone where the snapshots have none.
            begin_at: lines without a label up to this one are passed over.
        """
        has_labels = any(answered)
        for words, lines in self._lines.items():
            told = [
                (label, number)
                for label, number in lines
                if (label not in answered if label and has_labels else number > begin_at)
            ]
            if told:
                named = ", ".join(label or f"line {number}" for label, number in told[: self.SHOWN])
                others = " and others" if len(told) > self.SHOWN else ""
                yield f"{named}{others}: no snapshot, but: {clip(words)}", tuple(label for label, _ in told if label)
        if self._more:
            yield f"{self._more} more lines that hold no snapshot", ()


MAX_FOREIGN_BYTES: Final = 4096
_LABELLED: Final = re.compile(rb"\s*(\[[^\]\s]{1,300}\](?:<std(?:out|err)>:|:? )|\S{1,300}?: )\s*(.*)", re.DOTALL)
"""A host or a task as pdsh, clush, srun, mpirun and kubectl put it there, and what comes after it."""


def _label_and_words(line: bytes) -> tuple[str, str]:
    matched = _LABELLED.fullmatch(line)
    label, words = matched.groups() if matched else (b"", line)
    return _label(label), one_line(words.decode(errors="replace")).strip()


def batches(sources: Iterable[SnapshotSource], size: int) -> Iterator[Sequence[SnapshotSource]]:
    """The same in bundles. A pipe's are small, so that no host waits for another."""
    bundle: list[SnapshotSource] = []
    characters = 0
    for source in sources:
        bundle.append(source)
        characters += len(source.content)
        if len(bundle) >= size or characters > MAX_SNAPSHOT_BYTES:
            yield bundle
            bundle, characters = [], 0
    if bundle:
        yield bundle
