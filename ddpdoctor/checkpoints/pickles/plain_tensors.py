"""Tensors as torch.save writes nearly all of them, each read at one go: a model has tens of thousands.

What the opcodes from a tensor's arguments to the call that makes it would do one by one, is done at once, and what is in
the arguments beside the storage isn't looked at before somebody asks.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Any

from ddpdoctor.checkpoints.pickles.nodes import Call, Global, Storage, Text, Tuple
from ddpdoctor.checkpoints.pickles.opcodes import MachineState

_UINT16 = Struct("<H").unpack_from
_INT32 = Struct("<i").unpack_from
_UINT32 = Struct("<I").unpack_from

_NAMES = {
    # A fetch from the memo; the numbers of a size or stride; the memo's number that something gets.
    "FETCH": r"(h.|j.{4})",
    "TUPLE": r"(?:(NUMBER\x85|NUMBERNUMBER\x86|NUMBERNUMBERNUMBER\x87|\((?:NUMBER){4,8}t)PUT|\))",
    "NUMBER": r"(?:K.|M..|J.{4})",
    "PUT": r"r.{4}",
}
_IDENTITY = r"\(\(h.FETCH(X.\0\0\0[0-9]+)PUT(?:(X.\0\0\0[a-z]+(?::[0-9]+)?)PUT|FETCH)(NUMBER)tPUTQ"
"""("storage", its class, key, location, count), by which the storage is found."""
_ARGUMENTS = r"(NUMBER)TUPLETUPLE([\x88\x89])FETCH\)RPUT(?:FETCH)?tPUTRPUT"
"""offset, size, stride, requires_grad, OrderedDict(), of a newer dtype its name, and the call itself."""


def _compiled(pattern: str) -> re.Pattern[bytes]:
    for name, meaning in _NAMES.items():
        pattern = pattern.replace(name, meaning)
    return re.compile(pattern.encode("latin-1"), re.DOTALL)


_PATTERN = _compiled(_IDENTITY + _ARGUMENTS)
_FUNCTIONS = {"torch._utils._rebuild_tensor_v2": False, "torch._utils._rebuild_tensor_v3": True}
"""Each with whether it is given a dtype."""

_SIZES = {0x4B: 2, 0x4D: 3, 0x4A: 5}
"""Bytes of BININT1, BININT2 and BININT, with what they hold."""

UNREAD = object()
"""Stands in the memo for what wasn't looked at. Nobody fetches it, in what torch.save wrote; see `Unforeseen`."""


class Unforeseen(Exception):
    """A pickle fetches what was skipped. It has to be read once more, opcode by opcode."""


class PlainTensor(Call):
    """A call of _rebuild_tensor_v2 or _v3 whose arguments are read once they are asked for.

    They stand from `begin` to `end`; from `middle` on, nothing depends on where the storage is.
    """

    __slots__ = ("_arguments", "begin", "data", "dtype", "end", "hooks", "middle", "storage")

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
        dtype: Global | None,
    ) -> None:
        self.items = self.pairs = ()
        self.function = function
        self._arguments: Tuple | None = None
        self.start = start
        self.state = None
        self.data = data
        self.begin = begin
        self.middle = middle
        self.end = end
        self.storage = storage
        self.hooks = hooks
        self.dtype = dtype

    @property
    def first_argument(self) -> Storage:
        return self.storage

    @property
    def arguments(self) -> Tuple:
        if self._arguments is None:
            self._arguments = self._read()
        return self._arguments

    def same_rest(self, other: PlainTensor) -> bool:
        """Whether both are alike in all but their storages."""
        return (
            self.data[self.middle : self.end] == other.data[other.middle : other.end]
            and self.hooks.full_name == other.hooks.full_name
            and (self.dtype and self.dtype.full_name) == (other.dtype and other.dtype.full_name)
        )

    def _read(self) -> Tuple:
        found = _PATTERN.match(self.data, self.begin)
        assert found is not None
        offset, size, stride, gradient, hooks, dtype = found.regs[6:]
        size_start = size[0] if size[0] >= 0 else offset[1]
        stride_start = stride[0] if stride[0] >= 0 else gradient[0] - 1
        items = [
            self.storage,
            _number(self.data, offset[0]),
            _numbers(self.data, *size) if size[0] >= 0 else Tuple((), (), size_start),
            _numbers(self.data, *stride) if stride[0] >= 0 else Tuple((), (), stride_start),
            self.data[gradient[0]] == 0x88,
            Call(self.hooks, Tuple((), (), hooks[1]), hooks[0]),
        ]
        starts = [self.begin + 1, offset[0], size_start, stride_start, gradient[0], hooks[0]]
        if self.dtype is not None:
            items.append(self.dtype)
            starts.append(dtype[0])
        return Tuple(items, starts, self.end - 12)


