"""Proof that an edited pickle says what the original said, but for the edits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import (
    Bytes,
    Call,
    ContainerNode,
    Global,
    Pair,
    Reference,
    Storage,
    Text,
    Tuple,
)
from ddpdoctor.checkpoints.pickles.plain_tensors import PlainTensor


class Expected(NamedTuple):
    """The edits that were made.

    texts: by the position of an occurrence in the original, what it reads now. devices: by the id of the tuple that
    torch.device is called with, the device it names now.
    """

    texts: Mapping[int, str]
    devices: Mapping[int, str]


def are_alike(old: Program, old_data: bytes, new: Program, new_data: bytes, expected: Expected) -> bool:
    """Whether both trees are alike but for what is expected."""
    return _Comparison(old_data, new_data, expected).alike(old.root, new.root)


class _Comparison:
    def __init__(self, old_data: bytes, new_data: bytes, expected: Expected) -> None:
        self.old_data = old_data
        self.new_data = new_data
        self.expected = expected
        self.waiting: list[tuple[Any, Any]] = []

    def alike(self, old: Any, new: Any) -> bool:
        compared: set[tuple[int, int]] = set()
        there: dict[int, int] = {}
        back: dict[int, int] = {}
        self.waiting.append((old, new))
        while self.waiting:
            a, b = self.waiting.pop()
            if a.__class__ is not b.__class__ and not (isinstance(a, Call) and isinstance(b, Call)):
                return False
            if isinstance(a, (ContainerNode, Call, Tuple, Storage, Reference)):
                both = id(a), id(b)
                if both in compared:
                    continue
                compared.add(both)
                # What was one object must be one still, and what were two, two: tied tensors, shared lists. Of tuples and
                # storages nobody could notice.
                if not isinstance(a, (Tuple, Storage)) and (
                    there.setdefault(*both) != both[1] or back.setdefault(*both[::-1]) != both[0]
                ):
                    return False
            if not self._level(a, b):
                return False
        return True

    def _level(self, a: Any, b: Any) -> bool:
        if isinstance(a, Text):
            return bool(a.value == b.value)
        if isinstance(a, Storage):
            self.waiting.append((a.view, b.view))
            location = self.expected.texts.get(a.location_start, a.location.value)
            return (a.kind, a.key, a.count, location) == (b.kind, b.key, b.count, b.location.value)
        if isinstance(a, Tuple):
            return self._tuple(a, b)
        if isinstance(a, PlainTensor) and isinstance(b, PlainTensor) and a.same_rest(b) and a.state is b.state is None:
            self.waiting += [(a.function, b.function), (a.storage, b.storage)]
            return True
        if isinstance(a, (ContainerNode, Call)):
            return self._holder(a, b)
        if isinstance(a, Global):
            return bool(a.full_name == b.full_name)
        if isinstance(a, Bytes):
            old = self.old_data[a.start : a.start + a.length]
            return old == self.new_data[b.start : b.start + b.length]
        if isinstance(a, Reference):
            self.waiting.append((a.identity, b.identity))
            return True
        if isinstance(a, float):
            return struct.pack("d", a) == struct.pack("d", b)
        return bool(a == b)

    def _tuple(self, a: Tuple, b: Tuple) -> bool:
        device = self.expected.devices.get(id(a))
        if device is not None:
            kind, _, index = device.partition(":")
            named = [item.value if isinstance(item, Text) else item for item in b.items]
            return named == ([kind, int(index)] if index else [kind])
        if len(a.items) != len(b.items):
            return False
        starts = a.starts or [-1] * len(a.items)
        return all(self._occurrence(*three) for three in zip(a.items, starts, b.items, strict=True))

    def _holder(self, a: ContainerNode | Call, b: ContainerNode | Call) -> bool:
        if isinstance(a, ContainerNode) and isinstance(b, ContainerNode):
            if a.kind != b.kind:
                return False
        elif isinstance(a, Call) and isinstance(b, Call):
            self.waiting += [(a.function, b.function), (a.arguments, b.arguments), (a.state, b.state)]
        if len(a.items) != len(b.items) or len(a.pairs) != len(b.pairs):
            return False
        self.waiting.extend(zip(a.items, b.items, strict=True))
        return all(map(self._pair, a.pairs, b.pairs))

    def _pair(self, a: Pair, b: Pair) -> bool:
        return self._occurrence(a.key, a.key_start, b.key) and self._occurrence(a.value, a.value_start, b.value)

    def _occurrence(self, a: Any, position: int, b: Any) -> bool:
        reads = self.expected.texts.get(position) if isinstance(a, Text) else None
        if reads is not None:
            return isinstance(b, Text) and b.value == reads
        self.waiting.append((a, b))
        return True
