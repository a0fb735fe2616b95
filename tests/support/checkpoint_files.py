"""Checkpoint files for tests: saved by torch, repacked by other programs, and made up byte by byte."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.formats.layouts import Change
from ddpdoctor.checkpoints.formats.zip_directory import (
    DESCRIPTOR_SIGNATURE,
    END,
    END_SIGNATURE,
    ENTRY,
    ENTRY_SIGNATURE,
    LOCAL,
    LOCAL_SIGNATURE,
)


def changed(data: bytes, change: Change) -> bytes:
    """A file's bytes with the change made, each patch first compared with what is there."""
    assert len(data) == change.size
    new = bytearray(data)
    end = 0
    for patch in change.patches:
        assert patch.offset >= end, "patches are sorted and don't overlap"
        end = patch.offset + len(patch.old)
        assert new[patch.offset : end] == patch.old != patch.new
        new[patch.offset : end] = patch.new
    assert len(new) == change.size
    return bytes(new) + change.appended


def repacked(path: Path, method: int = zipfile.ZIP_STORED, *, streamed: bool = False, large: bool = False) -> None:
    """Replaces a zip file by what Python's zipfile makes of its contents.

    streamed: into a pipe, so that checksums follow the data. large: with 64-bit sizes everywhere.
    """
    with zipfile.ZipFile(path) as old:
        contents = [(name, old.read(name)) for name in old.namelist()]
    buffer: Any = _Pipe() if streamed else io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as new:
        for name, data in contents:
            record = zipfile.ZipInfo(name)
            record.compress_type = method
            with new.open(record, "w", force_zip64=large) as out:
                out.write(data)
    path.write_bytes(buffer.getvalue())


def unchecked(archive: zipfile.ZipFile, name: str) -> bytes:
    """A record's contents, whatever its checksum."""
    with archive.open(name) as record:
        record._expected_crc = None  # type: ignore[attr-defined]
        return record.read()


class _Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


class Made(NamedTuple):
    """A record that is made up. Whatever is None is as it should be; the others lie."""

    name: bytes
    data: bytes
    local_name: bytes | None = None
    flags: int = 0x800
    method: int = 0
    crc: int | None = None
    size: int | None = None
    stored: int | None = None
    header: int | None = None
    signature: bytes = LOCAL_SIGNATURE
    local_method: int | None = None
    attributes: int = 0


def make_zip(records: Sequence[Made], *, end: dict[int, int] | None = None, comment: bytes = b"") -> bytes:
    """A zip archive. end: by its index, a field of the end record that lies."""
    out = bytearray()
    listing = bytearray()
    for record in records:
        at = len(out)
        crc = zlib.crc32(record.data) if record.crc is None else record.crc
        size = len(record.data) if record.size is None else record.size
        stored = len(record.data) if record.stored is None else record.stored
        name = record.name if record.local_name is None else record.local_name
        method = record.method if record.local_method is None else record.local_method
        late = bool(record.flags & 8)
        sums = (0, 0, 0) if late else (crc, stored, size)
        out += LOCAL.pack(record.signature, 0, record.flags, method, 0, 0, *sums, len(name), 0) + name + record.data
        if late:
            out += DESCRIPTOR_SIGNATURE + b"".join(one.to_bytes(4, "little") for one in (crc, stored, size))
        header = at if record.header is None else record.header
        fields = (
            0,
            0,
            record.flags,
            record.method,
            0,
            0,
            crc,
            stored,
            size,
            len(record.name),
            0,
            0,
            0,
            0,
            record.attributes,
            header,
        )
        listing += ENTRY.pack(ENTRY_SIGNATURE, *fields) + record.name
    count = len(records)
    numbers = [0, 0, count, count, len(listing), len(out), len(comment)]
    for index, number in (end or {}).items():
        numbers[index] = number
    return bytes(out + listing) + END.pack(END_SIGNATURE, *numbers) + comment
