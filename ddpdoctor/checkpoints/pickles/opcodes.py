"""The state of the symbolic machine, and the opcodes that it seldom meets: a function for each, or for a few of a kind.

Each changes the machine's stack as Python's unpickler would its own.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from ddpdoctor.checkpoints.errors import OutOfData, Refused
from ddpdoctor.checkpoints.pickles.nodes import (
    Bytes,
    Call,
    ContainerNode,
    Global,
    HolderNode,
    Pair,
    Reference,
    Storage,
    Text,
    Tuple,
)


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

    def pop(self) -> tuple[Any, int]:
        """The topmost value, and where it stands."""
        return self.stack.pop(), self.starts.pop()

    def holder(self) -> HolderNode:
        """The topmost node, into which items are put.

        Raises:
            ValueError: nothing can be put into it.
        """
        if not isinstance(self.stack[-1], HolderNode):
            raise ValueError
        return self.stack[-1]

    def call(self, arguments: Any) -> None:
        """Call what is topmost."""
        call = self.stack[-1] = Call(self.stack[-1], arguments, self.starts[-1])
        self.calls.append(call)

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

    def drop_to_mark(self) -> None:
        self.to_mark()

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


_Opcode = Callable[[MachineState], None]
OTHERS: dict[int, tuple[_Opcode, str, int]] = {}
"""By code: what the opcode does; its name, if plain protocol 2 doesn't have it; its length, 0 if the function goes on behind it."""


def _opcode(code: bytes, name: str = "", *, length: int = 1) -> Callable[[_Opcode], _Opcode]:
    """Register what an opcode does."""

    def register(function: _Opcode) -> _Opcode:
        OTHERS[code[0]] = function, name, length
        return function

    return register


_opcode(b"N")(lambda machine: machine.push(None, 0))
_opcode(b"\x88")(lambda machine: machine.push(True, 0))
_opcode(b"\x89")(lambda machine: machine.push(False, 0))
_opcode(b")")(lambda machine: machine.push(Tuple((), (), machine.pos), 0))
_opcode(b"}")(lambda machine: machine.push(ContainerNode("dict"), 0))
_opcode(b"]")(lambda machine: machine.push(ContainerNode("list"), 0))
_opcode(b"\x8f", "EMPTY_SET")(lambda machine: machine.push(ContainerNode("set"), 0))


def _number(code: bytes, form: str) -> None:
    """An opcode that holds a number of a fixed size."""
    unpack, size = Struct(form).unpack_from, 1 + Struct(form).size
    _opcode(code, length=0)(lambda machine: machine.push(unpack(machine.data, machine.pos + 1)[0], size))


_number(b"J", "<i")
_number(b"M", "<H")
_number(b"G", ">d")

_Reader = Callable[[MachineState, int, int], Any]
"""Given how many bytes an opcode holds, and how many stand before them."""


def _counted(code: bytes, form: str, read: _Reader, name: str = "") -> None:
    """An opcode that holds bytes, and before them their number."""
    unpack, header = Struct(form).unpack_from, 1 + Struct(form).size

    @_opcode(code, name, length=0)
    def run(machine: MachineState) -> None:
        length = unpack(machine.data, machine.pos + 1)[0]
        machine.push(read(machine, length, header), header + length)


def _long(machine: MachineState, length: int, header: int) -> int:
    return int.from_bytes(machine.take(length, header), "little", signed=True)


def _text(encoding: str) -> _Reader:
    def read(machine: MachineState, length: int, header: int) -> Text:
        value = str(machine.take(length, header), encoding, "surrogatepass")
        return Text(value, machine.pos, machine.pos + header + length)

    return read


def _bytes(machine: MachineState, length: int, header: int) -> Bytes:
    machine.ensure(machine.pos + header + length)
    return Bytes(machine.pos + header, length)


_counted(b"\x8a", "<B", _long)
_counted(b"\x8b", "<I", _long, "LONG4")
_counted(b"\x8c", "<B", _text("utf-8"), "SHORT_BINUNICODE")
_counted(b"\x8d", "<Q", _text("utf-8"), "BINUNICODE8")
_counted(b"U", "<B", _text("latin-1"), "SHORT_BINSTRING")
_counted(b"T", "<I", _text("latin-1"), "BINSTRING")
_counted(b"C", "<B", _bytes, "SHORT_BINBYTES")
_counted(b"B", "<I", _bytes, "BINBYTES")
_counted(b"\x8e", "<Q", _bytes, "BINBYTES8")
_counted(b"\x96", "<Q", _bytes, "BYTEARRAY8")


@_opcode(b"\x80", length=2)
def _proto(machine: MachineState) -> None:
    # Which protocol it is, the opcodes themselves show.
    machine.ensure(machine.pos + 2)


_UINT64 = Struct("<Q").unpack_from


