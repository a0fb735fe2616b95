"""The opcodes that the symbolic machine seldom meets: a function for each, or for a few of a kind.

Each changes the machine's stack as Python's unpickler would its own.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.machine_state import MachineState
from ddpdoctor.checkpoints.pickles.nodes import Bytes, Call, ContainerNode, HolderNode, Pair, Text, Tuple

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


def _number(code: bytes, form: str) -> None:
    """An opcode that holds a number of a fixed size."""
    unpack, size = Struct(form).unpack_from, 1 + Struct(form).size
    OTHERS[code[0]] = lambda machine: machine.push(unpack(machine.data, machine.pos + 1)[0], size)


_number(b"J", "<i")
_number(b"M", "<H")
_number(b"G", ">d")

_Reader = Callable[["MachineState", int, int], Any]
"""Given how many bytes an opcode holds, and how many stand before them."""


def _counted(code: bytes, form: str, read: _Reader, name: str = "") -> None:
    """An opcode that holds bytes, and before them their number. name: of one that plain protocol 2 doesn't have."""
    unpack, header = Struct(form).unpack_from, 1 + Struct(form).size

    def run(machine: MachineState) -> None:
        if name:
            machine.opcodes.add(name)
        length = unpack(machine.data, machine.pos + 1)[0]
        machine.push(read(machine, length, header), header + length)

    OTHERS[code[0]] = run


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


@_opcode(b"\x80")
def _proto(machine: MachineState) -> None:
    machine.protocol = machine.data[machine.pos + 1]
    machine.pos += 2


_UINT64 = Struct("<Q").unpack_from


@_opcode(b"\x95")
def _frame(machine: MachineState) -> None:
    length = _UINT64(machine.data, machine.pos + 1)[0]
    machine.pos += 9
    machine.ensure(machine.pos + length)
    machine.frames.append((machine.pos, length))
    machine.opcodes.add("FRAME")


@_opcode(b"\x94")
def _memoize(machine: MachineState) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    machine.opcodes.add("MEMOIZE")
    machine.pos += 1


_MAX_DIGITS = 400


@_opcode(b"I", b"L", b"F")
def _number_as_text(machine: MachineState) -> None:
    # A number in digits. Python 2 wrote integers of more than 32 bits so, whatever the protocol.
    text, end = machine.line(machine.pos + 1)
    is_float = machine.data[machine.pos] == ord("F")
    machine.opcodes.add({"I": "INT", "L": "LONG", "F": "FLOAT"}[chr(machine.data[machine.pos])])
    if len(text) > _MAX_DIGITS:
        raise Refused(f"The pickle holds a number of more than {_MAX_DIGITS} digits")
    value: float = float(text) if is_float else int(text.rstrip("L"))
    machine.push(value, end - machine.pos)


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
    # The node that items are added to.
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


def _call(machine: MachineState, arguments: Any) -> None:
    call = machine.stack[-1] = Call(machine.stack[-1], arguments, machine.starts[-1])
    machine.calls.append(call)
    machine.pos += 1


@_opcode(b"\x81")
def _newobj(machine: MachineState) -> None:
    machine.starts.pop()
    _call(machine, machine.stack.pop())


@_opcode(b"\x92")
def _newobj_ex(machine: MachineState) -> None:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    del machine.starts[-2:]
    machine.opcodes.add("NEWOBJ_EX")
    _call(machine, Tuple([arguments, keywords], [], machine.pos))


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
