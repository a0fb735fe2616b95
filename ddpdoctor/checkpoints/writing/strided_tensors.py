"""Strided tensors written out in order, with bounded memory: read a window, rearrange it, write what it holds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import product
from math import isqrt, prod
from typing import Literal, NamedTuple

WINDOW_BYTES = 1 << 22
"""That are read, and written, at a time."""

_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""By the bytes of an element: the integer of that size, as which it is moved."""


class Dim(NamedTuple):
    """A dimension: how many elements it has, and how many elements lie from one to the next."""

    size: int
    stride: int


class GatheredBytes(NamedTuple):
    """Bytes of the result, and where they belong in it."""

    data: memoryview
    offset: int


def merged(size: tuple[int, ...], stride: tuple[int, ...]) -> list[Dim]:
    """The dimensions, outermost first, without those of one element, and with neighbours that are one run as one.

    >>> merged((2, 3, 1, 4), (12, 4, 99, 1))
    [Dim(size=24, stride=1)]
    """
    dims: list[Dim] = []
    for inner in map(Dim, size, stride):
        if inner.size == 1:
            continue
        if dims and dims[-1].stride == inner.size * inner.stride:
            dims[-1] = Dim(dims[-1].size * inner.size, inner.stride)
        else:
            dims.append(inner)
    return dims or [Dim(1, 1)]


def span(dims: list[Dim]) -> int:
    """Elements from the first to the last, both included, of dimensions that are not empty."""
    return 1 + sum((dim.size - 1) * dim.stride for dim in dims)


