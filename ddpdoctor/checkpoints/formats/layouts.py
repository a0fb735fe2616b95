"""The interface that the file formats have in common: pickles by name, where the bytes of the storages lie that these name, and a change to a
file as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.pickles.nodes import Storage

DATA = "data.pkl"
"""The pickle of what was saved; so called in the old format, too, where it has no name."""

MAX_PICKLE_BYTES = 1 << 30
"""A pickle is read as a whole."""


class Patch(msgspec.Struct, frozen=True):
    """`old` at `offset` becomes `new`, of the same length."""

    offset: int
    old: bytes
    new: bytes


class Change(msgspec.Struct, frozen=True):
    """An edit of a file of `size` bytes. The patches are sorted, don't overlap and lie within the old size."""

    size: int
    patches: tuple[Patch, ...] = ()
    appended: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.patches or self.appended)


class StoragePlace(NamedTuple):
    """The place of a storage's bytes in the file, in bytes."""

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
        """Make sure that the bytes of all storages of that pickle are there; else Damaged is raised."""

    def place(self, storage: Storage, pickle: str = DATA) -> StoragePlace:
        """The place of the storage's bytes. Refused is raised if they are compressed, Damaged if they are missing."""

    def pieces(self, storage: Storage, pickle: str = DATA) -> Iterator[bytes]:
        """The storage's bytes, some at a time, compressed or not."""

    def change(self, pickles: Mapping[str, bytes]) -> Change:
        """The change that gives these pickles a new content. Refused is raised where the format can't take it."""
