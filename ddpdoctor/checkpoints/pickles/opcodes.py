"""The opcodes that the symbolic machine seldom meets: a function for each, or for a few of a kind.

Each changes the machine's stack as Python's unpickler would its own.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from ddpdoctor.checkpoints.errors import OutOfData, Refused
from ddpdoctor.checkpoints.pickles.machine_state import MachineState
from ddpdoctor.checkpoints.pickles.nodes import Bytes, Call, ContainerNode, HolderNode, Pair, Text, Tuple

_UINT16 = Struct("<H").unpack_from
_INT32 = Struct("<i").unpack_from
_UINT32 = Struct("<I").unpack_from
_UINT64 = Struct("<Q").unpack_from
_DOUBLE = Struct(">d").unpack_from

_Opcode = Callable[["MachineState"], None]
OTHERS: dict[int, _Opcode] = {}


def _opcode(*codes: bytes) -> Callable[[_Opcode], _Opcode]:
    def register(function: _Opcode) -> _Opcode:
        for code in codes:
            OTHERS[code[0]] = function
        return function

    return register


def _constant(code: bytes, value: Any) -> None:
    OTHERS[code[0]] = lambda machine: machine.push(value, 1)


_constant(b"N", None)
_constant(b"\x88", True)
_constant(b"\x89", False)


@_opcode(b"\x80")
def _proto(machine: MachineState) -> None:
    machine.protocol = machine.data[machine.pos + 1]
    machine.pos += 2


@_opcode(b"\x95")
def _frame(machine: MachineState) -> None:
    length = _UINT64(machine.data, machine.pos + 1)[0]
    machine.pos += 9
    if machine.pos + length > len(machine.data):
        raise OutOfData
    machine.frames.append((machine.pos, length))
    machine.opcodes.add("FRAME")


@_opcode(b"\x94")
def _memoize(machine: MachineState) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    machine.opcodes.add("MEMOIZE")
    machine.pos += 1


@_opcode(b"J")
def _binint(machine: MachineState) -> None:
    machine.push(_INT32(machine.data, machine.pos + 1)[0], 5)


@_opcode(b"M")
def _binint2(machine: MachineState) -> None:
    machine.push(_UINT16(machine.data, machine.pos + 1)[0], 3)


@_opcode(b"\x8a")
def _long1(machine: MachineState) -> None:
    length = machine.data[machine.pos + 1]
    machine.push(int.from_bytes(machine.take(length, 2), "little", signed=True), 2 + length)


@_opcode(b"\x8b")
def _long4(machine: MachineState) -> None:
    length = _UINT32(machine.data, machine.pos + 1)[0]
    machine.opcodes.add("LONG4")
    machine.push(int.from_bytes(machine.take(length, 5), "little", signed=True), 5 + length)


@_opcode(b"G")
def _binfloat(machine: MachineState) -> None:
    machine.push(_DOUBLE(machine.data, machine.pos + 1)[0], 9)


@_opcode(b"I", b"L", b"F")
def _number_as_text(machine: MachineState) -> None:
    """Python 2 wrote integers of more than 32 bits so, whatever the protocol."""
    text, end = machine.line(machine.pos + 1)
    is_float = machine.data[machine.pos] == ord("F")
    machine.opcodes.add({"I": "INT", "L": "LONG", "F": "FLOAT"}[chr(machine.data[machine.pos])])
    if len(text) > 400:
        raise Refused("The pickle holds a number of more than 400 digits")
    value: float = float(text) if is_float else int(text.rstrip("L"))
    machine.push(value, end - machine.pos)


def _text(machine: MachineState, length: int, header: int, encoding: str) -> None:
    end = machine.pos + header + length
    value = str(machine.take(length, header), encoding, "surrogatepass")
    machine.push(Text(value, machine.pos, end), end - machine.pos)


@_opcode(b"\x8c")
def _short_binunicode(machine: MachineState) -> None:
    machine.opcodes.add("SHORT_BINUNICODE")
    _text(machine, machine.data[machine.pos + 1], 2, "utf-8")


@_opcode(b"\x8d")
def _binunicode8(machine: MachineState) -> None:
    machine.opcodes.add("BINUNICODE8")
    _text(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "utf-8")


@_opcode(b"U")
def _short_binstring(machine: MachineState) -> None:
    machine.opcodes.add("SHORT_BINSTRING")
    _text(machine, machine.data[machine.pos + 1], 2, "latin-1")


@_opcode(b"T")
def _binstring(machine: MachineState) -> None:
    machine.opcodes.add("BINSTRING")
    _text(machine, _UINT32(machine.data, machine.pos + 1)[0], 5, "latin-1")


def _bytes(machine: MachineState, length: int, header: int, name: str) -> None:
    if machine.pos + header + length > len(machine.data):
        raise OutOfData
    machine.opcodes.add(name)
    machine.push(Bytes(machine.pos + header, length), header + length)


@_opcode(b"C")
def _short_binbytes(machine: MachineState) -> None:
    _bytes(machine, machine.data[machine.pos + 1], 2, "SHORT_BINBYTES")


@_opcode(b"B")
def _binbytes(machine: MachineState) -> None:
    _bytes(machine, _UINT32(machine.data, machine.pos + 1)[0], 5, "BINBYTES")


@_opcode(b"\x8e")
def _binbytes8(machine: MachineState) -> None:
    _bytes(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "BINBYTES8")


@_opcode(b"\x96")
def _bytearray8(machine: MachineState) -> None:
    _bytes(machine, _UINT64(machine.data, machine.pos + 1)[0], 9, "BYTEARRAY8")


@_opcode(b")")
def _empty_tuple(machine: MachineState) -> None:
    machine.push(Tuple((), (), machine.pos), 1)


@_opcode(b"}")
def _empty_dict(machine: MachineState) -> None:
    machine.push(ContainerNode("dict"), 1)


@_opcode(b"]")
def _empty_list(machine: MachineState) -> None:
    machine.push(ContainerNode("list"), 1)


@_opcode(b"\x8f")
def _empty_set(machine: MachineState) -> None:
    machine.opcodes.add("EMPTY_SET")
    machine.push(ContainerNode("set"), 1)


@_opcode(b"\x91")
def _frozenset(machine: MachineState) -> None:
    items, _, first = machine.to_mark()
    machine.opcodes.add("FROZENSET")
    node = ContainerNode("frozenset")
    node.items = items
    machine.stack.append(node)
    machine.starts.append(first)
    machine.pos += 1


def _holder(machine: MachineState) -> HolderNode:
    """What items are added to. A storage or a tuple takes none."""
    holder = machine.stack[-1]
    if not isinstance(holder, HolderNode):
        raise ValueError
    return holder


@_opcode(b"a")
def _append(machine: MachineState) -> None:
    value = machine.stack.pop()
    machine.starts.pop()
    _holder(machine).add([value])
    machine.pos += 1


@_opcode(b"e", b"\x90")
def _appends(machine: MachineState) -> None:
    items, starts, _ = machine.to_mark()
    holder = _holder(machine)
    holder.add(items)
    if len(items) == 2:
        machine.couples[id(holder)] = holder, Pair(items[0], starts[0], items[1], starts[1], machine.pos)
    machine.pos += 1


@_opcode(b"s")
def _setitem(machine: MachineState) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    value_start, key_start = machine.starts.pop(), machine.starts.pop()
    _holder(machine).put([Pair(key, key_start, value, value_start, machine.pos)])
    machine.pos += 1


@_opcode(b"u")
def _setitems(machine: MachineState) -> None:
    items, starts, _ = machine.to_mark()
    if len(items) % 2:
        raise ValueError
    ends = [*starts[2::2], machine.pos]
    _holder(machine).put(list(map(Pair, items[::2], starts[::2], items[1::2], starts[1::2], ends)))
    machine.pos += 1


@_opcode(b"0")
def _pop(machine: MachineState) -> None:
    machine.opcodes.add("POP")
    if machine.marks and machine.marks[-1][0] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()
        machine.starts.pop()
    machine.pos += 1


@_opcode(b"1")
def _pop_mark(machine: MachineState) -> None:
    machine.opcodes.add("POP_MARK")
    machine.to_mark()
    machine.pos += 1


@_opcode(b"c")
def _global(machine: MachineState) -> None:
    module, middle = machine.line(machine.pos + 1)
    name, end = machine.line(middle)
    machine.push(machine.global_(module, name), end - machine.pos)


@_opcode(b"\x93")
def _stack_global(machine: MachineState) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.starts.pop()
    if not isinstance(name, Text) or not isinstance(module, Text):
        raise Refused("The pickle computes the name of a class or function, which no pickler does")
    machine.opcodes.add("STACK_GLOBAL")
    machine.stack.append(machine.global_(module.value, name.value))
    machine.pos += 1


@_opcode(b"\x81")
def _newobj(machine: MachineState) -> None:
    arguments = machine.stack.pop()
    machine.starts.pop()
    call = machine.stack[-1] = Call(machine.stack[-1], arguments, machine.starts[-1])
    machine.calls.append(call)
    machine.pos += 1


@_opcode(b"\x92")
def _newobj_ex(machine: MachineState) -> None:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    del machine.starts[-2:]
    machine.opcodes.add("NEWOBJ_EX")
    both = Tuple([arguments, keywords], [], machine.pos)
    call = machine.stack[-1] = Call(machine.stack[-1], both, machine.starts[-1])
    machine.calls.append(call)
    machine.pos += 1


@_opcode(b"b")
def _build(machine: MachineState) -> None:
    state = machine.stack.pop()
    machine.starts.pop()
    holder = machine.stack[-1]
    if not isinstance(holder, Call):
        raise ValueError
    holder.state = state
    machine.pos += 1


class OldProtocol(Refused):
    """The pickle is of protocol 0 or 1."""


_OLD = b"dgilopPSV"
"""DICT, GET, INST, LIST, OBJ, PUT, PERSID, STRING, UNICODE: what later protocols have shorter opcodes for."""


def unknown_opcode(code: int) -> Refused:
    """What is said of an opcode that has no function here."""
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
