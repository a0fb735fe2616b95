"""The records that are still whole in a zip archive that was cut off: its directory is gone, but each record has a header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ddpdoctor.base.text import plural
from ddpdoctor.checkpoints.errors import CheckpointError
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.layouts import DATA, MAX_PICKLE_BYTES
from ddpdoctor.checkpoints.formats.zip_directory import (
    DESCRIPTOR_SIGNATURE,
    FULL32,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_SIGNATURE,
    STORED,
    extra_field,
)
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.tensors import element_size

_MAX_SEARCHED_BYTES = 1 << 26
"""How far the end of a record is looked for of which nothing says where it is."""

_MAX_RECORDS = 200_000
"""So many are looked at: enough for any model, and seconds where a file was made to keep us busy."""


class _Record(NamedTuple):
    """The place of its data in the file, and how long it should be, None where that isn't known."""

    name: str
    offset: int
    length: int | None
    method: int


def survivors(source: ByteSource) -> str:
    """Say in half a sentence what is left: "of its 390 storages, 12 are whole"."""
    needed: dict[str, int] = {}
    whole: set[str] = set()
    for record in _walk(source, needed):
        if record.length is None or record.offset + record.length > source.size:
            break
        whole.add(record.name)
        if record.name == DATA and record.method == STORED and record.length <= MAX_PICKLE_BYTES:
            with suppress(CheckpointError):
                storages = scan(source.read_at(record.offset, record.length)).storages
                needed.update({f"data/{storage.key}": storage.count * element_size(storage) for storage in storages})
    if not needed:
        return "nothing of its tensors can be made out in what is left"
    count = len(whole & needed.keys())
    if count == len(needed):
        return f"{plural(count, 'storage')}, all that its tensors need, are whole"
    if not count:
        return f"of its {plural(len(needed), 'storage')}, none is whole"
    return f"of its {plural(len(needed), 'storage')}, {count} {'is' if count == 1 else 'are'} whole"


def _walk(source: ByteSource, needed: dict[str, int]) -> Iterator[_Record]:
    """Go from header to header. needed: lengths of records, as far as the pickle told them by now."""
    at = 0
    for _ in range(_MAX_RECORDS):
        if at + LOCAL.size > source.size:
            return
        fixed = source.read_at(at, LOCAL.size)
        signature, _, flags, method, _, _, _, stored, _, name_length, extra_length = LOCAL.unpack(fixed)
        offset = at + LOCAL.size + name_length + extra_length
        if signature != LOCAL_SIGNATURE or offset > source.size:
            return
        name = source.read_at(at + LOCAL.size, name_length).decode("utf-8", "replace").partition("/")[2]
        length: int | None = stored
        if stored == FULL32:
            large = extra_field(source.read_at(offset - extra_length, extra_length), 1)
            length = int.from_bytes(large[8:16], "little")
        elif flags & HAS_DESCRIPTOR and not stored:
            length = needed[name] if name in needed and method == STORED else _search_end(source, offset)
        # Where a file was only made long enough, zeros stand in place of the descriptor.
        end = source.size if length is None or not flags & HAS_DESCRIPTOR else offset + length
        if not DESCRIPTOR_SIGNATURE.startswith(_there(source, end, 4)):
            return
        yield _Record(name, offset, length, method)
        if length is None:
            return
        end = offset + length
        ends = [end + step for step in ((16, 24, 12, 20) if flags & HAS_DESCRIPTOR else (0,))]
        at = next((end for end in ends if _there(source, end, 4) == LOCAL_SIGNATURE), source.size)


def _there(source: ByteSource, at: int, length: int) -> bytes:
    """As many of these bytes as the file has."""
    return source.read_at(at, max(0, min(length, source.size - at)))


def _search_end(source: ByteSource, offset: int) -> int | None:
    """The length of a record, from a descriptor behind it that repeats the length; None if there is none near."""
    before = b""
    at = offset
    for piece in source.pieces(offset, min(_MAX_SEARCHED_BYTES, source.size - offset)):
        data = before + piece
        start = at - len(before)
        found = data.find(DESCRIPTOR_SIGNATURE)
        while found >= 0:
            length = start + found - offset
            if data[found + 8 : found + 12] == length.to_bytes(4, "little"):
                return length
            found = data.find(DESCRIPTOR_SIGNATURE, found + 1)
        before = data[-11:]
        at += len(piece)
    return None
