"""Counts the shapes of all lines of a run, in bounded memory: which there are, how often, how evenly, and where last. The shape of a
line is what stays of it from run to run, without its figures, paths, hashes, times and addresses."""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

import msgspec

from ddpdoctor.facts.log import LogLine

MAX_SHAPES: Final = 12_000
"""Kinds of lines that are told apart."""
MAX_KEYS: Final = 30_000
"""Coarse keys whose lines were looked at."""
MORE_AT_THE_END: Final = 1.25
"""Times as many of both where a file ends: what a run says last tells most."""
CLOSING_LINES: Final = 40
"""Lines at a file's end that close it."""
MAX_PARTS: Final = 64
"""Parts of a line between carriage returns that are looked at."""
_BUCKETS: Final = 64
"""Equal parts of a run in which it is noted where a kind of line stands."""
MIN_EVEN_BUCKETS: Final = 4
_MAX_GAP: Final = 3.0
"""Times the mean distance that a line that recurs evenly may leave out."""

MAX_SHAPED_TEXT: Final = 300
"""Characters of a line, behind its labels, that make its shape."""
_KEPT: Final = frozenset(string.ascii_letters) - frozenset(string.hexdigits)
_DROPPED: Final = bytes(byte for byte in range(128) if chr(byte) not in _KEPT and chr(byte) != "\n")
"""Figures, signs, and the letters of hashes: lines that differ in nothing else are told apart nowhere."""
_VARYING: Final = re.compile(
    r"""
      [a-z][a-z0-9+.-]{1,15}://[^\s'"<>)\]]+                 # addresses of pages, stores and servers
    | [~.]{0,2}/[^\s'":;,<>()\[\]|=]+                         # paths
    | (?<![^\W\d_])(?=[^\W\d_]{0,64}\d)[\w.@-]+              # figures, and words that hold some: hashes, hosts, units
    | \b[0-9a-fA-F]{8,}\b
    """,
    re.VERBOSE,
)
_SIGNS: Final = re.compile(r"[\W\d_]+")

LineAt = Callable[[bytes, int], LogLine]
"""Makes a line of a file's bytes and its number."""


@dataclass(slots=True)
class ShapeCount:
    """A kind of line. buckets: a bit for each part of the run in which it stands."""

    mark: int
    first: LogLine
    times: int = 0
    buckets: int = 0
    last: LogLine | None = None
    """Only of kinds that are watched."""
    closing: int = 0
    """How often it stands among a file's last lines."""

    @property
    def closes(self) -> bool:
        """Whether it stands nowhere else."""
        return self.closing == self.times


