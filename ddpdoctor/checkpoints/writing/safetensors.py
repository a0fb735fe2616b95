"""A checkpoint's tensors as a safetensors file: what it would hold, and writing it, of which no byte is loaded that can be copied.

The format: 8 bytes with the header's length (little-endian), the header in JSON (by name: dtype, shape, where the bytes
lie), padded with spaces to a multiple of 8, then the bytes.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.errors import Damaged, Refused
from ddpdoctor.checkpoints.formats.byte_source import ByteSource, write_exactly
from ddpdoctor.checkpoints.formats.layouts import Layout
from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import Call, Global, Storage, Text, Tuple
from ddpdoctor.checkpoints.pickles.tensors import (
    ELEMENT_TYPES,
    ElementType,
    TensorView,
    describe,
    element_size,
    is_dict,
    is_tensor,
    pairs,
    view,
)
from ddpdoctor.checkpoints.writing.copying import Copier, Progress
from ddpdoctor.checkpoints.writing.new_file import new_file
from ddpdoctor.checkpoints.writing.strided_tensors import Dim, gather, merged, span

_MAX_HEADER_BYTES = 100_000_000
"""As many as the safetensors library reads."""

_MAX_ELEMENTS = 1 << 62
"""Torch can't count further than twice as far."""

_MAX_NOTES = 5


_TYPES_BY_STORAGE = {kind.storage: kind for kind in ELEMENT_TYPES if kind.dtype and kind.storage}
_TYPES_BY_DTYPE = {kind.dtype: kind for kind in ELEMENT_TYPES if kind.dtype}

_KINDS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no data",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor kept as a numpy array",
}
_SUBCLASSES = {
    "torch._utils._rebuild_wrapper_subclass": 0,
    "torch._tensor._rebuild_from_type": 1,
    "torch._tensor._rebuild_from_type_v2": 1,
}
"""Functions that make a tensor of a class, and which argument names it."""


class PlannedTensor(NamedTuple):
    """A tensor that is to be written. start: of its first element in its storage, in bytes; length: when written."""

    name: str
    type: ElementType
    shape: tuple[int, ...]
    storage: Storage
    start: int
    dims: list[Dim]
    length: int

    @property
    def contiguous(self) -> bool:
        return len(self.dims) == 1 and self.dims[0].stride == 1

    @property
    def reach(self) -> int:
        """Bytes of the storage from its first element to its last."""
        return span(self.dims) * self.type.size


class PlannedContents(NamedTuple):
    """The contents of a safetensors file: its header, then the entries one behind the other.

    notes: what the user should know of it, in sentences.
    """

    header: bytes
    entries: list[PlannedTensor]
    notes: list[str]


def plan_safetensors(layout: Layout, program: Program) -> PlannedContents:
    """Plan what is to be written.

    Refused is raised if the top level is no dict of tensors that safetensors can hold, Damaged if a tensor lies outside of its
    storage, or a storage is missing.
    """
    entries = _entries(program.root)
    # Large elements first, so that each tensor begins at a multiple of its elements' size.
    entries.sort(key=lambda entry: (-entry.type.size, entry.name))
    for entry in entries:
        if entry.length:
            # Compressed ones have no place, but a record, of which as much is asked.
            with suppress(Refused):
                layout.place(entry.storage)
    return PlannedContents(_header(entries), entries, _notes(entries))


def _entries(root: Any) -> list[PlannedTensor]:
    if not is_dict(root):
        raise Refused(f"Its top level is {describe(root)}, and safetensors holds a dict of tensors only")
    named = {pair.key.value if isinstance(pair.key, Text) else None: pair for pair in pairs(root)}
    entries, others = [], []
    for name, pair in named.items():
        entry = _entry(name, pair.value) if name is not None else f"the key {describe(pair.key)}"
        if isinstance(entry, PlannedTensor):
            entries.append(entry)
        else:
            others.append(entry if name is None else f"{name} ({entry})")
    if others:
        text = f"safetensors can't hold {plural(len(others), 'entry', 'entries')} of it: {listed(others, most=20)}"
        only_tensors = all(is_tensor(pair.value) for pair in named.values())
        raise Refused(text, "" if only_tensors else "Try --params-only as well, for the model alone")
    if not entries:
        raise Refused("There are no tensors in it")
    return entries


