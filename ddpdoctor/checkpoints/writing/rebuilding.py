"""A checkpoint written anew without some of its storages, or with a pickle of another length: the rest copied as it is."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.checkpoints.formats.byte_source import write_exactly
from ddpdoctor.checkpoints.formats.layouts import DATA, Layout
from ddpdoctor.checkpoints.formats.legacy import COUNT_BYTES, Legacy
from ddpdoctor.checkpoints.formats.zip_archive import Archive
from ddpdoctor.checkpoints.formats.zip_directory import FULL32, HAS_DESCRIPTOR, LOCAL, ZipRecord, extra_field
from ddpdoctor.checkpoints.formats.zip_edits import (
    end_records,
    find_descriptor,
    local_header,
    moved_entry,
    padding,
    record_name,
    stored_entry,
)
from ddpdoctor.checkpoints.writing.copying import Copier, Progress
from ddpdoctor.checkpoints.writing.new_file import new_file

_STORAGES = "data/"
_FORMAT_VERSION = ".format_version"
_NO_OFFSETS = b"0"
"""The format's version that tells torch.load to look the storages' offsets up, not to compute them from their numbers."""

_DESCRIPTOR_LENGTHS = (12, 16, 20, 24)


def rebuild(
    layout: Layout, pickles: Mapping[str, bytes], kept: Collection[str] | None, out: Path, progress: Progress
) -> None:
    """Write the checkpoint to `out`, whole or not at all (see new_file), with these pickles, by name.

    Refused is raised if `out` exists or can't be written, or the file was changed while it was being read; Damaged if it can't
    be read. kept: the keys of the storages that stay, None for all.
    """
    source = layout.source
    with new_file(out, source.status) as fd:
        if isinstance(layout, Archive):
            _ArchiveWriter(layout, fd, progress).write(pickles, kept)
        elif isinstance(layout, Legacy):
            _write_legacy(layout, pickles[DATA], kept, fd, progress)
        source.refuse_if_changed()


class _Run(NamedTuple):
    """Records that stand one right behind the other in the old file, and will in the new one.

    end: of the last one's descriptor, in the old file.
    """

    records: list[ZipRecord]
    end: int


class _ArchiveWriter:
    """Writes the records of an archive to `fd`, in its directory's order."""

    def __init__(self, archive: Archive, fd: int, progress: Progress) -> None:
        self.source = archive.source
        self.archive = archive
        self.directory = archive.directory
        self.entries = self.source.read_at(self.directory.offset, self.directory.size)
        self.fd = fd
        self.progress = progress
        self.at = 0
        self.listing: list[bytes] = []

    def write(self, pickles: Mapping[str, bytes], kept: Collection[str] | None) -> None:
        records = [record for record in self.directory.records if _stays(record, kept)]
        new = dict(pickles)
        # Beyond 4 GiB a header's length depends on where it stands, too.
        computable = len(records) == len(self.directory.records) and self.source.size <= FULL32
        if not computable and _FORMAT_VERSION in self.archive.records:
            new[_FORMAT_VERSION] = _NO_OFFSETS
        parts = list(self._parts(records, new))
        total = sum(part.end - part.records[0].offset for part in parts if isinstance(part, _Run))
        copier = Copier(self.source, self.fd, total, self.progress)
        for part in parts:
            if isinstance(part, _Run):
                self._copy(part, copier)
            else:
                self._store(part, new[part.name])
        listing = b"".join(self.listing)
        end = end_records(self.at, len(listing), len(records), self.directory.zip64, self.directory.comment)
        write_exactly(self.fd, listing + end, self.at)

    def _parts(self, records: list[ZipRecord], new: Mapping[str, bytes]) -> Iterator[_Run | ZipRecord]:
        """The records in order: those with new contents alone, the others in runs."""
        alignment = self.archive.alignment
        in_order = sorted(self.directory.records, key=lambda record: record.header)
        limits = {record.entry: following.header for record, following in pairwise(in_order)}
        run: list[ZipRecord] = []
        end = 0
        for record in records:
            replaced = record.name in new
            if run and (replaced or record.header != end or (record.offset - run[0].offset) % alignment):
                yield _Run(run, end)
                run = []
            if replaced:
                yield record
            else:
                run.append(record)
                end = self._end(record, limits.get(record.entry, self.directory.offset))
        if run:
            yield _Run(run, end)

    def _end(self, record: ZipRecord, limit: int) -> int:
        """The end of its data or its descriptor. limit: where the next thing begins."""
        end = record.offset + record.stored
        if not record.flags & HAS_DESCRIPTOR:
            return end
        if limit - end in _DESCRIPTOR_LENGTHS:
            return limit
        return end + (find_descriptor(self.source, self.directory, record) or 0)

    def _copy(self, run: _Run, copier: Copier) -> None:
        first = run.records[0]
        header = self._aligned_header(first)
        write_exactly(self.fd, header, self.at)
        shift = self.at + len(header) - first.offset
        copier.copy(first.offset, run.end - first.offset, first.offset + shift)
        self.listing.append(moved_entry(self.entries, first, self.at))
        self.listing += (moved_entry(self.entries, record, record.header + shift) for record in run.records[1:])
        self.at = run.end + shift

    def _aligned_header(self, record: ZipRecord) -> bytes:
        """Its local header, padded for its new place. Of its extra fields only the one with 64-bit sizes stays."""
        old = self.source.read_at(record.header, record.offset - record.header)
        *fields, name_length, _ = LOCAL.unpack_from(old)
        name_end = LOCAL.size + name_length
        sizes = extra_field(old[name_end:], 1)
        extra = b"\1\0" + len(sizes).to_bytes(2, "little") + sizes if sizes else b""
        extra += padding(self.at + name_end + len(extra), self.archive.alignment)
        return LOCAL.pack(*fields, name_length, len(extra)) + old[LOCAL.size : name_end] + extra

    def _store(self, record: ZipRecord, data: bytes) -> None:
        crc = zlib.crc32(data) if record.crc else 0
        name = record_name(self.entries, record)
        header = local_header(name, record, self.at, len(data), crc, self.archive.alignment)
        write_exactly(self.fd, header + data, self.at)
        self.listing.append(stored_entry(self.entries, record, self.at, len(data), crc))
        self.at += len(header) + len(data)


