"""The classes and functions that a pickle names which torch.save didn't write: any protocol, any opcode, nothing is run.

Unlike the machine of `machine.py` it keeps no positions, and where it can't follow it goes on as well as it can.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_MAX_OPCODES = 1_000_000
"""A second's work. Behind them, names are only looked for."""
_MAX_SEARCHED_BYTES = 1 << 28
_CHUNK_BYTES = 1 << 24
_OVERLAP_BYTES = 1 << 10
_NAME = rb"[A-Za-z_][\w.]{0,120}"
_SPELLED = re.compile(
    rb"[ci](" + _NAME + rb")\n(" + _NAME + rb")\n"
    rb"|\x8c.(" + _NAME + rb")\x94?\x8c.(" + _NAME + rb")\x94?\x93"
    rb"|X.\0\0\0(" + _NAME + rb")(?:q.)?X.\0\0\0(" + _NAME + rb")(?:q.)?\x93",
    re.DOTALL,
)
"""How a global is spelled: GLOBAL or INST, and STACK_GLOBAL behind its two texts."""
_NESTED = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""torch's magic number: bytes that are a torch.save of before 1.6, as pickle.dump has of each storage."""
_LOADER = "torch.storage._load_from_bytes"
COMPUTED = "(computed)"
"""In place of a name that the pickle puts together as it runs."""


class NamedGlobals(NamedTuple):
    """The globals of a pickle.

    sure: full names that it uses for certain, by first appearance. followed: to the end. If not, perhaps: what else looks
    like a name, as the data of an array may by chance.
    """

    sure: tuple[str, ...]
    followed: bool = True
    perhaps: tuple[str, ...] = ()


class _Global(str):
    """Full name of a class or function on the stack."""

    __slots__ = ()


_MARK = object()


def named_in(file: BinaryIO, pickles: int = 1) -> NamedGlobals:
    """The globals of so many pickles that follow each other from the file's position."""
    found: dict[str, None] = {}
    try:
        for _ in range(pickles):
            _follow(file, found)
    except (ValueError, IndexError, MemoryError, OverflowError, TypeError):
        # joblib puts arrays between a pickle's opcodes, and a hostile file what it likes.
        return NamedGlobals(tuple(found), False, tuple(dict.fromkeys(_searched(file))))
    return NamedGlobals(tuple(found))


def _follow(file: BinaryIO, found: dict[str, None]) -> None:
    # By its opcodes' effects on the stack, as pickletools has them.
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    opaque = False
    loads = False
    argument: Any
    for step, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if step > _MAX_OPCODES:
            raise OverflowError
        name = opcode.name
        if name == "MARK":
            stack.append(_MARK)
            continue
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
            continue
        if name == "DUP":
            stack.append(stack[-1])
            continue
        taken = _taken(opcode, stack)
        # Handed on in any other way than by a plain call, nobody sees what it loads.
        opaque |= _LOADER in taken and name not in ("REDUCE", "POP", "STOP")
        result = argument
        if name in ("GET", "BINGET", "LONG_BINGET"):
            result = memo.get(argument)
        elif name in ("GLOBAL", "INST"):
            result = _Global(argument.replace(" ", "."))
            opaque |= name == "INST" and result == _LOADER
        elif name == "STACK_GLOBAL":
            is_named = len(taken) == 2 and all(isinstance(part, str) for part in taken)
            result = _Global(".".join(taken) if is_named else COMPUTED)
        elif name in ("TUPLE", "TUPLE1", "TUPLE2"):
            result = tuple(taken)
        elif name == "REDUCE" and taken[0] == _LOADER:
            loads = True
            opaque |= not _nested(taken[1], found)
            result = None
        elif name == "REDUCE" and taken[0] == "_codecs.encode":
            # So the protocols before 3 write bytes.
            text, *encoding = taken[1] if isinstance(taken[1], tuple) and taken[1] else (None,)
            result = text.encode("latin1") if isinstance(text, str) and encoding == ["latin1"] else None
        elif not opcode.arg:
            result = None
        if isinstance(result, _Global) and name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            found.setdefault(str(result))
        stack += [result] * len(opcode.stack_after)
    if loads and not opaque:
        # What it loads was looked into.
        found.pop(_LOADER, None)


def _taken(opcode: pickletools.OpcodeInfo, stack: list[Any]) -> list[Any]:
    """Pop what an opcode takes."""
    wanted = opcode.stack_before
    if pickletools.markobject in wanted:
        taken = []
        while stack and (item := stack.pop()) is not _MARK:
            taken.append(item)
        taken.reverse()
        below = wanted.index(pickletools.markobject)
    else:
        taken = []
        below = len(wanted)
    if below:
        taken = stack[-below:] + taken
        del stack[-below:]
    return taken


def _nested(arguments: Any, found: dict[str, None]) -> bool:
    """Whether the bytes that torch loads are plain to see; what they name is found, too."""
    data = arguments[0] if isinstance(arguments, tuple) and arguments else None
    if not isinstance(data, bytes) or data[2:].find(_NESTED) != 0:
        return False
    inner = named_in(io.BytesIO(data), 5)
    found.update(dict.fromkeys(inner.sure))
    return inner.followed


def _searched(file: BinaryIO) -> Iterator[str]:
    """The names of whatever is spelled like a global, from the file's beginning."""
    file.seek(0)
    before = b""
    for _ in range(0, _MAX_SEARCHED_BYTES, _CHUNK_BYTES):
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            return
        for match in _SPELLED.finditer(before + chunk):
            module, name = (part.decode() for part in match.groups() if part)
            yield f"{module}.{name}"
        before = chunk[-_OVERLAP_BYTES:]
