"""Copies of a checkpoint, as fast as the file system can: shared blocks, else copied by the kernel, else by us."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from ddpdoctor.checkpoints.formats.byte_source import PIECE_BYTES, ByteSource, ChangedMeanwhile, write_exactly
from ddpdoctor.checkpoints.formats.layouts import Change
from ddpdoctor.checkpoints.writing.new_file import new_file

Progress = Callable[[int, int], None]
"""Called with the bytes done, and the bytes to do in all."""

_FICLONE = 0x40049409
_STEP_BYTES = 1 << 26
"""That the kernel copies at a time: enough for full speed, and a fraction of a second."""

_NO_KERNEL_COPY = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF, errno.EIO}
)
"""What the kernel answers where it can't copy between these two files by itself, or doesn't say which of them fails."""


def write_copy(path: Path, change: Change, out: Path, progress: Progress) -> None:
    """Write the file at `path`, changed, to `out`: whole or not at all (see new_file), with its mode and times.

    Refused is raised if `out` exists or can't be written, Damaged if the file can't be read.

    Raises:
        ChangedMeanwhile: the file is no longer the one that the change was made for.
    """
    with ByteSource(path) as source, new_file(out, source.status) as fd:
        if source.size != change.size:
            raise ChangedMeanwhile
        copier = Copier(source, fd, source.size, progress)
        if not copier.clone():
            copier.copy(0, source.size, 0)
            os.ftruncate(fd, source.size)
        for patch in change.patches:
            if os.pread(fd, len(patch.old), patch.offset) != patch.old:
                raise ChangedMeanwhile
            write_exactly(fd, patch.new, patch.offset)
        write_exactly(fd, change.appended, change.size)
        source.refuse_if_changed()


class Copier:
    """Copies ranges of a file into another, and counts. total: bytes that will be copied in all, for the progress."""

    def __init__(self, source: ByteSource, fd: int, total: int, progress: Progress) -> None:
        self._source = source
        self._fd = fd
        self._total = total
        self._progress = progress
        self._done = 0
        status = os.fstat(source.fd)
        self._sparse = status.st_blocks * 512 < status.st_size
        self._kernel_copies = True

    def clone(self) -> bool:
        """Make the new file share all blocks of the old one, if the file system can."""
        try:
            fcntl.ioctl(self._fd, _FICLONE, self._source.fd)
        except OSError:
            # Which of a dozen numbers says that it can't differs from one file system to the next.
            return False
        self._advance(self._total)
        return True

    def copy(self, offset: int, length: int, to: int) -> None:
        """Copy `length` bytes from `offset` of the old file to `to` in the new one. Holes stay holes.

        A hole at the end leaves the new file short: set its size, or write something behind.
        """
        end = offset + length
        shift = to - offset
        while offset < end:
            start, stop = self._data(offset, end) if self._sparse else (offset, end)
            self._advance(start - offset)
            while start < stop:
                count = self._copy_some(start, min(_STEP_BYTES, stop - start), start + shift)
                start += count
                self._advance(count)
            offset = stop

    def _data(self, offset: int, end: int) -> tuple[int, int]:
        """The place where the next data begins, and where it ends; `end`, if there is none before."""
        try:
            start = os.lseek(self._source.fd, offset, os.SEEK_DATA)
            return min(start, end), min(os.lseek(self._source.fd, start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return end, end
            self._sparse = False
            return offset, end

    def _copy_some(self, offset: int, length: int, to: int) -> int:
        if self._kernel_copies:
            try:
                count = os.copy_file_range(self._source.fd, self._fd, length, offset, to)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                count = 0
            if count:
                return count
            self._kernel_copies = False
        data = self._source.read_at(offset, min(PIECE_BYTES, length))
        write_exactly(self._fd, data, to)
        return len(data)

    def _advance(self, count: int) -> None:
        if count:
            self._done += count
            self._progress(self._done, self._total)
