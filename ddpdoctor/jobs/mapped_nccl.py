"""Which NCCL a running process has loaded: the version that stands in the very file it has mapped. Nothing is loaded for that."""

from __future__ import annotations

import mmap
import os
import re
import stat

from ddpdoctor.facts.base import Unknown
from ddpdoctor.probes.proc import MAX_MAPS, Proc

_LIBRARY = re.compile(rb"^\S+ \S+ \S+ \S+ \d+\s+(/.*/libnccl\.so[^/\n]*)$", re.MULTILINE)
_VERSION = re.compile(rb"NCCL version (\d{1,2})\.(\d{1,3})\.(\d{1,3})(?!\d)")
_DELETED = b" (deleted)"


def mapped_nccl(pid: int, proc: Proc) -> tuple[int, ...] | Unknown:
    """(2, 29, 3), or why it isn't known. A torch into which NCCL was linked has no such file."""
    maps = proc.read(f"{pid}/maps", MAX_MAPS)
    if isinstance(maps, Unknown):
        return Unknown(f"its libraries can't be looked at ({maps.reason})")
    found = {one[1] for one in _LIBRARY.finditer(maps)}
    if len(found) != 1:
        return Unknown("it has several libnccl.so loaded" if found else "it has no libnccl.so loaded")
    path = found.pop()
    if path.endswith(_DELETED):
        return Unknown("its libnccl.so was replaced while it runs")
    return _version_in(f"/proc/{pid}/root{os.fsdecode(path)}")


def _version_in(path: str) -> tuple[int, ...] | Unknown:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Unknown("its libnccl.so is no regular file")
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                versions = {tuple(map(int, one.groups())) for one in _VERSION.finditer(content)}
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is empty"
        return Unknown(f"its libnccl.so can't be read: {why}")
    return versions.pop() if len(versions) == 1 else Unknown("its libnccl.so doesn't tell its version")