def gather(
    read: Callable[[int, int], bytes], dims: list[Dim], item: int, *, swap: int = 1, window: int = WINDOW_BYTES
) -> Iterator[GatheredBytes]:
    """The elements in order, a part at a time, in any order of the parts.

    read: gives some bytes at some offset from the first element. dims: as `merged` makes them; none of size 0. item:
    bytes of an element. swap: bytes whose order is to be turned around, a whole element or each half of it.
    """
    plan = _plan(dims, window // item, item)
    steps = _dense([dim.size for dim in dims])
    for corner in product(*(range(0, dim.size, length) for dim, length in zip(dims, plan.lengths, strict=True))):
        box = [
            Dim(min(length, dim.size - start), dim.stride)
            for start, length, dim in zip(corner, plan.lengths, dims, strict=True)
        ]
        first = sum(start * dim.stride for start, dim in zip(corner, dims, strict=True))
        data, inside = _fetched(read, box, plan.looped, first, item)
        moved = _rearranged(data, inside, item)
        if swap > 1:
            swapped = array(_FORMATS[swap], bytes(moved))
            swapped.byteswap()
            moved = memoryview(swapped).cast("B")
        to = sum(start * step for start, step in zip(corner, steps, strict=True))
        inner = _run([part.size for part in box], dims)
        yield from _runs(moved, [part.size for part in box], steps, inner, to, item)


class _Plan(NamedTuple):
    """A way to cut a tensor into boxes.

    lengths: how far along each dimension one goes. looped: the dimensions along which it is read piece by piece,
    outermost first in the storage; along the others with all that lies between. cost: nanoseconds, roughly.
    """

    lengths: list[int]
    looped: list[int]
    cost: float


def _plan(dims: list[Dim], most: int, item: int) -> _Plan:
    """The cheapest way with at most so many elements in a box, and in what is read for it."""
    ways = (_one_read(dims, most), _square(dims, most))
    return min((_judged(lengths, dims, most, item) for lengths in ways), key=lambda plan: plan.cost)


def _one_read(dims: list[Dim], most: int) -> list[int]:
    """Boxes of which each can be read as one, with what lies between: as far as possible along inner dimensions first."""
    lengths = []
    count, spanned = 1, 1
    for dim in reversed(dims):
        room = most // count
        if dim.stride:
            room = min(room, (most - spanned) // dim.stride + 1)
        length = max(1, min(dim.size, room))
        count *= length
        spanned += (length - 1) * dim.stride
        lengths.append(length)
    return lengths[::-1]


def _square(dims: list[Dim], most: int) -> list[int]:
    """Boxes that go some way along what is near in the result as well as along what is near in the storage."""
    lengths = [1] * len(dims)
    near_in_result = range(len(dims) - 1, -1, -1)
    near_in_storage = sorted(near_in_result, key=lambda index: dims[index].stride)
    for order, limit in ((near_in_result, isqrt(most)), (near_in_storage, most), (near_in_result, most)):
        for index in order:
            others = prod(lengths) // lengths[index]
            lengths[index] = max(lengths[index], min(dims[index].size, limit // others))
    return lengths


_CALL_NANOSECONDS = 1500.0
"""For a read or a write, however short."""
_BYTE_NANOSECONDS = 0.3
"""For each byte that is read."""


def _judged(lengths: list[int], dims: list[Dim], most: int, item: int) -> _Plan:
    box = [Dim(length, dim.stride) for length, dim in zip(lengths, dims, strict=True)]
    near = sorted(range(len(box)), key=lambda index: box[index].stride)
    looped: list[int] = []
    reads = 1
    while reads * span([box[index] for index in near]) > most:
        looped.append(near.pop())
        reads *= lengths[looped[-1]]
    read = reads * span([box[index] for index in near]) * item
    writes = prod(lengths[: _run(lengths, dims)])
    boxes = prod(-(-dim.size // length) for dim, length in zip(dims, lengths, strict=True))
    return _Plan(lengths, looped, boxes * (_CALL_NANOSECONDS * (reads + writes) + _BYTE_NANOSECONDS * read))


def _fetched(
    read: Callable[[int, int], bytes], box: list[Dim], looped: list[int], first: int, item: int
) -> tuple[bytes, list[Dim]]:
    """Read what is needed for a box that begins at element `first`, and how the box lies in that."""
    length = span([dim for index, dim in enumerate(box) if index not in looped])
    offsets = [first]
    for index in looped:
        offsets = [offset + number * box[index].stride for offset in offsets for number in range(box[index].size)]
    inside = list(box)
    step = length
    for index in reversed(looped):
        inside[index] = Dim(box[index].size, step)
        step *= box[index].size
    return b"".join(read(offset * item, length * item) for offset in offsets), inside


def _dense(sizes: list[int]) -> list[int]:
    """The strides of a tensor without gaps."""
    return [prod(sizes[index + 1 :]) for index in range(len(sizes))]


def _rearranged(data: bytes, box: list[Dim], item: int) -> memoryview:
    """The box without gaps. The dimension with most elements is moved by slices, so in C; the others in a loop."""
    sizes = [dim.size for dim in box]
    if len(box) == 1 and box[0].stride == 1:
        return memoryview(data)
    source = memoryview(data).cast(_FORMATS[item])
    moved = bytearray(prod(sizes) * item)
    result = memoryview(moved).cast(_FORMATS[item])
    steps = _dense(sizes)
    longest = sizes.index(max(sizes))
    starts = [(0, 0)]
    for index, dim in enumerate(box):
        if index != longest:
            starts = [(a + n * dim.stride, b + n * steps[index]) for a, b in starts for n in range(dim.size)]
    size, stride = box[longest]
    step = steps[longest]
    for a, b in starts:
        if stride:
            taken = source[a : a + (size - 1) * stride + 1 : stride]
        else:
            taken = memoryview(source[a : a + 1].tobytes() * size).cast(_FORMATS[item])
        result[b : b + (size - 1) * step + 1 : step] = taken
    return memoryview(moved)


def _run(lengths: list[int], dims: list[Dim]) -> int:
    """The outermost dimension along which a box has no gaps in the result: all further in are whole."""
    inner = len(dims) - 1
    while inner > 0 and lengths[inner] == dims[inner].size:
        inner -= 1
    return inner


def _runs(
    data: memoryview, sizes: list[int], steps: list[int], inner: int, to: int, item: int
) -> Iterator[GatheredBytes]:
    """The parts of a box that lie together in the result. to: where its first element belongs. inner: see `_run`."""
    offsets = [to]
    for size, step in zip(sizes[:inner], steps[:inner], strict=True):
        offsets = [offset + index * step for offset in offsets for index in range(size)]
    length = prod(sizes[inner:]) * item
    for index, offset in enumerate(offsets):
        yield GatheredBytes(data[index * length : (index + 1) * length], offset * item)
