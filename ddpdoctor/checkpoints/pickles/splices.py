"""Editing a pickle as text is edited: bytes of it are replaced, and everything else stays as it was, byte for byte."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ddpdoctor.checkpoints.pickles.nodes import Text

_BINPUT, _LONG_BINPUT, _BINGET, _LONG_BINGET, _BININT1, _BININT2, _BININT = b"qrhjKMJ"


class Splice(NamedTuple):
    """The bytes from `start` to `end` become `new`."""

    start: int
    end: int
    new: bytes


class Wording(NamedTuple):
    """One occurrence of a text, at `position`, is to read `new`. Its other occurrences keep what they say."""

    text: Text
    position: int
    new: str


def apply(data: bytes, splices: Iterable[Splice], frames: Sequence[tuple[int, int]] = ()) -> bytes:
    """The pickle with these splices, which must not overlap. `frames` (of the machine's Program) are kept true.

    Raises:
        AssertionError: they overlap.

    >>> apply(b"abc", [Splice(1, 2, b"--")])
    b'a--c'
    """
    ordered = sorted(splices)
    ordered = sorted([*ordered, *_frame_lengths(frames, ordered)])
    pieces, done = [], 0
    for start, end, new in ordered:
        if start < done:
            raise AssertionError(f"splices overlap at byte {start}")
        pieces += [data[done:start], new]
        done = end
    return b"".join([*pieces, data[done:]])


def _frame_lengths(frames: Sequence[tuple[int, int]], splices: Sequence[Splice]) -> list[Splice]:
    """The splices that keep the frames' lengths true. A frame may be a lie, and there may be millions, so nothing is searched
    twice."""
    starts = [splice.start for splice in splices]
    growths = [0, *accumulate(len(splice.new) - (splice.end - splice.start) for splice in splices)]
    lengths = []
    for begin, length in frames:
        growth = growths[bisect_left(starts, begin + length)] - growths[bisect_left(starts, begin)]
        if growth:
            lengths.append(Splice(begin - 8, begin, struct.pack("<Q", max(0, length + growth))))
    return lengths


def reword(data: bytes, wordings: Iterable[Wording]) -> list[Splice]:
    """The splices that let these occurrences, and no others, read otherwise.

    A string may stand in the pickle once and be fetched from the memo elsewhere, by a tensor's location as well as by
    the user's own data. What stands there keeps its place in the memo, so that no number in it moves; a fetch that
    must not follow the change gets the string written out.
    """
    by_text: dict[int, tuple[Text, dict[int, str]]] = {}
    for text, position, new in wordings:
        by_text.setdefault(id(text), (text, {}))[1][position] = new
    splices = []
    for text, wanted in by_text.values():
        stands = wanted.get(text.start, text.value)
        if stands != text.value:
            splices.append(Splice(text.start, text.end, encoded(data, text, stands)))
        for use in text.uses:
            reads = wanted.get(use, text.value)
            if reads != stands:
                length = 2 if data[use] == _BINGET else 5
                splices.append(Splice(use, use + length, encoded(data, text, reads)))
    return splices


_TEXT_OPCODES: Mapping[int, str] = {
    ord("X"): "<I",
    ord("T"): "<I",
    ord("U"): "<B",
    0x8C: "<B",
    0x8D: "<Q",
}
"""Opcode to the format of its length."""


def encoded(data: bytes, like: Text, value: str) -> bytes:
    """The opcode for `value`, of the same class as that for `like`: some readers know few classes."""
    code = data[like.start]
    raw = value.encode("latin-1" if code in b"UT" else "utf-8", "surrogatepass")
    if code in (0x55, 0x8C) and len(raw) > 0xFF:
        code = ord("T") if code == 0x55 else ord("X")
    return bytes([code]) + struct.pack(_TEXT_OPCODES[code], len(raw)) + raw


def fit(data: bytes, length: int, frames: Sequence[tuple[int, int]] = ()) -> bytes | None:
    """The pickle brought to exactly that length without a change of meaning; None where that can't be.

    Before STOP the finished object may be put into the memo again and again: 2 or 5 bytes a time. That leaves 1 and 3,
    for which a number or a memo entry is written with more bytes than it needs.
    """
    slack = length - len(data)
    if slack == 0:
        return data
    splices = []
    if slack in (1, 3):
        widened = _widened(data, slack)
        if widened is None:
            return None
        splices.append(widened)
        slack = 0
    if slack < 0:
        return None
    long = max(count for count in range(slack // 5 + 1) if (slack - 5 * count) % 2 == 0)
    puts = bytes([_LONG_BINPUT, 0, 0, 0, 0]) * long + bytes([_BINPUT, 0]) * ((slack - 5 * long) // 2)
    splices.append(Splice(len(data) - 1, len(data) - 1, puts))
    return apply(data, splices, frames)


def _widened(data: bytes, by: int) -> Splice | None:
    import pickletools

    try:
        for opcode, argument, position in pickletools.genops(data):
            code = ord(opcode.code)
            if code == _BININT1:
                wide = struct.pack("<BH", _BININT2, argument) if by == 1 else struct.pack("<BI", _BININT, argument)
            elif by == 3 and code in (_BINPUT, _BINGET):
                wide = struct.pack("<BI", _LONG_BINPUT if code == _BINPUT else _LONG_BINGET, argument)
            else:
                continue
            assert position is not None
            return Splice(position, position + 2, wide)
    except UnicodeDecodeError:
        # pickletools expects names of classes in ASCII, Python itself does not.
        return None
    return None
