"""The state of a symbolic pickle machine: its stack, marks and memo, and what it met so far."""

from __future__ import annotations

from typing import Any

from ddpdoctor.checkpoints.errors import OutOfData, Refused
from ddpdoctor.checkpoints.pickles.nodes import Call, Global, HolderNode, Pair, Reference, Storage, Text, Tuple


class MachineState:
    """The state of one run over one pickle. hasty: plain tensors are read at one go."""

    def __init__(self, data: bytes, *, hasty: bool = True) -> None:
        self.data = data
        self.hasty = hasty
        self.pos = 0
        self.stack: list[Any] = []
        self.starts: list[int] = []
        self.marks: list[tuple[int, int]] = []
        self.memo: dict[int, Any] = {}
        self.protocol = 0
        self.storages: list[Storage] = []
        self.calls: list[Call] = []
        self.globals: dict[str, Global] = {}
        self.frames: list[tuple[int, int]] = []
        self.opcodes: set[str] = set()
        # Lists of two, by id, as the dict entries that they may turn out to be.
        self.couples: dict[int, tuple[HolderNode, Pair]] = {}

    def push(self, value: Any, size: int) -> None:
        self.stack.append(value)
        self.starts.append(self.pos)
        self.pos += size

    def take(self, length: int, header: int) -> bytes:
        """The data that follows an opcode's header."""
        begin = self.pos + header
        self.ensure(begin + length)
        return self.data[begin : begin + length]

    def ensure(self, end: int) -> None:
        """Make sure that the data reaches so far.

        Raises:
            OutOfData: it doesn't.
        """
        if end > len(self.data):
            raise OutOfData

    def line(self, begin: int) -> tuple[str, int]:
        """Text up to the next newline, and where it goes on.

        Raises:
            OutOfData: there is none.
        """
        end = self.data.find(b"\n", begin)
        if end < 0:
            raise OutOfData
        return str(self.data[begin:end], "utf-8"), end + 1

    def to_mark(self) -> tuple[list[Any], list[int], int]:
        height, first = self.marks.pop()
        items, starts = self.stack[height:], self.starts[height:]
        del self.stack[height:], self.starts[height:]
        return items, starts, first

    def global_(self, module: str, name: str) -> Global:
        return self.globals.setdefault(f"{module}.{name}", Global(module, name))

    def persistent(self, identity: Any) -> Storage | Reference:
        items = identity.items if isinstance(identity, Tuple) else []
        if len(items) >= 5 and isinstance(items[0], Text) and items[0].value == "storage":
            _, kind, key, location, count, *rest = items
            if isinstance(key, Text) and isinstance(location, Text) and type(count) is int and isinstance(kind, Global):
                storage = Storage(kind.name, key.value, location, identity.starts[3], count, rest[0] if rest else None)
                self.storages.append(storage)
                return storage
        first = items[0] if items else None
        # torch takes bytes for text, and whatever a call makes. Passed over, such a storage's pin would go unseen.
        if isinstance(identity, Call) or (items and (not isinstance(first, Text) or first.value == "storage")):
            raise Refused("The pickle names a storage in a way that torch.save never does")
        return Reference(identity)
