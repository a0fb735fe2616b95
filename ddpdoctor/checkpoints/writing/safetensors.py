"""A checkpoint's tensors as a safetensors file, of which no byte is loaded that can be copied."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.layouts import Layout
from ddpdoctor.checkpoints.formats.reading import ByteSource
from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import Storage
from ddpdoctor.checkpoints.writing.copying import Copier, Progress, write_at
from ddpdoctor.checkpoints.writing.gathering import gather
from ddpdoctor.checkpoints.writing.new_file import new_file
from ddpdoctor.checkpoints.writing.safetensors_plan import PlannedTensor, plan_safetensors


def write_safetensors(layout: Layout, program: Program, out: Path, progress: Progress) -> list[str]:
    """Writes the tensors of `program`, a pickle whose storages are in `layout`, to `out`, whole or not at all.

    Returns notes for the user, in sentences.

    Raises:
        Refused: see `plan_safetensors`; `out` exists or can't be written, or the file was changed while it was being read.
        Damaged: see `plan_safetensors`; it can't be read.
    """
    contents = plan_safetensors(layout, program)
    with new_file(out, layout.source.status) as fd, ExitStack() as stack:
        if layout.source.size < contents.length > _free(fd):
            # Expanded tensors can have any size.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_at(fd, contents.header, 0)
        writer = _Writer(layout, fd, contents.length, progress, out.parent, stack)
        at = len(contents.header)
        for entry in contents.entries:
            writer.write(entry, at)
            at += entry.length
        # Holes at its end stay holes.
        os.ftruncate(fd, at)
        layout.source.refuse_if_changed()
    return contents.notes


def _free(fd: int) -> int:
    """Bytes that can be written to the disk on which a file is."""
    disk = os.fstatvfs(fd)
    return disk.f_bavail * disk.f_frsize


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
        swap = entry.type.swap if self.layout.byteorder == "big" else 1
        if entry.contiguous and swap == 1:
            before = self.done
            Copier(source, self.fd, entry.length, lambda done, _: self._advance(before + done)).copy(
                begin, entry.length, to
            )
            return
        for part in gather(
            lambda offset, length: source.read_at(begin + offset, length), entry.dims, entry.type.item, swap=swap
        ):
            write_at(self.fd, part.data, to + part.offset)
            self._advance(self.done + len(part.data))

    def _advance(self, done: int) -> None:
        self.done = done
        self.progress(done, self.total)

    def _data(self, storage: Storage) -> tuple[ByteSource, int]:
        """Where a storage's bytes can be read. Compressed ones are written out to a file without a name."""
        if storage.key not in self.inflated:
            try:
                return self.layout.source, self.layout.place(storage).offset
            except Refused:
                self.inflated[storage.key] = self._inflate(storage)
        return self.inflated[storage.key], 0

    def _inflate(self, storage: Storage) -> ByteSource:
        file = self.stack.enter_context(tempfile.TemporaryFile(dir=self.folder))  # noqa: SIM115
        for piece in self.layout.pieces(storage):
            file.write(piece)
        file.flush()
        return self.stack.enter_context(ByteSource(Path(f"/proc/self/fd/{file.fileno()}")))
