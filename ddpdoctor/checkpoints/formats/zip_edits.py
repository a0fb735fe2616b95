"""Replacing records of a zip archive without moving any other: in their place, or behind the archive's old end."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from struct import Struct

from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.layouts import Patch
from ddpdoctor.checkpoints.formats.zip_directory import (
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
    ZipRecord,
)

_UTF8 = 0x800
_DESCRIPTOR, _DESCRIPTOR64 = Struct("<LLL"), Struct("<LQQ")
_CRC_IN_LOCAL, _CRC_IN_ENTRY = 14, 16
_ZIP64_VERSION = 45
_BLOCK_BYTES = 256
"""Compared at once: what differs less far apart becomes one patch."""


def patch(source: ByteSource, directory: Directory, record: ZipRecord, new: bytes) -> list[Patch] | None:
    """The patches that make `new` the record's contents, checksums included; None if it doesn't fit exactly where these are.

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
        length = find_descriptor(source, directory, record)
        if length is None:
            return None
        signed = length not in (_DESCRIPTOR.size, _DESCRIPTOR64.size)
        places.append(record.offset + record.stored + (len(DESCRIPTOR_SIGNATURE) if signed else 0))
    return patches + [Patch(place, old_crc, new_crc) for place in places if old_crc != new_crc]


def differences(old: bytes, new: bytes, offset: int) -> Iterator[Patch]:
    """Patches that turn `old`, which stands at `offset`, into `new`, of the same length."""
    first = -1
    for at in range(0, len(old) + _BLOCK_BYTES, _BLOCK_BYTES):
        if at < len(old) and old[at : at + _BLOCK_BYTES] != new[at : at + _BLOCK_BYTES]:
            first = at if first < 0 else first
        elif first >= 0:
            start, end = first, min(at, len(old))
            while old[start] == new[start]:
                start += 1
            while old[end - 1] == new[end - 1]:
                end -= 1
            yield Patch(offset + start, old[start:end], new[start:end])
            first = -1


def append(source: ByteSource, directory: Directory, new: Mapping[ZipRecord, bytes], alignment: int) -> bytes:
    """The bytes behind the old end: the new records, a directory of all records, and its end records.

    The entries of the others are the same bytes as before, and all keep their order: torch takes the first one's folder
    for everybody's. Cutting the file back to its old length brings the old directory back.
    """
    entries = source.read_at(directory.offset, directory.size)
    out = bytearray()
    pieces = []
    kept = 0
    for record in sorted(new, key=lambda record: record.entry):
        header = source.size + len(out)
        crc = zlib.crc32(new[record]) if record.crc else 0
        out += local_header(record_name(entries, record), record, header, len(new[record]), crc, alignment)
        out += new[record]
        pieces += [entries[kept : record.entry], stored_entry(entries, record, header, len(new[record]), crc)]
        kept = record.entry + ENTRY.size + sum(ENTRY.unpack_from(entries, record.entry)[10:13])
    pieces.append(entries[kept:])
    listing = b"".join(pieces)
    offset = source.size + len(out)
    out += listing
    out += end_records(offset, len(listing), len(directory.records), directory.zip64, directory.comment)
    return bytes(out)


def local_header(name: bytes, record: ZipRecord, header: int, size: int, crc: int, alignment: int) -> bytes:
    """The header of a stored record at `header`, padded so that the data behind it is aligned."""
    extra = padding(header + LOCAL.size + len(name), alignment)
    flags = record.flags & _UTF8
    fixed = LOCAL.pack(LOCAL_SIGNATURE, 0, flags, STORED, 0, 0, crc, size, size, len(name), len(extra))
    return fixed + name + extra


def padding(end: int, alignment: int) -> bytes:
    """The extra field, as torch writes it, after which a header that would end at byte `end` ends aligned."""
    length = -(end + 4) % alignment
    return b"FB" + length.to_bytes(2, "little") + b"Z" * length


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


def moved_entry(entries: bytes, record: ZipRecord, header: int) -> bytes:
    """The directory's entry of the record, which now begins at `header` and is otherwise as it was."""
    return _entry(entries, record, record._replace(header=header))


def stored_entry(entries: bytes, record: ZipRecord, header: int, size: int, crc: int) -> bytes:
    """The directory's entry of a record with new contents, written as local_header() says."""
    new = record._replace(header=header, stored=size, size=size, crc=crc, method=STORED, flags=record.flags & _UTF8)
    return _entry(entries, record, new)


def record_name(entries: bytes, record: ZipRecord) -> bytes:
    """The record's name with the first folder, as the file spells it."""
    start = record.entry + ENTRY.size
    return entries[start : start + ENTRY.unpack_from(entries, record.entry)[10]]


def _entry(entries: bytes, old: ZipRecord, new: ZipRecord) -> bytes:
    fields = list(ENTRY.unpack_from(entries, old.entry))
    name_length, extra_length, comment_length = fields[10:13]
    name_end = old.entry + ENTRY.size + name_length
    extra_end = name_end + extra_length
    extra = without_extra_field(entries[name_end:extra_end], 1)
    large = b"".join(number.to_bytes(8, "little") for number in (new.size, new.stored, new.header) if number >= FULL32)
    if large:
        extra = b"\1\0" + len(large).to_bytes(2, "little") + large + extra
        fields[2] = max(fields[2], _ZIP64_VERSION)
    fields[3:5] = new.flags, new.method
    fields[7:10] = new.crc, min(new.stored, FULL32), min(new.size, FULL32)
    fields[11], fields[16] = len(extra), min(new.header, FULL32)
    name = entries[old.entry + ENTRY.size : name_end]
    return ENTRY.pack(*fields) + name + extra + entries[extra_end : extra_end + comment_length]


def find_descriptor(source: ByteSource, directory: Directory, record: ZipRecord) -> int | None:
    """The length of what follows the data and repeats its checksum and sizes: with or without a signature, short or
    zip64, 12, 16, 20 or 24 bytes. None if nothing of the kind does."""
    place = record.offset + record.stored
    data = source.read_at(place, min(len(DESCRIPTOR_SIGNATURE) + _DESCRIPTOR64.size, directory.offset - place))
    for signature in (DESCRIPTOR_SIGNATURE, b""):
        for form in (_DESCRIPTOR64, _DESCRIPTOR):
            if form is _DESCRIPTOR and record.size > FULL32:
                continue
            descriptor = signature + form.pack(record.crc, record.stored, record.size)
            if data.startswith(descriptor):
                return len(descriptor)
    return None
