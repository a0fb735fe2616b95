"""The layout before torch 1.6: five pickles one behind the other (magic number, protocol version, facts of the machine,
the object, the storages' keys), then for each key the number of its elements, 8 bytes, and the elements, little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ddpdoctor.base.text import plural
from ddpdoctor.checkpoints.errors import Damaged, NotACheckpoint, OutOfData, Refused
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.layouts import DATA, MAX_PICKLE_BYTES, Change, Layout, StoragePlace
from ddpdoctor.checkpoints.formats.zip_edits import differences
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection
from ddpdoctor.checkpoints.pickles.machine import Program, scan
from ddpdoctor.checkpoints.pickles.nodes import ContainerNode, Storage, Text
from ddpdoctor.checkpoints.pickles.tensors import STORAGE_SIZES, element_size

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001
COUNT_BYTES = 8
"""Of the number before each storage's elements."""

_FIRST_WINDOW_BYTES = 1 << 16
"""In which a pickle's end is looked for at first: nothing says how long it is."""


class Span(NamedTuple):
    """The place of a pickle in the file."""

    start: int
    end: int


class Legacy(Layout):
    """A checkpoint from before the zip format, or saved with _use_new_zipfile_serialization=False.

    main, keys: where these two pickles stand. places: of the elements of each storage, by key, in the file's order.
    """

    kind = "legacy"
    byteorder = "little"

    def __init__(self, source: ByteSource, main: Span, keys: Span, places: dict[str, StoragePlace]) -> None:
        self.source = source
        self.main = main
        self.keys = keys
        self.places = places

    def pickles(self) -> dict[str, bytes]:
        return {DATA: self.source.read_at(self.main.start, self.main.end - self.main.start)}

    def check(self, storages: Iterable[Storage], pickle: str = DATA) -> None:
        for storage in storages:
            self.place(storage)

    def place(self, storage: Storage, pickle: str = DATA) -> StoragePlace:
        place = self.places.get(storage.key)
        length = storage.count * element_size(storage)
        if place is None or place.length < length:
            raise Damaged(f"The data of storage {storage.key!a}, {length:,} bytes, is missing")
        return StoragePlace(place.offset, length)

    def pieces(self, storage: Storage, pickle: str = DATA) -> Iterator[bytes]:
        return self.source.pieces(*self.place(storage, pickle))

    def change(self, pickles: Mapping[str, bytes]) -> Change:
        old, new = self.pickles()[DATA], pickles[DATA]
        if len(old) != len(new):
            # Everything else stands behind it.
            raise Refused(
                f"Its pickle would have {len(new):,} bytes instead of {len(old):,}, and in the format from before torch 1.6 "
                "nothing behind it can move",
                "Write a new file instead: add -o and its name to the same command",
            )
        return Change(self.source.size, tuple(differences(old, new, self.main.start)))


@without_collection()
def read_legacy(source: ByteSource) -> Legacy:
    """Find the pickles and the storages. Damaged is raised if one is missing, Refused if something else is there.

    Raises:
        NotACheckpoint: it doesn't begin as such a file does.
    """
    at = 0
    for expected in (MAGIC, PROTOCOL_VERSION):
        header, program = read_pickle(source, at)
        if type(program.root) is not int or program.root != expected:
            raise NotACheckpoint(
                "A pickle, but torch.save did not write it: it does not begin with torch's magic number"
            )
        at = header.end
    machine, _ = read_pickle(source, at)
    main, program = read_pickle(source, machine.end)
    keys, listing = read_pickle(source, main.end)
    return Legacy(source, main, keys, _find_storages(source, program, listing.root, keys.end))


def read_pickle(source: ByteSource, start: int) -> tuple[Span, Program]:
    """Read the pickle that begins at `start`; raises what `scan` does, too.

    Raises:
        Damaged: the file ends before it does.
        Refused: it has no end.
    """
    window = _FIRST_WINDOW_BYTES
    while True:
        length = min(window, MAX_PICKLE_BYTES, source.size - start)
        try:
            program = scan(source.read_at(start, length))
        except OutOfData:
            if length == source.size - start:
                raise Damaged(
                    f"Truncated: the file ends at byte {source.size:,}, within the pickle that begins at {start:,}"
                ) from None
            if length >= MAX_PICKLE_BYTES:
                raise Refused(f"The pickle at byte {start:,} has no end within {length:,} bytes") from None
            window *= 16
        else:
            return Span(start, start + program.end), program


def _find_storages(source: ByteSource, program: Program, listing: Any, start: int) -> dict[str, StoragePlace]:
    # The place of each storage's elements, in the order of the list of their keys.
    items = listing.items if isinstance(listing, ContainerNode) and listing.kind == "list" else [None]
    keys = [key.value for key in items if isinstance(key, Text)]
    if len(keys) != len(items) or len(set(keys)) != len(keys):
        raise Damaged("Where the keys of its storages should be listed, there is something else")
    storages: dict[str, Storage] = {}
    for storage in program.storages:
        # torch, too, goes by the type at the first occurrence.
        storages.setdefault(storage.key, storage)
    if storages.keys() != set(keys):
        raise Damaged("Its list of storages does not match those that its tensors need")
    places: dict[str, StoragePlace] = {}
    at = start
    for key in keys:
        storage = storages[key]
        if storage.kind not in STORAGE_SIZES:
            raise Refused(f"It has a storage of type {storage.kind}, of which this version does not know the size")
        length = storage.count * element_size(storage)
        if at + COUNT_BYTES + length <= source.size:
            count = int.from_bytes(source.read_at(at, COUNT_BYTES), "little", signed=True)
            if count != storage.count:
                raise Damaged(
                    f"Storage {key!a} has {count:,} elements at byte {at:,}, but {storage.count:,} in the pickle"
                )
        places[key] = StoragePlace(at + COUNT_BYTES, length)
        at += COUNT_BYTES + length
    if at > source.size:
        whole = sum(place.offset + place.length <= source.size for place in places.values())
        which = f"the first {whole:,} are" if whole > 1 else "the first is" if whole else "none is"
        raise Damaged(
            f"Truncated: it should have {at:,} bytes and has {source.size:,}; of its {plural(len(places), 'storage')}, "
            f"{which} whole"
        )
    if at < source.size:
        raise Refused(
            f"{source.size - at:,} bytes follow its last storage, which torch.load would ignore",
            "If several things were saved into this one file, load them one after the other and save each to its own",
        )
    return places