def _entry(name: str, node: Any) -> PlannedTensor | str:
    """The tensor, or why it can't be written."""
    if not is_tensor(node):
        return describe(node)
    plain = _plain(node)
    found = view(plain)
    if found is None:
        if plain.name in _KINDS:
            return _KINDS[plain.name]
        index = _SUBCLASSES.get(plain.name)
        items = plain.arguments.items if isinstance(plain.arguments, Tuple) else []
        if index is not None and len(items) > index and isinstance(items[index], Global):
            return f"a tensor of the class {items[index].full_name}"
        return "a tensor of an unusual kind"
    if found.storage.location.value == "meta":
        return _KINDS["torch._utils._rebuild_meta_tensor_no_storage"]
    if _is_lazy(plain):
        return "a tensor that is conjugated or negated only when used"
    kind = _TYPES_BY_STORAGE.get(found.dtype) or _TYPES_BY_DTYPE.get(found.dtype)
    if kind is None or not kind.safetensors:
        return f"of the type {kind.dtype if kind else found.dtype}, which safetensors lacks"
    # Half a surrogate pair can't be encoded.
    if name == "__metadata__" or re.search("[\ud800-\udfff]", name):
        return "a name that safetensors doesn't allow"
    if kind.safetensors == "F4" and not found.size:
        return "half a pair of 4-bit numbers"
    return _checked(name, kind, found)


def _plain(node: Call) -> Call:
    """A tensor without what makes it a parameter, and without a plain tensor's attributes."""
    while isinstance(node.arguments, Tuple):
        items = node.arguments.items
        if node.name.startswith("torch._utils._rebuild_parameter") and items and is_tensor(items[0]):
            node = items[0]
        elif (
            node.name == "torch._tensor._rebuild_from_type_v2"
            and len(items) > 2
            and isinstance(items[1], Global)
            and items[1].full_name in ("torch.Tensor", "torch._tensor.Tensor")
        ):
            node = Call(items[0], items[2], node.start)
        else:
            break
    return node


def _is_lazy(node: Call) -> bool:
    """Whether what is stored still has to be conjugated or negated: the last argument says so, where it is there."""
    metadata = node.arguments.items[7 if node.name.endswith("_v3") else 6 :]
    return any(
        isinstance(pair.key, Text) and pair.key.value in ("conj", "neg") and pair.value is not False
        for entries in metadata
        for pair in pairs(entries)
    )


def _checked(name: str, kind: ElementType, found: TensorView) -> PlannedTensor:
    # A tensor to be written.
    begin, end = _extent(found.storage)
    start = begin + found.offset * kind.size
    shape = found.size if kind.safetensors != "F4" else (*found.size[:-1], found.size[-1] * 2)
    entry = PlannedTensor(
        name, kind, shape, found.storage, start, merged(found.size, found.stride), prod(found.size) * kind.size
    )
    numbers = (found.offset, *found.size, *found.stride)
    if (
        min(numbers) < 0
        or max(numbers) >= _MAX_ELEMENTS
        or (entry.length and not begin <= start <= start + entry.reach <= end)
    ):
        raise Damaged(f"The tensor {name!a} does not lie within its storage, which has {end - begin:,} bytes")
    return entry


def _extent(storage: Storage) -> tuple[int, int]:
    # The part that a storage stands for, from which byte to which: all of it, but for views in very old files.
    item = element_size(storage)
    if isinstance(storage.view, Tuple):
        offset, count = storage.view.items[1:3] if len(storage.view.items) == 3 else (None, None)
        if type(offset) is int and type(count) is int and 0 <= offset <= offset + count <= storage.count:
            return offset * item, (offset + count) * item
        raise Damaged(f"The view of storage {storage.key!a} does not lie within it")
    return 0, storage.count * item


def _header(entries: list[PlannedTensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.type.safetensors,
            "shape": entry.shape,
            "data_offsets": (at, at + entry.length),
        }
        at += entry.length
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise Refused(
            f"safetensors can't hold {plural(len(entries), 'tensor')}: its header would have {human(len(text))}"
        )
    return struct.pack("<Q", len(text)) + text


def _notes(entries: list[PlannedTensor]) -> list[str]:
    notes = [note for group in _sharing(entries) if (note := _note(group))]
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES - 1 :] = [f"And so on, {len(notes) - _MAX_NOTES + 1} times more."]
    return notes