class ShapeTally:
    """The count over all files of one run.

    Args:
        watched: marks of kinds of which the last line is wanted.
    """

    def __init__(self, watched: Set[int] = frozenset()) -> None:
        self.shapes: dict[int, ShapeCount] = {}
        self.left_out = 0
        """Lines that were not looked at, since there are too many kinds."""
        self.files = 0
        self._watched = watched
        self._of_key: dict[int, tuple[ShapeCount, ...]] = {}
        self._lines = 0
        """Of the files before."""
        self._here = 0
        """Lines of the file at hand."""
        self._width = 1
        """Lines of a bucket."""
        self._tail = deque[int](maxlen=CLOSING_LINES)

    def add(self, block: bytes, number: int, line_at: LineAt, *, within: bool, ends: bool) -> None:
        """Count the lines of a block.

        Args:
            block: without colours.
            number: of its first line in the file.
            line_at: makes a line of the file.
            within: its first line began in a block before, and was counted there.
            ends: it is the file's last, or last but one.
        """
        keys = coarse_keys(block)
        if within:
            keys[0] = _BLANK
        if not block or block.endswith(b"\n"):
            keys.pop()
        counted, last = Counter(keys), dict(zip(keys, count()))
        lines: list[bytes] = []
        if self._wants_more(ends=ends) and (new := [key for key in counted if key not in self._of_key]):
            lines = block.split(b"\n")
            first = dict(zip(reversed(keys), reversed(range(len(keys))), strict=False))
            for key in new:
                if self._wants_more(ends=ends):
                    self._of_key[key] = self._look_at(lines[first[key]], number + first[key], line_at, ends=ends)
        for key, times in counted.items():
            known = self._of_key.get(key)
            if known is None:
                self.left_out += times
                continue
            for shape_count in known:
                shape_count.times += times
                if shape_count.mark in self._watched:
                    lines = lines or block.split(b"\n")
                    latest = line_at(lines[last[key]].rstrip(b"\r").rpartition(b"\r")[2], number + last[key])
                    shape_count.last = max(latest, shape_count.last or latest, key=lambda line: line.order)
        self._note_places(keys, self._lines + number - 1)
        self._tail.extend(key for key in keys[-CLOSING_LINES:] if key != _BLANK)
        self._here = number - 1 + len(keys)

    def end_file(self) -> None:
        """Take note that the file is over."""
        for key in self._tail:
            for shape_count in self._of_key.get(key, ()):
                shape_count.closing += 1
        self._tail.clear()
        self._lines += self._here
        self._here = 0
        self.files += 1

    def kind_of(self, text: str) -> ShapeCount | None:
        """Find the count of the lines in the run that are of the same kind as this one."""
        return self.shapes.get(mark_of(shape_of(text)))

    def is_even(self, shape: ShapeCount) -> bool:
        """Whether lines of a kind recur in equal distances throughout the run, or one of its files, as a training's steps do."""
        places = [place for place in range(_BUCKETS) if shape.buckets >> place & 1]
        if len(places) < MIN_EVEN_BUCKETS or shape.times < MIN_EVEN_BUCKETS:
            return False
        span = places[-1] - places[0]
        mean = span / (len(places) - 1)
        widest = max(after - before for before, after in pairwise(places))
        return widest <= max(2, _MAX_GAP * mean) and span * self._width * 2 * self.files >= self._lines

    def goes_on_behind(self, order: int) -> bool:
        """Whether lines that recur evenly still do so clearly behind that line of the run."""
        bucket = order // self._width
        return any(shape.buckets >> (bucket + 1) and self.is_even(shape) for shape in self.shapes.values())

    def _wants_more(self, *, ends: bool) -> bool:
        return len(self._of_key) < MAX_KEYS * (MORE_AT_THE_END if ends else 1)

    def _look_at(self, piece: bytes, number: int, line_at: LineAt, *, ends: bool) -> tuple[ShapeCount, ...]:
        found: dict[int, ShapeCount] = {}
        for part in piece.split(b"\r", MAX_PARTS)[:MAX_PARTS]:
            line = line_at(part, number) if part else None
            shape = shape_of(line.text) if line else ""
            if not line or not shape:
                continue
            mark = mark_of(shape)
            known = self.shapes.get(mark)
            if known is None and len(self.shapes) < MAX_SHAPES * (MORE_AT_THE_END if ends else 1):
                line = msgspec.structs.replace(line, text=line.text[:MAX_SHAPED_TEXT])
                known = self.shapes[mark] = ShapeCount(mark, line)
            if known:
                found[mark] = known
            else:
                self.left_out += 1
        return tuple(found.values())

    def _note_places(self, keys: Sequence[int], before: int) -> None:
        """Note in which parts of the run they stand. before: lines of the run before them."""
        while before + len(keys) > _BUCKETS * self._width:
            self._width *= 2
            for shape_count in self.shapes.values():
                shape_count.buckets = _halved(shape_count.buckets)
        at = 0
        while at < len(keys):
            bucket, into = divmod(before + at, self._width)
            end = at + self._width - into
            bit = 1 << bucket
            for key in set(keys[at:end]):
                for shape_count in self._of_key.get(key, ()):
                    shape_count.buckets |= bit
            at = end


_BLANK: Final = hash(b"")


def _halved(buckets: int) -> int:
    """Put each two neighbouring bits together."""
    return int(f"{buckets | buckets >> 1:0{_BUCKETS}b}"[1::2], 2)


# --- shapes -----------------------------------------------------------------------------------------------------------


def coarse_keys(block: bytes) -> list[int]:
    """Make of each line in a block a key that lines of one shape mostly share, at a hundredth of the shape's cost."""
    return list(map(hash, block.translate(None, _DROPPED).split(b"\n")))


def shape_of(text: str) -> str:
    """Return the shape of a line without labels; "" where nothing stays of it.

    Args:
        text: as it stands behind the labels of launchers and the timestamps of collectors.
    """
    return _SIGNS.sub(" ", _VARYING.sub("0", text[:MAX_SHAPED_TEXT])).strip()


def mark_of(shape: str) -> int:
    """Return the number by which a shape is known in every process, and from which nobody reads it."""
    return int.from_bytes(hashlib.blake2b(shape.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1
