"""Recognising binary formats that aren't torch's: by the first bytes, and by as much of the structure as makes that sure.

Those that the first bytes alone tell stand in magic_numbers.json.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddpdoctor.base.tables import read_table
from ddpdoctor.base.text import human, listed
from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, not_torchs, printable, recognised
from ddpdoctor.facts.remedies import remedy


def recognise_foreign(glance: FileHead) -> Recognised | None:
    """Recognise a file by its first bytes; None if they say nothing to us."""
    return (
        _safetensors(glance)
        or _by_magic_number(glance)
        or _by_shape(glance)
        or _tar(glance)
        or _protobuf(glance)
        or _zeros(glance)
    )


_MAX_HEADER_BYTES = 100_000_000
"""Of safetensors; what its library allows."""


def _safetensors(glance: FileHead) -> Recognised | None:
    """A file that begins with a header's length and an opening brace, and whether it is whole."""
    if len(glance.head) < 9:
        return None
    length = int.from_bytes(glance.head[:8], "little")
    if not 2 <= length <= _MAX_HEADER_BYTES or glance.head[8:9] != b"{":
        return None
    problem = _safetensors_problem(glance, length)
    return recognised("safetensors/damaged", problem=problem) if problem else recognised("safetensors")


def _safetensors_problem(glance: FileHead, length: int) -> str:
    if 8 + length > glance.size:
        return f"Truncated within its header: {human(glance.size)} are there, the header alone has {human(length)}"
    try:
        header: Any = msgspec.json.decode(glance.read(8, length))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "Corrupt: its header is not JSON"
    if not isinstance(header, dict):
        return "Corrupt: its header names no tensors"
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets: Any = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        try:
            start, stop = msgspec.convert(offsets, tuple[int, int])
        except msgspec.ValidationError:
            start, stop = 0, -1
        if not 0 <= start <= stop:
            return f"Corrupt: its header does not say where the tensor {printable(name)} is"
        end = max(end, stop)
    needed = 8 + length + end
    if glance.size < needed:
        missing = human(needed - glance.size)
        there = f"{glance.size:,} of {needed:,} bytes are there"
        return f"Truncated: {missing} of {human(needed)} are missing at its end ({there})"
    if glance.size > needed:
        return f"Corrupt: {human(glance.size - needed)} follow its last tensor, which safetensors refuses to load"
    return ""


