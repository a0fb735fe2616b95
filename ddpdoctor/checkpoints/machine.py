"""A symbolic pickle machine: runs the opcodes, and resolves, imports and calls nothing.

Where Python's unpickler would make an object, it makes a node of `nodes.py`. A malicious pickle is data like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as _error
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.errors import Damaged, Refused
from ddpdoctor.checkpoints.garbage import without_collection
from ddpdoctor.checkpoints.nodes import Bytes, Call, Container, Global, Holder, Pair, Reference, Storage, Text, Tuple

_UINT16 = Struct("<H").unpack_from
_INT32 = Struct("<i").unpack_from
_UINT32 = Struct("<I").unpack_from
_UINT64 = Struct("<Q").unpack_from
_DOUBLE = Struct(">d").unpack_from

_LONGEST_FIXED = 9
"""Bytes of the longest opcode without data of its own length."""


class OutOfData(Damaged):
    """The pickle goes on behind the end of the data."""

    def __init__(self) -> None:
        super().__init__("The pickle breaks off in the middle")


class Program(NamedTuple):
    """A pickle as it was read.

    root: the node it leaves; end: position behind its STOP.
    storages, calls: every one in the order of the pickle, shared ones once.
    globals: every class and function that it names, by full name.
    frames: position and length of each FRAME's content (protocol 4 and later).
    opcodes: those met that plain protocol 2 doesn't have, by name.
    """

    root: Any
    end: int
    protocol: int
    storages: list[Storage]
    calls: list[Call]
    globals: dict[str, Global]
    frames: list[tuple[int, int]]
    opcodes: set[str]


def scan(data: bytes, start: int = 0) -> Program:
    """Reads one pickle.

    Raises:
        OutOfData: it goes on behind the end of `data`.
        Damaged: it isn't a valid pickle.
        Refused: it holds opcodes that no pickler of a checkpoint writes.
    """
    with without_collection():
        return _Machine(data).run(start)


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
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
        self.couples: dict[int, tuple[Holder, Pair]] = {}

    def run(self, start: int) -> Program:
        self.pos = start
        try:
            self._loop()
        except (IndexError, KeyError, _error, UnicodeDecodeError, ValueError) as error:
            if self.pos + _LONGEST_FIXED > len(self.data):
                raise OutOfData from error
            raise Damaged(f"The pickle makes no sense at byte {self.pos}") from error
        if len(self.stack) != 1 or self.marks:
            raise Refused("The pickle ends with things left over on its stack, which no pickler does")
        if self.couples:
            self._adopt_couples()
        return Program(
            self.stack[0],
            self.pos,
            self.protocol,
            self.storages,
            self.calls,
            self.globals,
            self.frames,
            self.opcodes,
        )

    def _loop(self) -> None:
        """Runs to the STOP. The opcodes of which a state dict mostly consists stand here, for speed: a model has a
        million of them. The others have a function each."""
        data, stack, starts, marks, memo = self.data, self.stack, self.starts, self.marks, self.memo
        push, push_start = stack.append, starts.append
        others = _OTHERS
        pos = self.pos
        try:
            while True:
                op = data[pos]
                if op == 0x72:  # LONG_BINPUT
                    memo[_UINT32(data, pos + 1)[0]] = stack[-1]
                    pos += 5
                elif op == 0x4B:  # BININT1
                    push(data[pos + 1])
                    push_start(pos)
                    pos += 2
                elif op == 0x68:  # BINGET
                    value = memo[data[pos + 1]]
                    if value.__class__ is Text:
                        value.used(pos)
                    push(value)
                    push_start(pos)
                    pos += 2
                elif op == 0x58:  # BINUNICODE
                    begin = pos + 5
                    end = begin + _UINT32(data, pos + 1)[0]
                    if end > len(data):
                        raise OutOfData
                    push(Text(str(data[begin:end], "utf-8", "surrogatepass"), pos, end))
                    push_start(pos)
                    pos = end
                elif op == 0x71:  # BINPUT
                    memo[data[pos + 1]] = stack[-1]
                    pos += 2
                elif op == 0x28:  # MARK
                    marks.append((len(stack), pos))
                    pos += 1
                elif op == 0x74:  # TUPLE
                    height, first = marks.pop()
                    node = Tuple(stack[height:], starts[height:], pos)
                    stack[height:] = (node,)
                    starts[height:] = (first,)
                    pos += 1
                elif 0x85 <= op <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
                    height = len(stack) - op + 0x84
                    if height < 0:
                        raise IndexError
                    node = Tuple(stack[height:], starts[height:], pos)
                    stack[height:] = (node,)
                    del starts[height + 1 :]
                    pos += 1
                elif op == 0x52:  # REDUCE
                    arguments = stack.pop()
                    starts.pop()
                    call = stack[-1] = Call(stack[-1], arguments, starts[-1])
                    self.calls.append(call)
                    pos += 1
                elif op == 0x51:  # BINPERSID
                    stack[-1] = self._persistent(stack[-1])
                    pos += 1
                elif op == 0x6A:  # LONG_BINGET
                    value = memo[_UINT32(data, pos + 1)[0]]
                    if value.__class__ is Text:
                        value.used(pos)
                    push(value)
                    push_start(pos)
                    pos += 5
                elif op == 0x2E:  # STOP
                    pos += 1
                    return
                else:
                    other = others.get(op)
                    if other is None:
                        raise Refused(f"The pickle uses {_opcode_name(op)}, which torch.save never writes")
                    self.pos = pos
                    other(self)
                    pos = self.pos
        finally:
            self.pos = pos

    def push(self, value: Any, size: int) -> None:
        self.stack.append(value)
        self.starts.append(self.pos)
        self.pos += size

    def take(self, length: int, header: int) -> bytes:
        """The data that follows an opcode's header."""
        begin = self.pos + header
        if begin + length > len(self.data):
            raise OutOfData
        return self.data[begin : begin + length]

    def line(self, begin: int) -> tuple[str, int]:
        """Text up to the next newline, and where it goes on."""
        end = self.data.find(b"\n", begin)
        if end < 0:
            raise OutOfData
        return str(self.data[begin:end], "utf-8"), end + 1

    def to_mark(self) -> tuple[list[Any], list[int], int]:
        height, first = self.marks.pop()
        items, starts = self.stack[height:], self.starts[height:]
        del self.stack[height:], self.starts[height:]
        return items, starts, first

    def _adopt_couples(self) -> None:
        """Python 2 wrote OrderedDict([[key, value], ...]): its entries are a dict's like any other."""
        for call in self.calls:
            if call.name != "collections.OrderedDict" or call.pairs or not isinstance(call.arguments, Tuple):
                continue
            listed = call.arguments.items
            if len(listed) == 1 and isinstance(listed[0], Container) and listed[0].kind == "list":
                couples = [self.couples.get(id(item)) for item in listed[0].items]
                pairs = [couple[1] for couple in couples if couple and len(couple[0].items) == 2]
                if len(pairs) == len(couples):
                    call.pairs = pairs
                    call.arguments = Tuple((), (), call.arguments.end)

    def global_(self, module: str, name: str) -> Global:
        return self.globals.setdefault(f"{module}.{name}", Global(module, name))

    def _persistent(self, identity: Any) -> Storage | Reference:
        items = identity.items if isinstance(identity, Tuple) else []
        if len(items) >= 5 and isinstance(items[0], Text) and items[0].value == "storage":
            _, kind, key, location, count, *rest = items
            if isinstance(key, Text) and isinstance(location, Text) and type(count) is int and isinstance(kind, Global):
                storage = Storage(kind.name, key.value, location, identity.starts[3], count, rest[0] if rest else None)
                self.storages.append(storage)
                return storage
        return Reference(identity)


