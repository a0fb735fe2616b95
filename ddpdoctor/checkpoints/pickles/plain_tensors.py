"""Tensors as torch.save writes nearly all of them, each read at one go: a model has tens of thousands.

What the opcodes from a tensor's arguments to the call that makes it would do one by one, is done at once, and what is in
the arguments beside the storage isn't looked at before somebody asks.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Any

from ddpdoctor.checkpoints.pickles.nodes import Call, Global, Storage, Text, Tuple

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.machine import Machine

_UINT16 = Struct("<H").unpack_from
_INT32 = Struct("<i").unpack_from
_UINT32 = Struct("<I").unpack_from

_NAMES = {
    # A fetch from the memo; a number; one to three numbers as a tuple; the memo's number that something gets.
    "FETCH": r"(h.|j.{4})",
    "TUPLE": r"(NUMBER\x85|NUMBERNUMBER\x86|NUMBERNUMBERNUMBER\x87)",
    "NUMBER": r"(?:K.|M..|J.{4})",
    "PUT": r"r(.{4})",
}
_IDENTITY = r"\(\(FETCH FETCH (X.\0\0\0[0-9]+)PUT (?:(X.\0\0\0[a-z]+(?::[0-9]+)?)PUT|FETCH) (NUMBER)t PUT Q"
"""("storage", its class, key, location, count), by which the storage is found."""
_ARGUMENTS = r"(NUMBER) TUPLE PUT TUPLE PUT ([\x88\x89]) FETCH\)R PUT t PUT R PUT"
"""offset, size, stride, requires_grad, OrderedDict(), and the call itself."""


def _compiled(pattern: str) -> re.Pattern[bytes]:
    for name, meaning in _NAMES.items():
        pattern = pattern.replace(name, meaning)
    return re.compile(pattern.replace(" ", "").encode("latin-1"), re.DOTALL)


_PATTERN = _compiled(_IDENTITY + _ARGUMENTS)

_SIZES = {0x4B: 2, 0x4D: 3, 0x4A: 5}
"""Bytes of BININT1, BININT2 and BININT, with what they hold."""

UNREAD = object()
"""Stands in the memo for what wasn't looked at. Nobody fetches it, in what torch.save wrote; see `Unforeseen`."""


class Unforeseen(Exception):
    """A pickle fetches what was skipped. It has to be read once more, opcode by opcode."""


class PlainTensor(Call):
    """A call of _rebuild_tensor_v2, whose arguments are read once they are asked for. It goes from `begin` to `end`; from
    `middle` on it doesn't depend on where the storage is."""

    __slots__ = ("begin", "data", "end", "hooks", "middle", "storage")

    def __init__(
        self,
        function: Global,
        start: int,
        data: bytes,
        begin: int,
        middle: int,
        end: int,
        storage: Storage,
        hooks: Global,
    ) -> None:
        super().__init__(function, None, start)
        self.data = data
        self.begin = begin
        self.middle = middle
        self.end = end
        self.storage = storage
        self.hooks = hooks

    @property
    def first_argument(self) -> Storage:
        return self.storage

    def read(self) -> Any:
        if self._arguments is None:
            self._arguments = self._read()
        return self._arguments

    def same_rest(self, other: PlainTensor) -> bool:
        """Whether both are alike in all but their storages."""
        rest = self.data[self.middle : self.end] == other.data[other.middle : other.end]
        return rest and self.hooks.full_name == other.hooks.full_name

    def _read(self) -> Tuple:
        found = _PATTERN.match(self.data, self.begin)
        assert found is not None
        *_, offset, size, _, stride, _, gradient, hooks, _, arguments_put, _ = found.regs
        items = [
            self.storage,
            _number(self.data, offset[0]),
            _numbers(self.data, *size),
            _numbers(self.data, *stride),
            self.data[gradient[0]] == 0x88,
            Call(self.hooks, Tuple((), (), hooks[1]), hooks[0]),
        ]
        starts = [self.begin + 1, offset[0], size[0], stride[0], gradient[0], hooks[0]]
        return Tuple(items, starts, arguments_put[0] - 2)


def read_tensor(machine: Machine, position: int) -> int:
    """Reads the tensor whose arguments begin at this position, and returns where it ends; 0, with nothing done, if what
    stands there isn't one."""
    data, memo = machine.data, machine.memo
    found = _PATTERN.match(data, position)
    function = machine.stack[-1] if machine.stack else None
    if found is None or function.__class__ is not Global or function.full_name != "torch._utils._rebuild_tensor_v2":
        return 0
    identity, rest = found.regs[1:10], found.regs[10:]
    word_at, kind_at, key_at, key_put, location_at, location_put, location_get, count_at, identity_put = identity
    _, _, size_put, _, stride_put, _, hooks_at, hooks_put, arguments_put, tensor_put = rest
    word, kind, hooks = _fetched(data, memo, *word_at), _fetched(data, memo, *kind_at), _fetched(data, memo, *hooks_at)
    if (
        word.__class__ is not Text
        or word.value != "storage"
        or kind.__class__ is not Global
        or hooks.__class__ is not Global
        or data[key_at[0] + 1] != key_at[1] - key_at[0] - 5
    ):
        return 0
    location_start = max(location_at[0], location_get[0])
    if location_at[0] < 0:
        location = _fetched(data, memo, *location_get)
        if location.__class__ is not Text:
            return 0
        location.used(location_start)
    else:
        if data[location_start + 1] != location_at[1] - location_start - 5:
            return 0
        location = Text(data[location_start + 5 : location_at[1]].decode(), location_start, location_at[1])
        memo[_UINT32(data, location_put[0])[0]] = location
    word.used(word_at[0])
    key = Text(data[key_at[0] + 5 : key_at[1]].decode(), key_at[0], key_at[1])
    storage = Storage(kind.name, key.value, location, location_start, _number(data, count_at[0]), None)
    end = found.end()
    tensor = PlainTensor(function, machine.starts[-1], data, position, count_at[0], end, storage, hooks)
    memo[_UINT32(data, key_put[0])[0]] = key
    memo[_UINT32(data, identity_put[0])[0]] = UNREAD
    memo[_UINT32(data, size_put[0])[0]] = UNREAD
    memo[_UINT32(data, stride_put[0])[0]] = UNREAD
    memo[_UINT32(data, hooks_put[0])[0]] = UNREAD
    memo[_UINT32(data, arguments_put[0])[0]] = UNREAD
    memo[_UINT32(data, tensor_put[0])[0]] = tensor
    machine.stack[-1] = tensor
    machine.storages.append(storage)
    machine.calls.append(tensor)
    return end


def _fetched(data: bytes, memo: dict[int, Any], begin: int, end: int) -> Any:
    """What a BINGET, or a LONG_BINGET, brings."""
    return memo.get(data[begin + 1] if end - begin == 2 else _UINT32(data, begin + 1)[0])


def _number(data: bytes, at: int) -> int:
    code = data[at]
    if code == 0x4B:
        return data[at + 1]
    value: int = (_UINT16 if code == 0x4D else _INT32)(data, at + 1)[0]
    return value


def _numbers(data: bytes, begin: int, end: int) -> Tuple:
    items, starts = [], []
    while begin < end - 1:
        items.append(_number(data, begin))
        starts.append(begin)
        begin += _SIZES[data[begin]]
    return Tuple(items, starts, end - 1)
