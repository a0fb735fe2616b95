"""Reading from a checkpoint file by position. Never mapped: a mapping kills the reader if somebody cuts the file short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.base.regular_files import NotRegularError, open_regular
from ddpdoctor.checkpoints.errors import Busy, Damaged, NotACheckpoint, Refused

PIECE_BYTES = 1 << 20
"""Read at a time where much is read."""


class ChangedMeanwhile(Refused):
    """The bytes that were read aren't there any more."""

    def __init__(self) -> None:
        super().__init__(
            "The file was changed while it was being read", "Run the command again when its writer is done"
        )


class ByteSource:
    """A regular file, open for reading. status, size: as it was when it was opened; size in bytes."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            Busy: another run is changing it.
            NotACheckpoint: it is a folder, a pipe or a device.
            Refused: it can't be opened.
        """
        self.path = path
        try:
            self.fd = open_regular(path)
        except NotRegularError:
            raise NotACheckpoint(f"{path} is not a regular file") from None
        except FileNotFoundError:
            raise Refused(f"{path} does not exist") from None
        except PermissionError:
            raise Refused(f"{path} may not be read by this user") from None
        except BlockingIOError:
            raise Busy(f"{path} is being changed just now", "Run the command again when that is done") from None
        except OSError as error:
            raise Refused(f"{path} could not be opened: {error.strerror}") from None
        self.status = os.fstat(self.fd)
        self.size = self.status.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; Refused if the file system has lost them.

        Raises:
            Damaged: the file ends before, or the disk can't read them.
        """
        data = self._read(offset, length)
        if len(data) == length:
            return data
        pieces = [data]
        missing = length - len(data)
        while missing:
            data = self._read(offset + length - missing, missing)
            if not data:
                raise Damaged(
                    f"The file ends at byte {offset + length - missing:,}, within something that goes on to {offset + length:,}"
                )
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes, some at a time."""
        end = offset + length
        while offset < end:
            data = self.read_at(offset, min(PIECE_BYTES, end - offset))
            yield data
            offset += len(data)

    def refuse_if_changed(self) -> None:
        """Refuse to go on with a file that was changed.

        Raises:
            ChangedMeanwhile: somebody has written to it since it was opened.
        """
        now = os.fstat(self.fd)
        if (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise ChangedMeanwhile

    def close(self) -> None:
        """Close it, if it is open."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self.fd, length, offset)
        except OSError as error:
            kind = Damaged if error.errno == errno.EIO else Refused
            raise kind(f"Reading {length:,} bytes at {offset:,} failed: {error.strerror}") from None


def read_exactly(file: int, length: int, offset: int) -> bytes:
    """Read as much of that as there is; one call of the kernel may bring less."""
    parts = []
    while length > 0 and (part := os.pread(file, length, offset)):
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)


def write_exactly(file: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of it: one call of the kernel may take less, as when a signal comes or the disk is full."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written
