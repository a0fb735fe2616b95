"""How records of a zip archive are replaced without moving any other: in their place, or behind the archive's old end."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from struct import Struct

from ddpdoctor.checkpoints.changes import Patch
from ddpdoctor.checkpoints.reading import Source
from ddpdoctor.checkpoints.zip_records import (
    DESCRIPTOR_SIGNATURE,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    ENTRY,
    FULL16,
    FULL32,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR,
    LOCATOR_SIGNATURE,
    STORED,
    Directory,
    Record,
)

_UTF8 = 0x800
_DESCRIPTOR, _DESCRIPTOR64 = Struct("<LLL"), Struct("<LQQ")
_CRC_IN_LOCAL, _CRC_IN_ENTRY = 14, 16
_PADDING = b"FB"
"""The extra field that torch aligns with."""
_ZIP64_VERSION = 45
_BLOCK = 256
"""Bytes that are compared at once: what differs less far apart becomes one patch."""


def patch(source: Source, directory: Directory, record: Record, new: bytes) -> list[Patch] | None:
    """What makes `new` the record's contents, checksums included; None if it doesn't fit exactly where the old ones are.

    A checksum of 0 stays 0: whoever wrote the file left them all out, and torch never looks.
    """
    if record.method != STORED or len(new) != record.stored:
        return None
    patches = list(differences(source.read_at(record.offset, record.stored), new, record.offset))
    if not record.crc:
        return patches
    old_crc, new_crc = record.crc.to_bytes(4, "little"), zlib.crc32(new).to_bytes(4, "little")
    places = [directory.offset + record.entry + _CRC_IN_ENTRY]
    in_local = source.read_at(record.header + _CRC_IN_LOCAL, 4)
    if in_local == old_crc:
        places.append(record.header + _CRC_IN_LOCAL)
    elif not record.flags & HAS_DESCRIPTOR or in_local != bytes(4):
        return None
    if record.flags & HAS_DESCRIPTOR:
        descriptor = _checksum_in_descriptor(source, directory, record)
        if descriptor is None:
            return None
        places.append(descriptor)
    return patches + [Patch(place, old_crc, new_crc) for place in places if old_crc != new_crc]


def differences(old: bytes, new: bytes, offset: int) -> Iterator[Patch]:
    """Patches that turn `old`, which stands at `offset`, into `new`, of the same length."""
    first = -1
    for at in range(0, len(old) + _BLOCK, _BLOCK):
        if at < len(old) and old[at : at + _BLOCK] != new[at : at + _BLOCK]:
            first = at if first < 0 else first
        elif first >= 0:
            start, end = first, min(at, len(old))
            while old[start] == new[start]:
                start += 1
            while old[end - 1] == new[end - 1]:
                end -= 1
            yield Patch(offset + start, old[start:end], new[start:end])
            first = -1


def append(source: Source, directory: Directory, new: Mapping[Record, bytes], alignment: int) -> bytes:
    """What stands behind the old end afterwards: the new records, a directory of all records, and its end records.

    The entries of the others are the same bytes as before, and all keep their order: torch takes the first one's folder
    for everybody's. Cutting the file back to its old length brings the old directory back.
    """
    entries = source.read_at(directory.offset, directory.size)
    out = bytearray()
    pieces = []
    kept = 0
    for record in sorted(new, key=lambda one: one.entry):
        header = source.size + len(out)
        crc = zlib.crc32(new[record]) if record.crc else 0
        entry, entry_end = _entry(entries, record, header, len(new[record]), crc)
        out += local_header(_name(entries, record), record, header, len(new[record]), crc, alignment)
        out += new[record]
        pieces += [entries[kept : record.entry], entry]
        kept = entry_end
    pieces.append(entries[kept:])
    listing = b"".join(pieces)
    offset = source.size + len(out)
    out += listing
    out += end_records(offset, len(listing), len(directory.records), directory.zip64, directory.comment)
    return bytes(out)


def local_header(name: bytes, record: Record, header: int, size: int, crc: int, alignment: int) -> bytes:
    """The header of a stored record at `header`, padded so that the data behind it is aligned."""
    padding = -(header + LOCAL.size + len(name) + 4) % alignment
    extra = _PADDING + padding.to_bytes(2, "little") + b"Z" * padding
    flags = record.flags & _UTF8
    fixed = LOCAL.pack(LOCAL_SIGNATURE, 0, flags, STORED, 0, 0, crc, size, size, len(name), len(extra))
    return fixed + name + extra


def end_records(offset: int, size: int, count: int, zip64: bool, comment: bytes) -> bytes:
    """The archive's end, for a directory of `count` entries that stands directly before. All but `count` in bytes."""
    large = b""
    if zip64 or count >= FULL16 or offset >= FULL32 or size >= FULL32:
        numbers = (0, 0, count, count, size, offset)
        large = END64.pack(END64_SIGNATURE, END64.size - 12, _ZIP64_VERSION, _ZIP64_VERSION, *numbers)
        large += LOCATOR.pack(LOCATOR_SIGNATURE, 0, offset + size, 1)
    short = (min(count, FULL16), min(count, FULL16), min(size, FULL32), min(offset, FULL32))
    return large + END.pack(END_SIGNATURE, 0, 0, *short, len(comment)) + comment


def without_extra_field(extra: bytes, unwanted: int) -> bytes:
    """The extra fields but those of that number."""
    kept = bytearray()
    at = 0
    while at + 4 <= len(extra):
        end = at + 4 + int.from_bytes(extra[at + 2 : at + 4], "little")
        if int.from_bytes(extra[at : at + 2], "little") != unwanted:
            kept += extra[at:end]
        at = end
    return bytes(kept)


def _entry(entries: bytes, record: Record, header: int, size: int, crc: int) -> tuple[bytes, int]:
    """The directory's entry of the record, now stored at `header`, and where the old one ends."""
    fields = list(ENTRY.unpack_from(entries, record.entry))
    name_length, extra_length, comment_length = fields[10:13]
    name_end = record.entry + ENTRY.size + name_length
    extra_end = name_end + extra_length
    end = extra_end + comment_length
    extra = without_extra_field(entries[name_end:extra_end], 1)
    if header >= FULL32:
        extra = b"\1\0\x08\0" + header.to_bytes(8, "little") + extra
        fields[2] = max(fields[2], _ZIP64_VERSION)
    fields[3:5] = record.flags & _UTF8, STORED
    fields[7:10] = crc, size, size
    fields[11], fields[16] = len(extra), min(header, FULL32)
    name = entries[record.entry + ENTRY.size : name_end]
    return ENTRY.pack(*fields) + name + extra + entries[extra_end:end], end


def _name(entries: bytes, record: Record) -> bytes:
    start = record.entry + ENTRY.size
    return entries[start : start + ENTRY.unpack_from(entries, record.entry)[10]]


def _checksum_in_descriptor(source: Source, directory: Directory, record: Record) -> int | None:
    """Where the checksum stands in what follows the data: with or without a signature, short or zip64, or None."""
    place = record.offset + record.stored
    data = source.read_at(place, min(len(DESCRIPTOR_SIGNATURE) + _DESCRIPTOR64.size, directory.offset - place))
    for sign in (DESCRIPTOR_SIGNATURE, b""):
        for form in (_DESCRIPTOR, _DESCRIPTOR64):
            if data.startswith(sign + form.pack(record.crc, record.stored, record.stored)[: form.size]):
                return place + len(sign)
    return None
