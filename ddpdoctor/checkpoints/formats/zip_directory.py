"""The structure of a zip archive: end record, directory, local headers. Strict: whatever two readers could read
differently is refused, since what we look at must be what torch will load.

The standard library's zipfile reads archives too, but forgives, and hides where things stand.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from ddpdoctor.base.text import clip_middle, has_unseen
from ddpdoctor.checkpoints.errors import Damaged, NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection

END = Struct("<4sHHHHLLH")
LOCATOR = Struct("<4sLQL")
END64 = Struct("<4sQHHLLQQQQ")
ENTRY = Struct("<4sHHHHHHLLLHHHHHLL")
LOCAL = Struct("<4sHHHHHLLLHH")
END_SIGNATURE, LOCATOR_SIGNATURE, END64_SIGNATURE = b"PK\5\6", b"PK\6\7", b"PK\6\6"
ENTRY_SIGNATURE, LOCAL_SIGNATURE, DESCRIPTOR_SIGNATURE = b"PK\1\2", b"PK\3\4", b"PK\7\x08"
SPLIT_SIGNATURE = DESCRIPTOR_SIGNATURE
"""With which the first part of a split archive begins."""
STORED, DEFLATED = 0, 8
HAS_DESCRIPTOR = 8
_ENCRYPTED, _PATCHED = 0x2041, 0x20
"""Flags: each of three ways to encrypt, and differences to another file instead of contents."""
_UNREADABLE = _ENCRYPTED | _PATCHED
_FOLDER = 0x10
"""Attribute: torch then reads nothing, and takes whatever is in memory for the contents."""
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
"""In place of a number too large for its field: look in the zip64 extra field or end record."""

_SHORT_ENTRY = Struct("<4s4xHH4xLLLHHHH2xLL")
_SHORT_LOCAL = Struct("<4s2xHH4x12xHH")
_WINDOW_BYTES = 1 << 18
"""Local headers nearer together than a fraction of this are read many at a time."""

_MAX_DIRECTORY_BYTES = 1 << 26
"""Half a million records. It is read as a whole."""


class DirectoryPlace(NamedTuple):
    """The place where a directory is said to be, and where its end record begins."""

    offset: int
    size: int
    position: int


def find_directory(read: Callable[[int, int], bytes], size: int) -> DirectoryPlace | None:
    """Find an archive's directory, forgiving what read_directory() refuses; None without an end record.

    read: gives so many bytes at some offset of the file, which is `size` bytes long, fewer where it ends.
    """
    start = max(0, size - END.size - FULL16)
    tail = read(start, END.size + FULL16)
    at = tail.rfind(END_SIGNATURE, 0, len(tail) - END.size + len(END_SIGNATURE))
    if at < 0:
        return None
    length, offset = END.unpack_from(tail, at)[5:7]
    position = start + at
    before = position - END64.size - LOCATOR.size
    ends64 = read(before, END64.size + LOCATOR.size) if before >= 0 else b""
    if ends64.startswith(END64_SIGNATURE) and ends64.startswith(LOCATOR_SIGNATURE, END64.size):
        # torch always writes these, too. Where they stand is looked at, not where they say that they stand: in a file of
        # several archives that is counted from the last one's beginning.
        length, offset = END64.unpack_from(ends64)[8:]
        position = before
    elif FULL32 in (length, offset):
        return None
    return DirectoryPlace(offset, length, position)


def names_and_flags(directory: bytes) -> list[tuple[str, int]]:
    """Each record's, as far as the directory can be read."""
    found = []
    at = 0
    while at + ENTRY.size <= len(directory) and directory.startswith(ENTRY_SIGNATURE, at):
        _, _, _, flags, *_, name_length, extra_length, comment_length, _, _, _, _ = ENTRY.unpack_from(directory, at)
        name_at = at + ENTRY.size
        found.append((directory[name_at : name_at + name_length].decode("utf-8", "replace"), flags))
        at = name_at + name_length + extra_length + comment_length
    return found


class CutOff(Damaged):
    """The archive's end, where its directory is, is missing."""


