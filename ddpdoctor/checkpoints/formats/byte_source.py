"""Reading from a checkpoint file by position. Never mapped: a mapping kills the reader if somebody cuts the file short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ddpdoctor.base.regular_files import NotRegularError, open_regular
from ddpdoctor.checkpoints.errors import Busy, CheckpointError, Damaged, NotACheckpoint, Refused

PIECE = 1 << 20
"""Bytes read at a time where much is read."""


class ByteSource:
    """A regular file, open for reading. status, size: as it was when it was opened; size in bytes."""

    def __init__(self, path: Path) -> None:
        """Raises Refused if it can't be opened, NotACheckpoint if it is a folder, a pipe or a device."""
        self.path = path
        try:
            self.fd = open_regular(path)
        except NotRegularError:
            raise NotACheckpoint(f"{path} is not a regular file") from None
        except OSError as error:
            raise unopened(path, error) from None
        self.status = os.fstat(self.fd)
        self.size = self.status.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`.

        Raises Damaged if the file ends before, or the disk can't read them; Refused if the file system has lost them.
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
        """The same, some at a time."""
        end = offset + length
        while offset < end:
            data = self.read_at(offset, min(PIECE, end - offset))
            yield data
            offset += len(data)

    def refuse_if_changed(self) -> None:
        """Raises Refused if somebody has written to the file since it was opened."""
        now = os.fstat(self.fd)
        if (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise changed_meanwhile()

    def close(self) -> None:
        """Any number of times."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self.fd, length, offset)
        except OSError as error:
            kind = Damaged if error.errno == errno.EIO else Refused
            raise kind(f"Reading {length:,} bytes at {offset:,} failed: {error.strerror}") from None


def changed_meanwhile() -> Refused:
    """For who finds that what was read isn't there any more."""
    return Refused("The file was changed while it was being read", "Run the command again when its writer is done")


def unopened(path: Path, error: OSError) -> CheckpointError:
    """Why a file could not be opened, in plain words."""
    if isinstance(error, FileNotFoundError):
        return Refused(f"{path} does not exist")
    if isinstance(error, PermissionError):
        return Refused(f"{path} may not be read by this user")
    if isinstance(error, BlockingIOError):
        return Busy(f"{path} is being changed just now", "Run the command again when that is done")
    return Refused(f"{path} could not be opened: {error.strerror}")
