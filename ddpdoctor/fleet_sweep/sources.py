"""Where the snapshots of a sweep come from: files, folders, and a pipe with a snapshot a line and whatever a launcher writes before it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final

import msgspec

from ddpdoctor.base.regular_files import open_regular
from ddpdoctor.base.text import clip, one_line
from ddpdoctor.engine.snapshot_lines import SnapshotLines

MAX_SNAPSHOT_BYTES: Final = 8 * 1024 * 1024
"""A real snapshot has some tens of kilobytes; ten thousand are to be read in little memory."""
ENDINGS: Final = (".json", ".txt", ".log", ".out")
"""Files of a folder that may hold snapshots; the rest of it is passed over."""
MAX_PREFIX: Final = 300
STDIN: Final = "-"


class SnapshotSource(msgspec.Struct, frozen=True, array_like=True):
    """One snapshot that is to be read, or why it can't be.

    Args:
        name: of the file, or what tells which line it was.
        path: of the file; "" where the content is here.
        content: of a line.
        problem: why there is none.
    """

    name: str
    path: str = ""
    content: bytes = b""
    problem: str = ""


def find_sources(inputs: Iterable[str], stdin: IO[bytes] | None) -> Iterator[SnapshotSource]:
    """All snapshots of these inputs, in their order.

    Args:
        inputs: files and folders; "-" is the pipe.
        stdin: the pipe.
    """
    for name in inputs:
        if name == STDIN:
            yield from _lines(stdin) if stdin else ()
        elif os.path.isdir(name):  # noqa: PTH112 (a name may be no path's)
            yield from _folder(name)
        else:
            yield SnapshotSource(name, path=name)


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
        yield SnapshotSource(path, path=path)


def read_source(source: SnapshotSource) -> Iterator[SnapshotSource]:
    """The snapshots with their contents: a file may hold one, or be the saved output of a launcher, with one a line.

    A problem stands in the place of what can't be read. The output of a large job has hundreds of megabytes: it is never held whole.
    """
    if not source.path:
        yield source
        return
    try:
        with os.fdopen(open_regular(source.path), "rb") as file:
            content = file.read(MAX_SNAPSHOT_BYTES + 1)
            if _begins_in_lines(content):
                file.seek(0)
                yield from _lines(file, f"{source.name}, ")
            elif len(content) <= MAX_SNAPSHOT_BYTES:
                yield SnapshotSource(source.name, content=content)
            else:
                yield SnapshotSource(source.name, problem=_too_large(source.name))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        yield SnapshotSource(source.name, problem=f"{source.name}: {reason or error}")


def _begins_in_lines(content: bytes) -> bool:
    """Whether the first line holds a snapshot, and there are more lines."""
    first, _, rest = content[:MAX_SNAPSHOT_BYTES].lstrip().partition(b"\n")
    return bool(rest.strip()) and (b"ddpdoctor_snapshot" in first or b"ddpdoctor-snapshot" in first)


def _too_large(name: str) -> str:
    return f"{name}: larger than {MAX_SNAPSHOT_BYTES >> 20} MiB, so this is no snapshot; nothing of it was used"


# --- a pipe ---------------------------------------------------------------------------------------------------------------------

_JSON: Final = re.compile(rb"[^{]{0,%d}?\{" % MAX_PREFIX)
_BEGINNING: Final = re.compile(rb'\{\s*\Z|[^{]{0,%d}?\{\s*"ddpdoctor_snapshot"' % MAX_PREFIX)
"""Of a line with which a snapshot begins, and which therefore is no part of an indented one that came before it."""


def _lines(stream: IO[bytes], where: str = "") -> Iterator[SnapshotSource]:
    """The snapshots in a stream, each as soon as it is there."""
    packed = SnapshotLines()
    foreign = _ForeignLines(where or "standard input, ")
    indented = bytearray()
    for number, line in enumerate(_bounded(stream), 1):
        name = f"{where}line {number}"
        is_too_long = len(line) > MAX_SNAPSHOT_BYTES
        whole = None if is_too_long else packed.add(line)
        if indented and (whole is not None or _BEGINNING.match(line)):
            yield SnapshotSource(f"{where}line {number - 1}", content=bytes(indented))
            indented.clear()
        if is_too_long:
            yield SnapshotSource(name, problem=_too_large(name))
        elif whole is not None:
            if whole:
                yield SnapshotSource(name, content=whole)
        elif indented or line.rstrip() == b"{":
            indented += line
            if line.rstrip() == b"}" or len(indented) > MAX_SNAPSHOT_BYTES:
                yield SnapshotSource(name, content=bytes(indented))
                indented.clear()
        elif matched := _JSON.match(line):
            label = _label(line[: matched.end() - 1])
            yield SnapshotSource(f"{name}{f' ({label})' if label else ''}", content=line[matched.end() - 1 :].rstrip())
        elif line.strip():
            foreign.add(number, line)
    if indented:
        yield SnapshotSource(f"{where}the last lines", content=bytes(indented))
    for lack in packed.lacking():
        yield SnapshotSource("", problem=f"{where}{lack}; was the command ended, or its output cut?")
    yield from foreign.problems()


def _label(prefix: bytes) -> str:
    """A launcher's words before a line, as they may be shown."""
    return clip(one_line(prefix.decode(errors="replace")).strip(" :"), 80)


def _bounded(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines; of one that is too long its beginning, a byte longer than it may be."""
    while line := stream.readline(MAX_SNAPSHOT_BYTES + 1):
        yield line
        while len(line) > MAX_SNAPSHOT_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_SNAPSHOT_BYTES + 1)


class _ForeignLines:
    """Lines in which there is no snapshot: "node07: bash: ddpdoctor: command not found". Those that say the same are named once."""

    MOST = 200
    SHOWN = 3

    def __init__(self, where: str) -> None:
        self._where = where
        self._labels: dict[str, list[str]] = {}
        self._more = 0

    def add(self, number: int, line: bytes) -> None:
        text = one_line(line.decode(errors="replace"))
        label, colon, words = text.partition(": ")
        # pdsh, clush and srun put the host or the task there.
        if not colon or " " in label or len(label) > MAX_PREFIX:
            label, words = f"line {number}", text
        labels = self._labels.get(words)
        if labels is None and len(self._labels) >= self.MOST:
            self._more += 1
        elif labels is None:
            self._labels[words] = [label]
        elif len(labels) < self.SHOWN + 1:
            labels.append(label)

    def problems(self) -> Iterator[SnapshotSource]:
        """A problem for each text."""
        for words, labels in self._labels.items():
            named = ", ".join(labels[: self.SHOWN]) + (" and others" if len(labels) > self.SHOWN else "")
            yield SnapshotSource("", problem=f"{self._where}{named}: no snapshot, but: {clip(words)}")
        if self._more:
            yield SnapshotSource("", problem=f"{self._where}{self._more} more lines that hold no snapshot")


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
