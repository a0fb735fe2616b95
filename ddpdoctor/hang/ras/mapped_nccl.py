"""Tells which NCCL a running process has loaded: the version that stands in the very file it has mapped. Nothing is loaded for that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.files import open_regular
from ddpdoctor.probes.proc import MAX_MAPS, Proc

MAX_LIBRARY_BYTES: Final = 1 << 30
"""NCCL's libraries have some 500 MiB at most."""
PIECE_BYTES: Final = 1 << 20
MAX_VERSION_BYTES: Final = 64
"""Length of the words that tell a version."""

_LIBRARY = re.compile(rb"^\S+ \S+ \S+ \S+ \d+\s+(/.*/libnccl\.so[^/\n]*)$", re.MULTILINE)
_VERSION = re.compile(rb"NCCL version (\d{1,2})\.(\d{1,3})\.(\d{1,3})(?!\d)")
_DELETED = b" (deleted)"


def mapped_nccl(pid: int, proc: Proc) -> tuple[int, ...] | Unknown:
    """Read its version, as (2, 29, 3), or say why it isn't known. A torch into which NCCL was linked has no such file."""
    maps = proc.read(f"{pid}/maps", MAX_MAPS)
    if isinstance(maps, Unknown):
        return Unknown(f"its libraries can't be looked at ({maps.reason})")
    found = {library[1] for library in _LIBRARY.finditer(maps)}
    if len(found) != 1:
        return Unknown("it has several libnccl.so loaded" if found else "it has no libnccl.so loaded")
    path = found.pop()
    if path.endswith(_DELETED):
        return Unknown("its libnccl.so was replaced while it runs")
    return _version_in(f"/proc/{pid}/root{os.fsdecode(path)}")


def _versions(file: BinaryIO) -> Iterator[tuple[int, ...]]:
    before = b""
    left = MAX_LIBRARY_BYTES
    while left > 0 and (piece := file.read(PIECE_BYTES)):
        left -= len(piece)
        piece = before + piece
        # One at the very end may go on in the next piece, with which it is looked at again.
        before = piece[-MAX_VERSION_BYTES:]
        yield from (tuple(map(int, version.groups())) for version in _VERSION.finditer(piece))


def _version_in(path: str) -> tuple[int, ...] | Unknown:
    try:
        # Not by mmap: its owner may cut it off meanwhile, which would end us.
        with os.fdopen(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_LIBRARY_BYTES:
                return Unknown(f"its libnccl.so is larger than {MAX_LIBRARY_BYTES >> 20} MiB")
            versions = set(_versions(file))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its path is none"
        return Unknown(f"its libnccl.so can't be read: {why}")
    return versions.pop() if len(versions) == 1 else Unknown("its libnccl.so doesn't tell its version")