class _MagicNumber(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of files by their first bytes.

    pattern: a regular expression, and why it is that one. kind: with `tool`, an entry of kinds.json that takes the
    name; else of files that are only no checkpoints. tool: the remedy that unpacks it, and which endings that takes off.
    """

    pattern: str
    kind: str
    name: str
    why: str = ""
    tool: str = ""
    endings: tuple[str, ...] = ()
    advice: str = ""


@cache
def _magic_numbers() -> list[_MagicNumber]:
    return read_table(__name__, "magic_numbers.json", list[_MagicNumber])


def _by_magic_number(glance: FileHead) -> Recognised | None:
    for number in _magic_numbers():
        if not re.match(number.pattern.encode("ascii"), glance.head, re.DOTALL):
            continue
        if number.tool:
            unpack = remedy(number.tool, glance.path, _unpacked(glance.path, number.endings))
            return recognised(number.kind, unpack, name=number.name)
        called = number.name
        return Recognised(kind=number.kind, called=called, problem=not_torchs(called), advice=number.advice)
    return None


def _unpacked(path: Path, endings: tuple[str, ...] = ()) -> str:
    """A name for what comes out."""
    for ending in endings:
        if path.name.endswith(ending):
            return str(path)[: -len(ending)] + (".tar" if ending.startswith(".t") else "")
    return str(path.with_name(f"{path.stem}.unpacked{path.suffix}"))


_LEVELDB_FOOTER = bytes.fromhex("57fb808b247547db")


def _by_shape(glance: FileHead) -> Recognised | None:
    """MessagePack, as a map that begins with a name and another map or an array; LevelDB, by its last bytes."""
    names = b"|".join(b"%c[\\w.]{%d}[\x80-\x8f\xde\xc7-\xc9]" % (0xA0 + length, length) for length in range(1, 32))
    if re.match(rb"[\x81-\x8f](?:%s)" % names, glance.head):
        return recognised("flax")
    is_index = glance.size >= 48 and glance.read(glance.size - 8, 8) == _LEVELDB_FOOTER
    return recognised("tensorflow/index") if is_index else None


def _tar(glance: FileHead) -> Recognised | None:
    if not _is_tar_header(glance.head[:512]):
        return None
    names = _tar_names(glance)
    if {"storages", "tensors", "pickle"} <= set(names):
        resaved = _unpacked(glance.path).replace(".unpacked", ".resaved")
        return recognised("torch-tar", remedy("resave-tar", glance.path, resaved))
    inside = [name for name in names if name.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp"))]
    shown = listed(map(printable, inside or names), 4)
    return recognised("tar/checkpoint" if inside else "tar", remedy("tar", glance.path), names=shown)


def _is_tar_header(header: bytes) -> bool:
    """Whether its checksum is right, which tells a tar archive from anything else."""
    if len(header) < 512 or not header[0]:
        return False
    digits = header[148:156].strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,7}", digits):
        return False
    return int(digits, 8) == sum(header[:148]) + 8 * 0x20 + sum(header[156:])


def _tar_names(glance: FileHead, most: int = 64) -> list[str]:
    """The names of its first files. Python's tarfile would read as much into memory as a header tells it to."""
    names: list[str] = []
    at = 0
    for _ in range(most):
        header = glance.read(at, 512)
        if not _is_tar_header(header):
            break
        digits = header[124:136].strip(b" \0")
        if not re.fullmatch(rb"[0-7]+", digits):
            break
        if header[156:157] in b"\x000":
            names.append(header[:100].split(b"\0", 1)[0].decode("utf-8", "replace").removeprefix("./"))
        at += 512 + -(-int(digits, 8) // 512) * 512
    return names


_VARINT, _BYTES = 0, 2
_ONNX_NUMBERS, _ONNX_TEXTS, _ONNX_GRAPH = {1, 5}, {2, 3, 4, 6, 7, 8, 14, 20, 25, 26}, 7
"""Fields of onnx.ModelProto."""


class _Field(NamedTuple):
    """A field of a Protocol Buffers message; number 0 where it makes no sense. value: for bytes, their length."""

    number: int
    wire: int
    value: int
    end: int


def _protobuf(glance: FileHead) -> Recognised | None:
    """ONNX models and TensorFlow's, which have no magic number: told by the shape of their message."""
    fields = list(_fields(glance))
    if not fields or fields[0][:2] != (1, _VARINT):
        return None
    version = fields[0].value
    is_onnx = all(field.number in (_ONNX_NUMBERS if field.wire == _VARINT else _ONNX_TEXTS) for field in fields)
    if is_onnx and any(field.number == _ONNX_GRAPH for field in fields) and version < 100:
        needed = max(field.end for field in fields)
        if needed > glance.size:
            return recognised("onnx/truncated", size=human(glance.size), needed=human(needed))
        return recognised("onnx")
    graphs = fields[1:]
    if version != 1 or not graphs or any(field.number != 2 for field in graphs):
        return None
    begins_with_info = glance.read(graphs[0].end - graphs[0].value, 1) == b"\x0a"
    return recognised("tensorflow/saved-model") if begins_with_info else None


def _fields(glance: FileHead, most: int = 64) -> Iterator[_Field]:
    """The top level's first fields. Yields nothing more behind the first that makes no sense."""
    at = 0
    for _ in range(most):
        piece = glance.read(at, 20)
        if not piece:
            return
        key, value_at = _varint(piece, 0)
        number, wire = key >> 3, key & 7
        value, end = _varint(piece, value_at) if value_at else (0, 0)
        if not end or not number or wire not in (_VARINT, _BYTES):
            yield _Field(0, wire, 0, at)
            return
        at += end + (value if wire == _BYTES else 0)
        yield _Field(number, wire, value, at)


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


_MAX_ZEROS_READ = 1 << 26
_PIECE_BYTES = 1 << 20


def _zeros(glance: FileHead) -> Recognised | None:
    """A file that was given its size before it was filled, and never was. Says no more than was read."""
    if glance.head.strip(b"\0"):
        return None
    at = len(glance.head)
    try:
        at = os.lseek(glance.fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            at = glance.size
    start = at
    while at < glance.size and at - start < _MAX_ZEROS_READ:
        piece = glance.read(at, _PIECE_BYTES)
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        at += zeros
        if not piece or zeros < len(piece):
            break
    if at >= glance.size:
        return recognised("zeros", size=human(glance.size))
    return recognised("zeros/start", size=human(at))