def read_tensor(machine: MachineState, position: int) -> int:
    """Reads the tensor whose arguments begin at this position, and returns where it ends; 0, with nothing done, if what
    stands there isn't one."""
    data, memo = machine.data, machine.memo
    found = _PATTERN.match(data, position)
    function = machine.stack[-1] if machine.stack else None
    if found is None or function.__class__ is not Global or function.full_name not in _FUNCTIONS:
        return 0
    (_, end), kind_at, key_at, location_at, location_get, count_at, _, size_at, stride_at, _, hooks_at, dtype_at = (
        found.regs
    )
    word = memo.get(data[position + 3])
    kind, hooks = _fetched(data, memo, *kind_at), _fetched(data, memo, *hooks_at)
    dtype = None if dtype_at[0] < 0 else _fetched(data, memo, *dtype_at)
    key_start, key_end = key_at
    if (
        word.__class__ is not Text
        or word.value != "storage"
        or kind.__class__ is not Global
        or hooks.__class__ is not Global
        or data[key_start + 1] != key_end - key_start - 5
        or _FUNCTIONS[function.full_name] is not (dtype.__class__ is Global)
        or (dtype_at[0] >= 0) is not (dtype.__class__ is Global)
    ):
        return 0
    location_start, location_end = location_at
    if location_start < 0:
        location_start = location_get[0]
        location = _fetched(data, memo, *location_get)
        if location.__class__ is not Text:
            return 0
        location.used(location_start)
    else:
        if data[location_start + 1] != location_end - location_start - 5:
            return 0
        location = Text(data[location_start + 5 : location_end].decode(), location_start, location_end)
        memo[_UINT32(data, location_end + 1)[0]] = location
    word.used(position + 2)
    count_start, count_end = count_at
    storage = Storage(
        kind.name, data[key_start + 5 : key_end].decode(), location, location_start, _number(data, count_start), None
    )
    tensor = PlainTensor(function, machine.starts[-1], data, position, count_start, end, storage, hooks, dtype)
    # The storage's key, as a span of the data: it becomes a text if somebody fetches it.
    memo[_UINT32(data, key_end + 1)[0]] = key_at
    memo[_UINT32(data, count_end + 2)[0]] = UNREAD
    if size_at[0] >= 0:
        memo[_UINT32(data, size_at[1] + 1)[0]] = UNREAD
    if stride_at[0] >= 0:
        memo[_UINT32(data, stride_at[1] + 1)[0]] = UNREAD
    memo[_UINT32(data, hooks_at[1] + 3)[0]] = UNREAD
    memo[_UINT32(data, end - 10)[0]] = UNREAD
    memo[_UINT32(data, end - 4)[0]] = tensor
    machine.stack[-1] = tensor
    machine.storages.append(storage)
    machine.calls.append(tensor)
    return end


def fetched_late(machine: MachineState, number: int, value: Any) -> Text:
    """The text of a storage's key, of which the memo has only the place.

    Raises:
        Unforeseen: the memo has nothing of it.
    """
    if value is UNREAD:
        raise Unforeseen
    start, end = value
    text = machine.memo[number] = Text(machine.data[start + 5 : end].decode(), start, end)
    return text


def _fetched(data: bytes, memo: dict[int, Any], begin: int, end: int) -> Any:
    """The value that a BINGET, or a LONG_BINGET, brings."""
    return memo.get(data[begin + 1] if end - begin == 2 else _UINT32(data, begin + 1)[0])


def _number(data: bytes, at: int) -> int:
    code = data[at]
    if code == 0x4B:
        return data[at + 1]
    value: int = (_UINT16 if code == 0x4D else _INT32)(data, at + 1)[0]
    return value


def _numbers(data: bytes, begin: int, end: int) -> Tuple:
    items, starts = [], []
    begin += data[begin] == 0x28
    while begin < end - 1:
        items.append(_number(data, begin))
        starts.append(begin)
        begin += _SIZES[data[begin]]
    return Tuple(items, starts, end - 1)
