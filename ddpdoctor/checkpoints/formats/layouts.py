"""What the file formats have in common: pickles by name, and where the bytes of the storages lie that these name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from ddpdoctor.checkpoints.formats.changes import Change
from ddpdoctor.checkpoints.formats.reading import ByteSource
from ddpdoctor.checkpoints.pickles.nodes import Storage
from ddpdoctor.checkpoints.pickles.tensors import element_size as item_size

__all__ = ["DATA", "LARGEST_PICKLE", "Layout", "StoragePlace", "item_size"]

DATA = "data.pkl"
"""The pickle of what was saved; so called in the old format, too, where it has no name."""

LARGEST_PICKLE = 1 << 30
"""Bytes. A pickle is read as a whole."""


class StoragePlace(NamedTuple):
    """Where in the file a storage's bytes lie, in bytes."""

    offset: int
    length: int


class Layout(Protocol):
    """A checkpoint file in one of its formats. kind: "zip", "torchscript" or "legacy"."""

    source: ByteSource
    kind: str

    @property
    def byteorder(self) -> str:
        """little or big."""

    def pickles(self) -> dict[str, bytes]:
        """The pickles by name: data.pkl, and constants.pkl in TorchScript."""

    def check(self, storages: Iterable[Storage], pickle: str = DATA) -> None:
        """Raises Damaged unless the bytes of all storages of that pickle are there."""

    def place(self, storage: Storage, pickle: str = DATA) -> StoragePlace:
        """Where the storage's bytes lie. Raises Refused if they are compressed, Damaged if they are missing."""

    def pieces(self, storage: Storage, pickle: str = DATA) -> Iterator[bytes]:
        """The storage's bytes, some at a time, compressed or not."""

    def change(self, pickles: Mapping[str, bytes]) -> Change:
        """What gives these pickles a new content. Raises Refused where the format can't take it."""
