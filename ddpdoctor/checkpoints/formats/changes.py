"""A change to a file as data: bytes replaced where they stand, and bytes appended behind the old end."""

from __future__ import annotations

import msgspec


class Patch(msgspec.Struct, frozen=True):
    """`old` at `offset` becomes `new`, of the same length."""

    offset: int
    old: bytes
    new: bytes


class Change(msgspec.Struct, frozen=True):
    """What is to be done to a file of `size` bytes. The patches are sorted, don't overlap and lie within the old size."""

    size: int
    patches: tuple[Patch, ...] = ()
    appended: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.patches or self.appended)

    @property
    def new_size(self) -> int:
        return self.size + len(self.appended)