class ZipRecord(NamedTuple):
    """One file in the archive. Offsets are from the file's start, sizes in bytes.

    name: without the first folder. offset: of the data; stored: its length there; size: its length once inflated.
    entry: where in the directory's bytes its entry begins.
    """

    name: str
    header: int
    offset: int
    stored: int
    size: int
    crc: int
    method: int
    flags: int
    entry: int


class Directory(NamedTuple):
    """offset, size: of the directory in the file. zip64: it has a zip64 end record. records: in the directory's order."""

    offset: int
    size: int
    zip64: bool
    comment: bytes
    prefix: str
    records: tuple[ZipRecord, ...]


def read_directory(source: ByteSource) -> Directory:
    """Read everything that is said of the records, and check it; Damaged is raised where it makes no sense.

    Raises:
        Refused: no checkpoint has so large a directory, or readers could understand it differently.
    """
    offset, size, count, zip64, comment = _read_end(source)
    if size > _MAX_DIRECTORY_BYTES:
        raise Refused(
            f"The zip archive's directory has {size:,} bytes, for {count:,} records: no checkpoint needs that"
        )
    data = source.read_at(offset, size)
    with without_collection():
        entries = _read_entries(data, count)
        prefix, names = _check_names([entry[1] for entry in entries])
        records = _locate_data(source, entries, names, offset)
    return Directory(offset, size, zip64, comment, prefix.decode("utf-8", "surrogateescape"), records)


def _read_end(source: ByteSource) -> tuple[int, int, int, bool, bytes]:
    # The directory's offset, size and number of entries, whether a zip64 record says so, and the archive's comment.
    tail_length = min(source.size, END.size + FULL16)
    tail = source.read_at(source.size - min(END.size, tail_length), min(END.size, tail_length))
    if not (tail.startswith(END_SIGNATURE) and tail.endswith(b"\0\0")):
        tail = source.read_at(source.size - tail_length, tail_length)
    at = tail.rfind(END_SIGNATURE, 0, len(tail) - END.size + len(END_SIGNATURE))
    if at < 0:
        if not tail.strip(b"\0"):
            raise CutOff("Its end is nothing but zeros: a download or copy of it was broken off")
        raise CutOff(f"Truncated: it ends after {source.size:,} bytes, without the directory that ends a zip archive")
    _, disk, first_disk, here, count, size, offset, comment_length = END.unpack_from(tail, at)
    position = source.size - len(tail) + at
    comment = tail[at + END.size :]
    if len(comment) != comment_length:
        raise Damaged(
            f"The zip archive ends at byte {position + END.size + comment_length:,}, the file at {source.size:,}"
        )
    zip64 = False
    if position >= LOCATOR.size:
        locator = source.read_at(position - LOCATOR.size, LOCATOR.size)
        if locator.startswith(LOCATOR_SIGNATURE):
            zip64 = True
            numbers = (disk, first_disk, here, count, size, offset)
            position = LOCATOR.unpack(locator)[2]
            disk, first_disk, here, count, size, offset = _read_end64(source, position, numbers)
    if not zip64 and FULL32 in (size, offset):
        raise Damaged("The zip archive's directory lies beyond 4 GiB, and the zip64 record that says where is missing")
    if disk or first_disk or here != count:
        raise Refused("The file is one part of a zip archive in several parts")
    if offset + size != position:
        raise Damaged(
            f"The zip archive's directory should end at byte {offset + size:,}, but its end record begins at {position:,}"
        )
    if count == 0:
        raise Damaged("The zip archive is empty")
    if size < count * ENTRY.size:
        raise Damaged(f"The zip archive's directory of {size:,} bytes is too short for {count:,} records")
    return offset, size, count, zip64, comment


