"""The opcodes that made each part of a pickle, so that a part can be cut out of it and the rest still makes sense.

Slower than the machine, and only ever used on a pickle that the machine has read: it takes the opcodes for valid. What
they do to the stack comes from Python's own table, in pickletools.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from ddpdoctor.checkpoints.errors import Refused

_PUTS = b"qr\x94"
_GETS = b"hj"
_CHANGES = b"aesu\x90b"
"""APPEND, APPENDS, SETITEM, SETITEMS, ADDITEMS, BUILD: what they change stays where it is."""
_MARK, _POP, _STOP, _EMPTY_LIST, _MEMOIZE, _FRAME = b"(0.]\x94\x95"
_TO_MARK = -1


class Item:
    """A thing that opcodes `start` up to `end` (not included) made. puts: what put it into the memo."""

    __slots__ = ("end", "puts", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.puts: tuple[Put, ...] = ()


class Put(NamedTuple):
    """One opcode that puts `item` into the memo."""

    number: int
    item: Item


_Rule = tuple[int, int, bool]
"""An opcode's length in bytes, or below 0, as pickletools says how to find it; how many things it pops, or to the mark; whether it
makes something new of them."""


class Spans:
    """The opcodes of one pickle, numbered.

    positions: where each begins, and last the pickle's end.
    puts, gets: by the opcode's number, what it puts into the memo or fetches from there.
    starts: by number, the things in the memo whose opcodes begin there, inner ones first.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.positions = array("Q")
        self.puts: dict[int, Put] = {}
        self.gets: dict[int, Item] = {}
        self.starts: dict[int, list[Item]] = {}
        self.root = self._walk()

    def at(self, position: int) -> int:
        """The number of the opcode at this position."""
        return bisect_left(self.positions, position)

    def code(self, number: int) -> int:
        """The opcode itself."""
        return self.data[self.positions[number]]

    def mark_before(self, number: int) -> int:
        """The MARK right before an opcode; only a FRAME can stand between them."""
        return self._before(number, _MARK, bytes([_FRAME]))

    def list_before(self, number: int) -> int:
        """The EMPTY_LIST right before an opcode, but for what puts it into the memo."""
        return self._before(number, _EMPTY_LIST, _PUTS)

    def _before(self, number: int, wanted: int, between: bytes) -> int:
        number -= 1
        while self.code(number) in between:
            number -= 1
        if self.code(number) != wanted:
            raise Refused("The pickle holds a dict that was filled in an unusual way")
        return number

    def _walk(self) -> Item:
        data, rules = self.data, _rules()
        stack: list[Item] = []
        marks: list[tuple[int, int]] = []
        memo: dict[int, Item] = {}
        position, number = 0, 0
        while True:
            code = data[position]
            self.positions.append(position)
            length, pops, pushes = rules[code]
            if code in _PUTS:
                self._put(number, position, stack[-1], memo)
            elif code == _MARK:
                marks.append((len(stack), number))
            elif code == _STOP:
                self.positions.append(position + 1)
                return stack[-1]
            elif code == _POP and marks and marks[-1][0] == len(stack):
                marks.pop()
            elif pops or pushes:
                start = number
                if pops:
                    height, first = marks.pop() if pops == _TO_MARK else (len(stack) - pops, -1)
                    if pushes:
                        start = stack[height].start if first < 0 else first
                    del stack[height:]
                if pushes:
                    stack.append(Item(start, number + 1))
                    if code in _GETS:
                        self.gets[number] = memo[_number(data, position)]
                elif code in _CHANGES:
                    stack[-1].end = number + 1
            position += length if length > 0 else _length(data, position, length)
            number += 1

    def _put(self, number: int, position: int, item: Item, memo: dict[int, Item]) -> None:
        slot = len(memo) if self.data[position] == _MEMOIZE else _number(self.data, position)
        memo[slot] = item
        item.end = number + 1
        put = self.puts[number] = Put(slot, item)
        if not item.puts:
            self.starts.setdefault(item.start, []).append(item)
        item.puts += (put,)

    def emit(self, begin: int, end: int, dropped: Mapping[int, int]) -> bytes:
        """A pickle of what opcodes `begin` up to `end` make, without those that `dropped` leads from and to.

        What is fetched from the memo, and was put there by opcodes that are gone, is made where it is first fetched.
        Numbers in the memo stay as they were. Of protocol 4, MEMOIZE, which counts by itself, becomes BINPUT, and the
        frames go: no reader needs them.

        Raises:
            Refused: it refers back and forth in a way that no pickler writes.
        """
        data, positions = self.data, self.positions
        memo: dict[int, Item] = {}
        pieces = [data[:2]] if data[:1] == b"\x80" else []
        most, size = 2 * len(data) + 1024, 0
        waiting = [(begin, end)]
        while waiting:
            number, end = waiting.pop()
            while number < end:
                if dropped.get(number, end + 1) <= end:
                    number = dropped[number]
                    continue
                known = self._known(number, end, memo)
                if known is not None:
                    pieces.append(_memo_opcode(b"hj", known.number))
                    number = known.item.end
                    continue
                fetched = self.gets.get(number)
                if fetched is not None:
                    put = _in_memo(fetched, memo)
                    if put is None:
                        waiting.append((number + 1, end))
                        number, end = fetched.start, fetched.end
                        continue
                    piece = _memo_opcode(b"hj", put.number)
                elif number in self.puts:
                    put = self.puts[number]
                    memo[put.number] = put.item
                    piece = _memo_opcode(b"qr", put.number)
                else:
                    piece = data[positions[number] : positions[number + 1]]
                    if piece[0] == _FRAME:
                        piece = b""
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise Refused("The pickle refers back and forth in a way that no pickler writes")
                number += 1
        return b"".join([*pieces, b"."])

    def _known(self, number: int, end: int, memo: Mapping[int, Item]) -> Put | None:
        """Put of something that begins here and is in the memo already: it was fetched before its turn came."""
        for item in reversed(self.starts.get(number, ())):
            if item.end <= end:
                put = _in_memo(item, memo)
                if put is not None:
                    return put
        return None