# Each of the following is one opcode, or a few of a kind: it changes the machine as Python's unpickler would its stack.
_Opcode = Callable[[_Machine], None]
_OTHERS: dict[int, _Opcode] = {}


def _opcode(*codes: bytes) -> Callable[[_Opcode], _Opcode]:
    def register(function: _Opcode) -> _Opcode:
        for code in codes:
            _OTHERS[code[0]] = function
        return function

    return register


def _constant(code: bytes, value: Any) -> None:
    _OTHERS[code[0]] = lambda machine: machine.push(value, 1)


_constant(b"N", None)
_constant(b"\x88", True)
_constant(b"\x89", False)


@_opcode(b"\x80")
def _proto(machine: _Machine) -> None:
    machine.protocol = machine.data[machine.pos + 1]
    machine.pos += 2


@_opcode(b"\x95")
def _frame(machine: _Machine) -> None:
    length = _UINT64(machine.data, machine.pos + 1)[0]
    machine.pos += 9
    if machine.pos + length > len(machine.data):
        raise OutOfData
    machine.frames.append((machine.pos, length))
    machine.opcodes.add("FRAME")


@_opcode(b"\x94")
def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    machine.opcodes.add("MEMOIZE")
    machine.pos += 1


@_opcode(b"J")
def _binint(machine: _Machine) -> None:
    machine.push(_INT32(machine.data, machine.pos + 1)[0], 5)