def _sharing(entries: list[PlannedTensor]) -> Iterator[list[PlannedTensor]]:
    """The tensors in groups that lie over each other in one storage; most are alone."""
    storages: dict[str, list[PlannedTensor]] = {}
    for entry in entries:
        if entry.length:
            storages.setdefault(entry.storage.key, []).append(entry)
    for members in storages.values():
        group: list[PlannedTensor] = []
        end = 0
        for entry in sorted(members, key=lambda member: (member.start, member.name)):
            if group and entry.start >= end:
                yield group
                group = []
            group.append(entry)
            end = max(end, entry.start + entry.reach)
        yield group


def _note(group: list[PlannedTensor]) -> str:
    more = sum(entry.length for entry in group) - len(
        range(group[0].start, max(entry.start + entry.reach for entry in group))
    )
    if len(group) > 1:
        names = listed(sorted(entry.name for entry in group))
        return f"{names} share their data in the checkpoint, and each has its own now: {human(max(more, 0))} more."
    if more > 0:
        return f"{group[0].name} is expanded from fewer elements, and written in full: {human(more)} more."
    return ""


def write_safetensors(layout: Layout, program: Program, out: Path, progress: Progress) -> list[str]:
    """Write the tensors of `program`, a pickle whose storages are in `layout`, to `out`, whole or not at all.

    Raises what `plan_safetensors` does; Refused, too, if `out` exists or can't be written, or the file was changed while it was
    being read, Damaged if it can't be read.

    Returns:
        Notes for the user, in sentences.

    Raises:
        OSError: the disk is too small.
    """
    contents = plan_safetensors(layout, program)
    with new_file(out, layout.source.status) as fd, ExitStack() as stack:
        disk = os.fstatvfs(fd)
        total = sum(entry.length for entry in contents.entries)
        if layout.source.size < total > disk.f_bavail * disk.f_frsize:
            # Expanded tensors can have any size.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_exactly(fd, contents.header, 0)
        writer = _Writer(layout, fd, total, progress, out.parent, stack)
        at = len(contents.header)
        for entry in contents.entries:
            writer.write(entry, at)
            at += entry.length
        # Holes at its end stay holes.
        os.ftruncate(fd, at)
        layout.source.refuse_if_changed()
    return contents.notes


class _Writer:
    """Writes tensors into the new file, and counts. folder: for what has to be decompressed, until `stack` is closed."""

    def __init__(self, layout: Layout, fd: int, total: int, progress: Progress, folder: Path, stack: ExitStack) -> None:
        self.layout = layout
        self.fd = fd
        self.total = total
        self.progress = progress
        self.folder = folder
        self.stack = stack
        self.done = 0
        self.inflated: dict[str, ByteSource] = {}

    def write(self, entry: PlannedTensor, to: int) -> None:
        if not entry.length:
            return
        source, begin = self._data(entry.storage)
        begin += entry.start
        swap = entry.type.unit if self.layout.byteorder == "big" else 1
        if entry.contiguous and swap == 1:
            before = self.done
            Copier(source, self.fd, entry.length, lambda done, _: self._advance(before + done)).copy(
                begin, entry.length, to
            )
            return
        for part in gather(
            lambda offset, length: source.read_at(begin + offset, length), entry.dims, entry.type.size, swap=swap
        ):
            write_exactly(self.fd, part.data, to + part.offset)
            self._advance(self.done + len(part.data))

    def _advance(self, done: int) -> None:
        self.done = done
        self.progress(done, self.total)

    def _data(self, storage: Storage) -> tuple[ByteSource, int]:
        """The file, and from which byte, where a storage can be read. A compressed one is written out to a file without a name."""
        if storage.key not in self.inflated:
            try:
                return self.layout.source, self.layout.place(storage).offset
            except Refused:
                file = self.stack.enter_context(tempfile.TemporaryFile(dir=self.folder))  # noqa: SIM115
            for piece in self.layout.pieces(storage):
                file.write(piece)
            file.flush()
            inflated = ByteSource(Path(f"/proc/self/fd/{file.fileno()}"))
            self.inflated[storage.key] = self.stack.enter_context(inflated)
        return self.inflated[storage.key], 0
