"""The nodes that the symbolic machine builds instead of objects: a tree that remembers where in the pickle each thing stands.

Positions are byte offsets into the pickle. A thing's `start` is where its first opcode begins; the opcodes that put it
into the memo follow it and belong to it. Integers, floats, booleans and None stand for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Text:
    """A string, once for each opcode that holds it. `uses`: where else the memo brings it back."""

    __slots__ = ("end", "start", "uses", "value")

    def __init__(self, value: str, start: int, end: int) -> None:
        self.value = value
        self.start = start
        self.end = end
        self.uses: Sequence[int] = ()

    def used(self, position: int) -> None:
        if isinstance(self.uses, list):
            self.uses.append(position)
        else:
            self.uses = [position]

    def __repr__(self) -> str:
        return f"Text({self.value!r})"


class Bytes:
    """Bytes within the pickle, not copied out of it."""

    __slots__ = ("length", "start")

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.length = length


class Global:
    """A class or function by name. Never looked up."""

    __slots__ = ("full_name", "module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.full_name = f"{module}.{name}"

    def __repr__(self) -> str:
        return f"Global({self.full_name})"


class Tuple:
    """A tuple; `starts` says where each occurrence among its items begins, `end` where the opcode that closes it stands."""

    __slots__ = ("end", "items", "starts")

    def __init__(self, items: Sequence[Any], starts: Sequence[int], end: int) -> None:
        self.items = items
        self.starts = starts
        self.end = end


class Pair(NamedTuple):
    """An entry of a dict; the value's opcodes end at `end`."""

    key: Any
    key_start: int
    value: Any
    value_start: int
    end: int


class HolderNode:
    """A node that items and entries are put into.

    Most hold none, and there may be a hundred thousand: an empty list each would cost more than all the rest.
    """

    __slots__ = ("items", "pairs")

    def __init__(self) -> None:
        self.items: Sequence[Any] = ()
        self.pairs: Sequence[Pair] = ()

    def add(self, items: list[Any]) -> None:
        if isinstance(self.items, list):
            self.items += items
        else:
            self.items = items

    def put(self, pairs: list[Pair]) -> None:
        if isinstance(self.pairs, list):
            self.pairs += pairs
        else:
            self.pairs = pairs


class ContainerNode(HolderNode):
    """A list, set or dict (`kind` says which), or a frozenset."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.items = self.pairs = ()
        self.kind = kind


class Call(HolderNode):
    """The result that calling `function` with `arguments` would have, with what was set, added or stored in it afterwards."""

    __slots__ = ("arguments", "function", "start", "state")

    def __init__(self, function: Any, arguments: Any, start: int) -> None:
        self.items = self.pairs = ()
        self.function = function
        self.arguments = arguments
        self.start = start
        self.state: Any = None

    @property
    def first_argument(self) -> Any:
        """The first of the arguments; None where there is none."""
        return self.arguments.items[0] if isinstance(self.arguments, Tuple) and self.arguments.items else None

    @property
    def name(self) -> str:
        """The function's full name, or "" where it isn't a plain global."""
        return self.function.full_name if self.function.__class__ is Global else ""


class Storage:
    """A storage by its persistent id: `kind` is FloatStorage, UntypedStorage ...; `count` its elements (bytes, if untyped).

    `location` is the tag of the device; this occurrence of it stands at `location_start`.
    """

    __slots__ = ("count", "key", "kind", "location", "location_start", "view")

    def __init__(self, kind: str, key: str, location: Text, location_start: int, count: int, view: Any) -> None:
        self.kind = kind
        self.key = key
        self.location = location
        self.location_start = location_start
        self.count = count
        self.view = view


class Reference:
    """Any other persistent id."""

    __slots__ = ("identity",)

    def __init__(self, identity: Any) -> None:
        self.identity = identity