@_opcode(b"M")
def _binint2(machine: _Machine) -> None:
    machine.push(_UINT16(machine.data, machine.pos + 1)[0], 3)


@_opcode(b"\x8a")
def _long1(machine: _Machine) -> None:
    length = machine.data[machine.pos + 1]
    machine.push(int.from_bytes(machine.take(length, 2), "little", signed=True), 2 + length)


@_opcode(b"\x8b")
def _long4(machine: _Machine) -> None:
    length = _UINT32(machine.data, machine.pos + 1)[0]
    machine.opcodes.add("LONG4")
    machine.push(int.from_bytes(machine.take(length, 5), "little", signed=True), 5 + length)


@_opcode(b"G")
def _binfloat(machine: _Machine) -> None:
    machine.push(_DOUBLE(machine.data, machine.pos + 1)[0], 9)


@_opcode(b"I", b"L", b"F")
def _number_as_text(machine: _Machine) -> None:
    """Python 2 wrote integers of more than 32 bits so, whatever the protocol."""
    text, end = machine.line(machine.pos + 1)
    is_float = machine.data[machine.pos] == ord("F")
    machine.opcodes.add({"I": "INT", "L": "LONG", "F": "FLOAT"}[chr(machine.data[machine.pos])])
    if len(text) > 400:
        raise Refused("The pickle holds a number of more than 400 digits")
    value: float = float(text) if is_float else int(text.rstrip("L"))
    machine.push(value, end - machine.pos)


def _text(machine: _Machine, length: int, header: int, encoding: str) -> None:
    end = machine.pos + header + length
    value = str(machine.take(length, header), encoding, "surrogatepass")
    machine.push(Text(value, machine.pos, end), end - machine.pos)


@_opcode(b"\x8c")
def _short_binunicode(machine: _Machine) -> None:
    machine.opcodes.add("SHORT_BINUNICODE")
    _text(machine, machine.data[machine.pos + 1], 2, "utf-8")


@_opcode(b"\x8d")
def _binunicode8(machine: _Machine) -> None:
    machine.opcodes.add("BINUNICODE8")
    _text(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "utf-8")


@_opcode(b"U")
def _short_binstring(machine: _Machine) -> None:
    machine.opcodes.add("SHORT_BINSTRING")
    _text(machine, machine.data[machine.pos + 1], 2, "latin-1")


@_opcode(b"T")
def _binstring(machine: _Machine) -> None:
    machine.opcodes.add("BINSTRING")
    _text(machine, _UINT32(machine.data, machine.pos + 1)[0], 5, "latin-1")


def _bytes(machine: _Machine, length: int, header: int, name: str) -> None:
    if machine.pos + header + length > len(machine.data):
        raise OutOfData
    machine.opcodes.add(name)
    machine.push(Bytes(machine.pos + header, length), header + length)


@_opcode(b"C")
def _short_binbytes(machine: _Machine) -> None:
    _bytes(machine, machine.data[machine.pos + 1], 2, "SHORT_BINBYTES")


@_opcode(b"B")
def _binbytes(machine: _Machine) -> None:
    _bytes(machine, _UINT32(machine.data, machine.pos + 1)[0], 5, "BINBYTES")


@_opcode(b"\x8e")
def _binbytes8(machine: _Machine) -> None:
    _bytes(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "BINBYTES8")


@_opcode(b"\x96")
def _bytearray8(machine: _Machine) -> None:
    _bytes(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "BYTEARRAY8")


@_opcode(b")")
def _empty_tuple(machine: _Machine) -> None:
    machine.push(Tuple((), (), machine.pos), 1)