def _in_memo(item: Item, memo: Mapping[int, Item]) -> Put | None:
    return next((put for put in item.puts if memo.get(put.number) is item), None)


def _number(data: bytes, position: int) -> int:
    """The memo's number that BINPUT, BINGET (a byte) or LONG_BINPUT, LONG_BINGET (four) names."""
    if data[position] in b"qh":
        return data[position + 1]
    return int.from_bytes(data[position + 1 : position + 5], "little")


def _memo_opcode(codes: bytes, number: int) -> bytes:
    """BINPUT or LONG_BINPUT, BINGET or LONG_BINGET, whichever can hold the number."""
    return struct.pack("<BB", codes[0], number) if number < 256 else struct.pack("<BI", codes[1], number)


_COUNTED = {-2: 1, -3: 4, -4: 4, -5: 8}
"""By what pickletools says of an opcode's argument: how many bytes tell its length."""


def _length(data: bytes, position: int, length: int) -> int:
    """The length in bytes of the opcode here, which holds more or less data."""
    if length in _COUNTED:
        begin = position + 1 + _COUNTED[length]
        return begin - position + int.from_bytes(data[position + 1 : begin], "little")
    end = data.index(b"\n", position) + 1
    if data[position] == ord("c"):
        # GLOBAL has two lines.
        end = data.index(b"\n", end) + 1
    return end - position


def _rules() -> list[_Rule]:
    """The rules by the opcode's byte. Bytes without a rule are no opcodes, and the machine lets none through."""
    # Takes milliseconds to load, and is needed for cutting only.
    import pickletools

    rules = [(1, 0, False)] * 256
    for opcode in pickletools.opcodes:
        length = 1 if opcode.arg is None else opcode.arg.n + 1 if opcode.arg.n >= 0 else opcode.arg.n
        names = [kind.name for kind in opcode.stack_before]
        changes = ord(opcode.code) in _CHANGES
        pops = _TO_MARK if "mark" in names else len(names) - changes
        rules[ord(opcode.code)] = (length, pops, bool(opcode.stack_after) and not changes)
    return rules