def _read_end64(
    source: ByteSource, position: int, short_numbers: tuple[int, int, int, int, int, int]
) -> tuple[int, int, int, int, int, int]:
    # disk, disk of the directory, records on it, records, directory's size and offset. short_numbers: the same in the other end
    # record, which must not disagree.
    if position + END64.size > source.size:
        raise Damaged(f"The zip64 end record should be at byte {position:,}, the file ends at {source.size:,}")
    record = source.read_at(position, END64.size)
    signature, length, _, _, *numbers = END64.unpack(record)
    if signature != END64_SIGNATURE:
        raise Damaged(f"The zip64 end record should be at byte {position:,}, but something else is there")
    if length != END64.size - 12:
        raise Refused(f"The zip64 end record is {length + 12} bytes long instead of {END64.size}")
    for short, full, limit in zip(short_numbers, numbers, (FULL16,) * 4 + (FULL32,) * 2, strict=True):
        if short not in (full, limit):
            raise Refused(f"The zip archive's two end records disagree: {short:,} and {full:,}")
    disk, first_disk, here, count, size, offset = numbers
    return disk, first_disk, here, count, size, offset


_Entry = tuple[int, bytes, int, int, int, int, int, int]
"""A directory entry whose local header hasn't been read yet: header, name, stored, size, crc, method, flags, entry."""


def _read_entries(data: bytes, count: int) -> list[_Entry]:
    # The entries, in order. The loops here and in _locate_data take most of the time that a big checkpoint takes.
    unpack = _SHORT_ENTRY.unpack_from
    entries: list[_Entry] = []
    append = entries.append
    fixed_size = ENTRY.size
    at = 0
    while len(entries) < count:
        try:
            (
                signature,
                flags,
                method,
                crc,
                stored,
                size,
                name_length,
                extra_length,
                comment_length,
                disk,
                attributes,
                header,
            ) = unpack(data, at)
        except StructError:
            break
        if signature != ENTRY_SIGNATURE:
            raise Damaged(f"Entry {len(entries):,} of the zip archive's directory is not one")
        name_at = at + fixed_size
        extra_at = name_at + name_length
        name = data[name_at:extra_at]
        if stored == FULL32 or size == FULL32 or header == FULL32:
            size, stored, header = _large_numbers(data[extra_at : extra_at + extra_length], name, size, stored, header)
        if flags & _UNREADABLE or disk or (method and method != DEFLATED) or (attributes & _FOLDER and size):
            raise Refused(_unreadable(name, flags, method, disk))
        if stored != size and not method:
            raise Damaged(
                f"{_printable(name)} is not compressed, and yet is said to have both {stored:,} and {size:,} bytes"
            )
        append((header, name, stored, size, crc, method, flags, at))
        at = extra_at + extra_length + comment_length
    if at != len(data):
        raise Damaged(f"The zip archive's directory of {len(data):,} bytes does not end where its {count:,} entries do")
    return entries


def _large_numbers(extra: bytes, name: bytes, size: int, stored: int, header: int) -> tuple[int, int, int]:
    # The numbers that didn't fit their fields, from the zip64 extra field, where they stand in this order.
    field = extra_field(extra, 1)
    numbers = [size, stored, header]
    at = 0
    for which, number in enumerate(numbers):
        if number == FULL32:
            if len(field) < at + 8:
                raise Damaged(f"The entry of {_printable(name)} lacks its zip64 numbers")
            numbers[which] = int.from_bytes(field[at : at + 8], "little")
            at += 8
    return numbers[0], numbers[1], numbers[2]


def extra_field(extra: bytes, wanted: int) -> bytes:
    """The contents of the first extra field of that number, b"" if there is none."""
    at = 0
    while at + 4 <= len(extra):
        number, length = extra[at] | extra[at + 1] << 8, extra[at + 2] | extra[at + 3] << 8
        if number == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return b""


def _unreadable(name: bytes, flags: int, method: int, disk: int) -> str:
    if flags & _ENCRYPTED:
        return f"{_printable(name)} is encrypted"
    if method not in (STORED, DEFLATED):
        return f"{_printable(name)} is compressed by method {method}, which torch can't read either"
    if disk:
        return "The file is one part of a zip archive in several parts"
    return f"{_printable(name)} is marked as a patch or a folder, and yet it has contents"