@_opcode(b"}")
def _empty_dict(machine: _Machine) -> None:
    machine.push(Container("dict"), 1)


@_opcode(b"]")
def _empty_list(machine: _Machine) -> None:
    machine.push(Container("list"), 1)


@_opcode(b"\x8f")
def _empty_set(machine: _Machine) -> None:
    machine.opcodes.add("EMPTY_SET")
    machine.push(Container("set"), 1)


@_opcode(b"\x91")
def _frozenset(machine: _Machine) -> None:
    items, _, first = machine.to_mark()
    machine.opcodes.add("FROZENSET")
    node = Container("frozenset")
    node.items = items
    machine.stack.append(node)
    machine.starts.append(first)
    machine.pos += 1


def _holder(machine: _Machine) -> Holder:
    """What items are added to. A storage or a tuple takes none."""
    holder = machine.stack[-1]
    if not isinstance(holder, Holder):
        raise ValueError
    return holder


@_opcode(b"a")
def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.starts.pop()
    _holder(machine).add([value])
    machine.pos += 1


@_opcode(b"e", b"\x90")
def _appends(machine: _Machine) -> None:
    items, starts, _ = machine.to_mark()
    holder = _holder(machine)
    holder.add(items)
    if len(items) == 2:
        machine.couples[id(holder)] = holder, Pair(items[0], starts[0], items[1], starts[1], machine.pos)
    machine.pos += 1


@_opcode(b"s")
def _setitem(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    value_start, key_start = machine.starts.pop(), machine.starts.pop()
    _holder(machine).put([Pair(key, key_start, value, value_start, machine.pos)])
    machine.pos += 1


@_opcode(b"u")
def _setitems(machine: _Machine) -> None:
    items, starts, _ = machine.to_mark()
    if len(items) % 2:
        raise ValueError
    ends = [*starts[2::2], machine.pos]
    _holder(machine).put(list(map(Pair, items[::2], starts[::2], items[1::2], starts[1::2], ends)))
    machine.pos += 1


@_opcode(b"0")
def _pop(machine: _Machine) -> None:
    machine.opcodes.add("POP")
    if machine.marks and machine.marks[-1][0] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()
        machine.starts.pop()
    machine.pos += 1


@_opcode(b"1")
def _pop_mark(machine: _Machine) -> None:
    machine.opcodes.add("POP_MARK")
    machine.to_mark()
    machine.pos += 1


@_opcode(b"c")
def _global(machine: _Machine) -> None:
    module, middle = machine.line(machine.pos + 1)
    name, end = machine.line(middle)
    machine.push(machine.global_(module, name), end - machine.pos)


@_opcode(b"\x93")
def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.starts.pop()
    if not isinstance(name, Text) or not isinstance(module, Text):
        raise Refused("The pickle computes the name of a class or function, which no pickler does")
    machine.opcodes.add("STACK_GLOBAL")
    machine.stack.append(machine.global_(module.value, name.value))
    machine.pos += 1


@_opcode(b"\x81")
def _newobj(machine: _Machine) -> None:
    arguments = machine.stack.pop()
    machine.starts.pop()
    call = machine.stack[-1] = Call(machine.stack[-1], arguments, machine.starts[-1])
    machine.calls.append(call)
    machine.pos += 1


@_opcode(b"\x92")
def _newobj_ex(machine: _Machine) -> None:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    del machine.starts[-2:]
    machine.opcodes.add("NEWOBJ_EX")
    both = Tuple([arguments, keywords], [], machine.pos)
    call = machine.stack[-1] = Call(machine.stack[-1], both, machine.starts[-1])
    machine.calls.append(call)
    machine.pos += 1


@_opcode(b"b")
def _build(machine: _Machine) -> None:
    state = machine.stack.pop()
    machine.starts.pop()
    holder = machine.stack[-1]
    if not isinstance(holder, Call):
        raise ValueError
    holder.state = state
    machine.pos += 1


def _opcode_name(code: int) -> str:
    # Here and not above: it is needed for suspicious files only, and takes milliseconds to load.
    import pickletools

    names = {one.code: one.name for one in pickletools.opcodes}
    return f"the opcode {names[chr(code)]}" if chr(code) in names else f"the unknown opcode 0x{code:02x}"
