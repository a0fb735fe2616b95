"""Facts without the fields in which hosts differ, so that what is worked out of the rest holds for every host that has the same rest. Pure.

No host has another's temperatures and free memory, and hardly any check asks for them. Which fields differ is learned from the hosts
themselves. What asks for a field that was left out ends by an AttributeError, however deep it asks, and also where it compares, hashes,
copies or prints the struct: nothing is ever answered by what isn't there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

Field = tuple[type[msgspec.Struct], str]
"""A struct, and the name of one of its fields."""


class SplitFacts(msgspec.Struct, frozen=True):
    """Facts, and their varying fields told apart from the rest.

    Args:
        version: of the varying fields.
        rest: a digest of what is left without them.
        columns: the values of each of them, in the order of the structs that have it.
    """

    version: int
    rest: bytes
    columns: Mapping[Field, Sequence[Any]]


class VaryingFields:
    """The fields in which the facts of one group differed so far.

    Attributes:
        version: another as soon as facts are split in another way.
    """

    def __init__(self) -> None:
        self.version = 0
        self._fields: dict[type[msgspec.Struct], list[str]] = {}
        self._ways: dict[type[msgspec.Struct], list[str]] = {}

    def learn(self, facts: msgspec.Struct, other: msgspec.Struct) -> bool:
        """Add the fields in which these differ, and say whether they do.

        Lists of another length, and a part that one of them lacks, are not left out: such hosts are of another kind.
        """
        if type(facts) is not type(other):
            return False
        known, ways = (table.setdefault(type(facts), []) for table in (self._fields, self._ways))
        differs = False
        for name in facts.__struct_fields__:
            value, other_value = getattr(facts, name), getattr(other, name)
            if value == other_value:
                continue
            parts, other_parts = _structs(value), _structs(other_value)
            if name in known:
                differs = True
            elif not parts and not other_parts:
                self._add(known, name)
                differs = True
            elif len(parts) == len(other_parts) and any(list(map(self.learn, parts, other_parts))):
                if name not in ways:
                    self._add(ways, name)
                differs = True
        return differs

    def _add(self, names: list[str], name: str) -> None:
        names.append(name)
        self.version += 1

    def split(self, facts: msgspec.Struct) -> SplitFacts:
        """Tell the varying fields apart from the rest."""
        columns: dict[Field, list[Any]] = {}

        def move(struct: msgspec.Struct, name: str) -> None:
            columns.setdefault((type(struct), name), []).append(getattr(struct, name))
            msgspec.structs.force_setattr(struct, name, msgspec.UNSET)

        # What is UNSET isn't in the JSON.
        rest = msgspec.json.encode(self._changed(facts, move))
        return SplitFacts(self.version, digest(rest), columns)

    def without(self, facts: S, kept: Collection[Field]) -> S:
        """The facts without the varying fields, but for those that are kept."""

        def leave_out(struct: msgspec.Struct, name: str) -> None:
            if (type(struct), name) not in kept:
                getattr(type(struct), name).__delete__(struct)

        return self._changed(facts, leave_out)

    def _changed(self, struct: S, change: Callable[[msgspec.Struct, str], object]) -> S:
        """A copy in which each varying field was changed."""
        names, ways = self._fields.get(type(struct), ()), self._ways.get(type(struct), ())
        if not names and not ways:
            return struct
        copied = msgspec.structs.replace(struct)
        for name in ways:
            if name not in names:
                value = getattr(struct, name)
                if parts := _structs(value):
                    changed = tuple(self._changed(part, change) for part in parts)
                    msgspec.structs.force_setattr(copied, name, changed if isinstance(value, tuple) else changed[0])
        for name in names:
            change(copied, name)
        return copied


def _structs(value: object) -> tuple[msgspec.Struct, ...]:
    """The structs that a field holds."""
    if isinstance(value, msgspec.Struct):
        return (value,)
    if isinstance(value, tuple) and all(isinstance(part, msgspec.Struct) for part in value):
        return value
    return ()


def digest(content: bytes) -> bytes:
    """A digest by which contents are told apart."""
    return hashlib.blake2b(content, digest_size=16).digest()
