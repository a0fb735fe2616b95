"""ONNX models and TensorFlow's files, which have no magic number: told by the shape of their Protocol Buffers message."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.text import human
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GRAPH = 7
_ONNX = {
    1: _VARINT,
    2: _BYTES,
    3: _BYTES,
    4: _BYTES,
    5: _VARINT,
    6: _BYTES,
    7: _BYTES,
    8: _BYTES,
    14: _BYTES,
    20: _BYTES,
    25: _BYTES,
    26: _BYTES,
}
"""onnx.ModelProto: field number -> wire type."""


def recognise_protobuf(glance: FileHead) -> Recognised | None:
    fields = list(_top_level(glance))
    numbers = [number for number, _, _, _ in fields]
    if not fields or fields[0][:2] != (1, _VARINT):
        return None
    if all(_ONNX.get(number) == wire for number, wire, _, _ in fields) and _GRAPH in numbers and fields[0][2] < 100:
        ends = max(end for _, _, _, end in fields)
        truncated = ends > glance.size
        return Recognised(
            kind="onnx",
            called="an ONNX model",
            damaged=truncated,
            problem=f"A truncated ONNX model: {human(glance.size)} of at least {human(ends)}"
            if truncated
            else "An ONNX model, not a checkpoint of torch",
            advice="Download or export it again"
            if truncated
            else "Load it with onnx.load or onnxruntime; it holds no device",
        )
    if (
        fields[0][2] == 1
        and len(fields) > 1
        and set(numbers[1:]) == {2}
        and glance.read(*_start_of(fields[1]))[:1] == b"\x0a"
    ):
        return Recognised(
            kind="tensorflow",
            called="a TensorFlow SavedModel",
            problem="A TensorFlow SavedModel, not a checkpoint of torch",
            advice="Load its folder with tf.saved_model.load; it holds no device",
        )
    return None


def _start_of(field: tuple[int, int, int, int]) -> tuple[int, int]:
    _, _, length, end = field
    return end - length, 1


def _top_level(glance: FileHead, most: int = 64) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, value or length, and end of each field. Yields nothing more at the first that makes no sense."""
    at = 0
    for _ in range(most):
        piece = glance.read(at, 20)
        if not piece:
            return
        key, used = _varint(piece, 0)
        number, wire = key >> 3, key & 7
        if not used or not number or wire not in (_VARINT, _BYTES):
            yield 0, wire, 0, at
            return
        value, next_used = _varint(piece, used)
        if not next_used:
            yield 0, wire, 0, at
            return
        at += next_used + (value if wire == _BYTES else 0)
        yield number, wire, value, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends; 0 and 0 if there is none."""
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    return 0, 0