@_opcode(b"\x95", "FRAME", length=9)
def _frame(machine: MachineState) -> None:
    length = _UINT64(machine.data, machine.pos + 1)[0]
    machine.ensure(machine.pos + 9 + length)
    machine.frames.append((machine.pos + 9, length))


@_opcode(b"\x94", "MEMOIZE")
def _memoize(machine: MachineState) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


_MAX_DIGITS = 400


@_opcode(b"I", "INT", length=0)
@_opcode(b"L", "LONG", length=0)
@_opcode(b"F", "FLOAT", length=0)
def _number_as_text(machine: MachineState) -> None:
    # A number in digits. Python 2 wrote integers of more than 32 bits so, whatever the protocol.
    text, end = machine.line(machine.pos + 1)
    if len(text) > _MAX_DIGITS:
        raise Refused(f"The pickle holds a number of more than {_MAX_DIGITS} digits")
    is_float = machine.data[machine.pos] == ord("F")
    machine.push(float(text) if is_float else int(text.rstrip("L")), end - machine.pos)


@_opcode(b"\x91", "FROZENSET")
def _frozenset(machine: MachineState) -> None:
    node = ContainerNode("frozenset")
    node.items, _, first = machine.to_mark()
    machine.stack.append(node)
    machine.starts.append(first)


@_opcode(b"a")
def _append(machine: MachineState) -> None:
    value, _ = machine.pop()
    machine.holder().add([value])


@_opcode(b"e")
@_opcode(b"\x90")
def _appends(machine: MachineState) -> None:
    items, starts, _ = machine.to_mark()
    holder = machine.holder()
    holder.add(items)
    if len(items) == 2:
        machine.couples[id(holder)] = holder, Pair(items[0], starts[0], items[1], starts[1], machine.pos)


@_opcode(b"s")
def _setitem(machine: MachineState) -> None:
    value, value_start = machine.pop()
    key, key_start = machine.pop()
    machine.holder().put([Pair(key, key_start, value, value_start, machine.pos)])


@_opcode(b"u")
def _setitems(machine: MachineState) -> None:
    items, starts, _ = machine.to_mark()
    if len(items) % 2:
        raise ValueError
    ends = [*starts[2::2], machine.pos]
    machine.holder().put(list(map(Pair, items[::2], starts[::2], items[1::2], starts[1::2], ends)))


@_opcode(b"0", "POP")
def _pop(machine: MachineState) -> None:
    if machine.marks and machine.marks[-1][0] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop()


_opcode(b"1", "POP_MARK")(MachineState.drop_to_mark)
_opcode(b"\x81")(lambda machine: machine.call(machine.pop()[0]))


@_opcode(b"\x92", "NEWOBJ_EX")
def _newobj_ex(machine: MachineState) -> None:
    keywords, arguments = machine.pop()[0], machine.pop()[0]
    machine.call(Tuple([arguments, keywords], [], machine.pos))


@_opcode(b"c", length=0)
def _global(machine: MachineState) -> None:
    module, middle = machine.line(machine.pos + 1)
    name, end = machine.line(middle)
    machine.push(machine.global_(module, name), end - machine.pos)


@_opcode(b"\x93", "STACK_GLOBAL")
def _stack_global(machine: MachineState) -> None:
    name, _ = machine.pop()
    module = machine.stack[-1]
    if not isinstance(name, Text) or not isinstance(module, Text):
        raise Refused("The pickle computes the name of a class or function, which no pickler does")
    machine.stack[-1] = machine.global_(module.value, name.value)


@_opcode(b"b")
def _build(machine: MachineState) -> None:
    state, _ = machine.pop()
    if not isinstance(machine.stack[-1], Call):
        raise ValueError
    machine.stack[-1].state = state


class OldProtocol(Refused):
    """The pickle is of protocol 0 or 1."""


_OLD = b"dgilopPSV"
"""DICT, GET, INST, LIST, OBJ, PUT, PERSID, STRING, UNICODE: what later protocols have shorter opcodes for."""


def unknown_opcode(code: int) -> Refused:
    """The refusal of an opcode that has no function here."""
    if code in _OLD:
        return OldProtocol(
            f"Its pickle is of protocol 0 or 1 ({_opcode_name(code)}), which torch.save writes only where it is told to",
            "torch.load can't read tensors from it either: where it comes from, save it with torch.save's own protocol, "
            "torch.save(value, path) without pickle_protocol",
        )
    return Refused(f"The pickle uses {_opcode_name(code)}, which torch.save never writes")


def _opcode_name(code: int) -> str:
    # Here and not above: it is needed for suspicious files only, and takes milliseconds to load.
    import pickletools

    names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    return f"the opcode {names[chr(code)]}" if chr(code) in names else f"the unknown opcode 0x{code:02x}"