def _stays(record: ZipRecord, kept: Collection[str] | None) -> bool:
    name = record.name
    return kept is None or not name.startswith(_STORAGES) or name.endswith("/") or name[len(_STORAGES) :] in kept


def _write_legacy(legacy: Legacy, main: bytes, kept: Collection[str] | None, fd: int, progress: Progress) -> None:
    source = legacy.source
    keys = [key for key in legacy.places if kept is None or key in kept]
    if len(keys) == len(legacy.places):
        listing = source.read_at(legacy.keys.start, legacy.keys.end - legacy.keys.start)
    else:
        listing = pickle.dumps(keys, protocol=2)
    start = source.read_at(0, legacy.main.start) + main + listing
    write_exactly(fd, start, 0)
    copier = Copier(source, fd, sum(COUNT_BYTES + legacy.places[key].length for key in keys), progress)
    at = len(start)
    for begin, end in _runs(legacy, keys):
        copier.copy(begin, end - begin, at)
        at += end - begin
    os.ftruncate(fd, at)


def _runs(legacy: Legacy, keys: list[str]) -> Iterator[tuple[int, int]]:
    """The ranges of the file in which the storages lie, neighbours together."""
    begin = end = 0
    for key in keys:
        place = legacy.places[key]
        if place.offset - COUNT_BYTES != end:
            if end:
                yield begin, end
            begin = place.offset - COUNT_BYTES
        end = place.offset + place.length
    if end:
        yield begin, end