def _check_names(names: list[bytes]) -> tuple[bytes, list[str]]:
    # The first folder, and the names without it.
    folder, slash, _ = names[0].partition(b"/")
    if not slash:
        raise NotACheckpoint(
            f"A zip archive, but torch.save did not write it: {_printable(names[0])} lies in no folder"
        )
    prefix = folder + slash
    # torch looks names up without regard to case, so that names which differ in nothing else are the same to it.
    joined = b"\n" + b"\n".join(names)
    if joined.count(b"\n") != len(names) or b"\0" in joined:
        raise Refused("A record's name has a line break or a zero byte in it, which readers understand differently")
    if joined.count(b"\n" + prefix) != len(names):
        other = next(name for name in names if not name.startswith(prefix))
        raise Refused(f"Its records lie in different folders, {_printable(prefix)} and that of {_printable(other)}")
    lowered = joined.lower() + b"\n"
    if len(set(names)) != len(names) or len(set(lowered[1:-1].split(b"\n"))) != len(names):
        # In TorchScript's code, classes whose names differ in case alone are nothing unusual.
        known: set[bytes] = set()
        for name in names:
            key = name if b"/code/" in name else name.lower()
            if key in known:
                raise Refused(f"Two records are named {_printable(name)}: which is loaded depends on the reader")
            known.add(key)
    if lowered.count(b"/data.pkl\n") > 1:
        raise Refused("It holds more than one data.pkl: which is loaded depends on the reader")
    return prefix, joined.decode("utf-8", "surrogateescape").split("\n" + prefix.decode("utf-8", "surrogateescape"))[1:]


def _locate_data(source: ByteSource, entries: list[_Entry], names: list[str], limit: int) -> tuple[ZipRecord, ...]:
    # The records, in the directory's order, with their data's offset, which only the local headers know. limit: where the
    # directory begins, and all records must have ended.
    unpack = _SHORT_LOCAL.unpack_from
    read = source.read_at
    fixed_size = LOCAL.size
    offsets = [0] * len(entries)
    order = sorted(range(len(entries)), key=[entry[0] for entry in entries].__getitem__)
    last = len(order) - 1
    window = b""
    start = end = reached = 0
    name = b""
    for place, number in enumerate(order):
        header, name, stored, _, _, method, _, _ = entries[number]
        length = len(name)
        if header < reached:
            break
        if header + fixed_size + length > end:
            start = header
            if entries[order[place + 8 if place + 8 < last else last]][0] - start < _WINDOW_BYTES:
                window = read(start, max(0, min(_WINDOW_BYTES, limit - start)))
            else:
                window = read(start, fixed_size + length)
            end = start + len(window)
            if header + fixed_size + length > end:
                reached = limit + 1
                break
        at = header - start
        signature, local_flags, local_method, name_length, extra_length = unpack(window, at)
        if signature != LOCAL_SIGNATURE:
            raise Damaged(f"{_printable(name)} should begin at byte {header:,}, but something else is there")
        name_at = at + fixed_size
        if name_length != length or local_method != method or window[name_at : name_at + length] != name:
            raise Refused(
                f"The record at byte {header:,} is {_printable(name)} in the directory, but not in its own header"
            )
        if local_flags & _ENCRYPTED:
            raise Refused(f"{_printable(name)} is encrypted")
        offsets[number] = offset = header + fixed_size + length + extra_length
        reached = offset + stored
    else:
        place = len(order)
    if reached > limit:
        raise Damaged(f"{_printable(name)} reaches beyond the end of the records at byte {limit:,}")
    if place < len(order):
        raise Refused(f"{_printable(name)} overlaps another record")
    make = tuple.__new__
    return tuple(
        [
            make(ZipRecord, (name, header, offset, stored, size, crc, method, flags, at))
            for name, (header, _, stored, size, crc, method, flags, at), offset in zip(
                names, entries, offsets, strict=True
            )
        ]
    )


def _printable(name: bytes) -> str:
    """A record's name as it may be shown: it can hold anything, and be 65,535 bytes long."""
    text = name.decode("utf-8", "replace")
    return clip_middle(text if text.isprintable() and not has_unseen(text) else ascii(text), 80)
