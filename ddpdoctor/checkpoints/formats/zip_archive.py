"""The zip layout: since torch 1.6 a record for the pickle, and one for each storage."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

from ddpdoctor.checkpoints.errors import Damaged, NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats.byte_source import PIECE_BYTES, ByteSource
from ddpdoctor.checkpoints.formats.layouts import DATA, MAX_PICKLE_BYTES, Change, Layout, StoragePlace
from ddpdoctor.checkpoints.formats.zip_directory import (
    LOCAL_SIGNATURE,
    STORED,
    CutOff,
    Directory,
    ZipRecord,
    read_directory,
)
from ddpdoctor.checkpoints.formats.zip_edits import append, patch
from ddpdoctor.checkpoints.pickles.nodes import Storage
from ddpdoctor.checkpoints.pickles.tensors import element_size

CONSTANTS = "constants.pkl"
_DEFAULT_ALIGNMENT = 64
_UNSUSPICIOUS_BYTES = 16 << 20
_MAX_INFLATION = 100
"""Times the compressed size: the pickles of real checkpoints shrink to a tenth or so."""
_MAX_WORD_BYTES = 64
"""More than any of the one-word records has."""


class Archive(Layout):
    """A checkpoint in a zip archive. records: by name, without the first folder, in the directory's order."""

    def __init__(self, source: ByteSource, directory: Directory) -> None:
        self.source = source
        self.directory = directory
        self.prefix = directory.prefix
        self.records = {record.name: record for record in directory.records}
        self.kind = "torchscript" if CONSTANTS in self.records else "zip"

    def read(self, record: ZipRecord) -> bytes:
        """A record's contents, inflated.

        Raises:
            Damaged: they don't match their checksum.
            Refused: they have over 1 GiB, or are far larger than what they are made from.
        """
        if record.size > MAX_PICKLE_BYTES:
            raise Refused(f"{record.name} has {record.size:,} bytes: no checkpoint needs that")
        if record.size > max(_UNSUSPICIOUS_BYTES, _MAX_INFLATION * record.stored):
            # What a pickle makes in memory is many times its size: a bomb of some megabytes would fill it.
            raise Refused(
                f"{record.name} inflates from {record.stored:,} to {record.size:,} bytes, as only a bomb does"
            )
        data = b"".join(self._contents(record))
        if record.crc and zlib.crc32(data) != record.crc:
            raise Damaged(f"{record.name} was altered or is corrupt: its bytes do not match their checksum")
        return data

    def pickles(self) -> dict[str, bytes]:
        return {name: self.read(self.records[name]) for name in (DATA, CONSTANTS) if name in self.records}

    def check(self, storages: Iterable[Storage], pickle: str = DATA) -> None:
        folder, records = pickle.removesuffix(".pkl"), self.records
        for storage in storages:
            record = records.get(f"{folder}/{storage.key}")
            if record is None or record.size < storage.count * element_size(storage):
                self.storage_record(storage, pickle)  # raises, with the reason

    def place(self, storage: Storage, pickle: str = DATA) -> StoragePlace:
        record = self.storage_record(storage, pickle)
        if record.method != STORED:
            raise Refused(f"{record.name} is compressed")
        return StoragePlace(record.offset, storage.count * element_size(storage))

    def pieces(self, storage: Storage, pickle: str = DATA) -> Iterator[bytes]:
        left = storage.count * element_size(storage)
        for piece in self._contents(self.storage_record(storage, pickle)):
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    def storage_record(self, storage: Storage, pickle: str = DATA) -> ZipRecord:
        """The record that holds a storage's bytes.

        Raises:
            Damaged: there is none, or one with fewer bytes than the pickle says.
        """
        name = f"{pickle.removesuffix('.pkl')}/{storage.key}"
        record = self.records.get(name)
        if record is None:
            raise Damaged(f"{name}, the data of a tensor, is missing")
        length = storage.count * element_size(storage)
        if record.size < length:
            raise Damaged(f"{name} has {record.size:,} bytes, but its tensors need {length:,}")
        return record

    def change(self, pickles: Mapping[str, bytes]) -> Change:
        """Where a pickle keeps its length and isn't compressed, patches; else new records behind the old end."""
        new = {}
        for name, data in pickles.items():
            record = self.records[name]
            if len(data) != record.size or data != self.read(record):
                new[record] = data
        patches = []
        for record, data in new.items():
            in_record = patch(self.source, self.directory, record, data)
            if in_record is None:
                return Change(self.source.size, appended=append(self.source, self.directory, new, self.alignment))
            patches += in_record
        return Change(self.source.size, tuple(sorted(patches, key=lambda patch: patch.offset)))

    @property
    def alignment(self) -> int:
        """Each storage begins at a multiple of so many bytes.

        Raises:
            Refused: what the file says of it can't be.
        """
        word = self._word(".storage_alignment", str(_DEFAULT_ALIGNMENT))
        alignment = int(word) if word.isdecimal() and len(word) < 6 else 0
        if not 1 <= alignment <= 1 << 15:
            raise Refused(f"The storages are said to be aligned to {word!a} bytes, which can't be")
        return alignment

    @property
    def byteorder(self) -> str:
        """little or big. Files from before there was a choice don't say, and are little.

        Raises:
            Damaged: it is said to be something else.
        """
        word = self._word("byteorder", "little")
        if word not in ("little", "big"):
            raise Damaged(f"The byte order is given as {word!a}, not as little or big")
        return word

    def _word(self, name: str, default: str) -> str:
        record = self.records.get(name)
        if record is None:
            return default
        if record.size > _MAX_WORD_BYTES:
            raise Refused(f"{name} has {record.size:,} bytes instead of one word")
        return self.read(record).decode("ascii", "replace").strip()

    def _contents(self, record: ZipRecord) -> Iterator[bytes]:
        # The record's bytes, inflated, some at a time and never more than it is said to have.
        if record.method == STORED:
            yield from self.source.pieces(record.offset, record.stored)
            return
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        left = record.size
        try:
            for piece in self.source.pieces(record.offset, record.stored):
                rest = piece
                while rest and not inflater.eof:
                    inflated = inflater.decompress(rest, PIECE_BYTES)
                    rest = inflater.unconsumed_tail
                    left -= len(inflated)
                    if left < 0:
                        raise Refused(
                            f"{record.name} inflates to more than the {record.size:,} bytes that it is said to have"
                        )
                    yield inflated
        except zlib.error as error:
            raise Damaged(f"{record.name} can't be decompressed: {error}") from None
        if left or not inflater.eof:
            raise Damaged(f"{record.name} inflates to {left:,} bytes less than it is said to have")


def read_archive(source: ByteSource) -> Archive:
    """Read a zip archive's directory. Refused is raised where readers could understand it differently.

    Raises:
        Damaged: the directory is missing or makes no sense.
        NotACheckpoint: it isn't one of torch.save's.
    """
    if source.read_at(0, min(4, source.size)) != LOCAL_SIGNATURE:
        raise NotACheckpoint("It does not begin as a zip archive of torch.save does")
    try:
        directory = read_directory(source)
    except CutOff as error:
        from ddpdoctor.checkpoints.formats.zip_survivors import survivors

        advice = "Copy or download it again; if it broke off while it was being saved, go back to the checkpoint before"
        raise Damaged(f"{error.text}; {survivors(source)}", advice) from None
    archive = Archive(source, directory)
    if DATA not in archive.records:
        raise NotACheckpoint("A zip archive, but torch.save did not write it: it holds no data.pkl")
    return archive
