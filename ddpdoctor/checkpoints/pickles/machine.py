"""A symbolic pickle machine: runs the opcodes, and resolves, imports and calls nothing.

Where Python's unpickler would make an object, it makes a node of `nodes.py`. A malicious pickle is data like any other.
"""

from __future__ import annotations

from struct import Struct
from struct import error as _error
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.errors import Damaged, OutOfData, Refused
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection
from ddpdoctor.checkpoints.pickles.nodes import Call, ContainerNode, Global, Storage, Text, Tuple
from ddpdoctor.checkpoints.pickles.opcodes import OTHERS, MachineState, unknown_opcode
from ddpdoctor.checkpoints.pickles.plain_tensors import UNREAD, Unforeseen, fetched_late, read_tensor

_UINT32 = Struct("<I").unpack_from

_LONGEST_FIXED_BYTES = 9
"""Of the longest opcode without data of its own length."""


class Program(NamedTuple):
    """A pickle as it was read.

    root: the node it leaves; end: position behind its STOP.
    storages, calls: every one in the order of the pickle, shared ones once; not the empty dict of a plain tensor's hooks.
    globals: every class and function that it names, by full name.
    frames: position and length of each FRAME's content (protocol 4 and later).
    opcodes: those met that plain protocol 2 doesn't have, by name.
    """

    root: Any
    end: int
    storages: list[Storage]
    calls: list[Call]
    globals: dict[str, Global]
    frames: list[tuple[int, int]]
    opcodes: set[str]


def scan(data: bytes, start: int = 0) -> Program:
    """Read one pickle.

    OutOfData is raised if it goes on behind the end of `data`, Damaged if it isn't a valid pickle, Refused if it holds opcodes
    that no pickler of a checkpoint writes.
    """
    with without_collection():
        try:
            return PickleMachine(data).run(start)
        except Unforeseen:
            return PickleMachine(data, hasty=False).run(start)


class PickleMachine(MachineState):
    """One run over one pickle."""

    def run(self, start: int) -> Program:
        self.pos = start
        try:
            self._loop()
        except (IndexError, KeyError, _error, UnicodeDecodeError, ValueError) as error:
            if self.pos + _LONGEST_FIXED_BYTES > len(self.data):
                raise OutOfData from error
            raise Damaged(f"The pickle makes no sense at byte {self.pos}") from error
        if len(self.stack) != 1 or self.marks:
            raise Refused("The pickle ends with things left over on its stack, which no pickler does")
        if self.couples:
            self._adopt_couples()
        return Program(self.stack[0], self.pos, self.storages, self.calls, self.globals, self.frames, self.opcodes)

    def _loop(self) -> None:
        # The opcodes of which a state dict mostly consists stand here, for speed: a model has a million of them. The others
        # have a function each.
        data, stack, starts, marks, memo = self.data, self.stack, self.starts, self.marks, self.memo
        push, push_start = stack.append, starts.append
        others, opcodes, hasty = OTHERS, self.opcodes, self.hasty
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
                    if value.__class__ is tuple or value is UNREAD:
                        value = fetched_late(self, data[pos + 1], value)
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
                    end = read_tensor(self, pos) if hasty and data[pos + 1] == 0x28 else 0
                    if not end:
                        marks.append((len(stack), pos))
                    pos = end or pos + 1
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
                    stack[-1] = self.persistent(stack[-1])
                    pos += 1
                elif op == 0x6A:  # LONG_BINGET
                    number = _UINT32(data, pos + 1)[0]
                    value = memo[number]
                    if value.__class__ is tuple or value is UNREAD:
                        value = fetched_late(self, number, value)
                    if value.__class__ is Text:
                        value.used(pos)
                    push(value)
                    push_start(pos)
                    pos += 5
                elif op == 0x2E:  # STOP
                    pos += 1
                    return
                else:
                    if op not in others:
                        raise unknown_opcode(op)
                    run, name, length = others[op]
                    if name:
                        opcodes.add(name)
                    self.pos = pos
                    run(self)
                    pos = self.pos + length
        finally:
            self.pos = pos

    def _adopt_couples(self) -> None:
        """Make the entries of OrderedDict([[key, value], ...]), as Python 2 wrote it, a dict's like any other."""
        for call in self.calls:
            if call.name != "collections.OrderedDict" or call.pairs or not isinstance(call.arguments, Tuple):
                continue
            listed = call.arguments.items
            if len(listed) == 1 and isinstance(listed[0], ContainerNode) and listed[0].kind == "list":
                couples = [self.couples.get(id(item)) for item in listed[0].items]
                pairs = [couple[1] for couple in couples if couple and len(couple[0].items) == 2]
                if len(pairs) == len(couples):
                    call.pairs = pairs
                    call.arguments = Tuple((), (), call.arguments.end)
