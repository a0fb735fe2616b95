"""Reads what one process has open and mapped: devices, sockets, shared memory, files that it writes to."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.processes import NOT_LOOKED_INTO
from ddpdoctor.probes.proc import MAX_MAPS, Proc

SHARED_MEMORY = "/dev/shm/"
DEVICE = re.compile(r"/dev/nvidia(\d+)$")
_SOCKET = re.compile(r"socket:\[(\d+)\]$")
_NO_CHECKPOINT = re.compile(r"^/(?:dev|proc|sys)/|^(?:pipe|socket|anon_inode|memfd):|\.(?:log|out|err|txt)(?:\.\d+)?$")


class OpenFiles(msgspec.Struct, frozen=True):
    """Files that a process has open and mapped. Each field may be unknown by itself."""

    devices: tuple[int, ...] | Unknown = NOT_LOOKED_INTO
    sockets: frozenset[int] | Unknown = NOT_LOOKED_INTO
    """Inodes."""
    shared_memory: tuple[str, ...] | Unknown = NOT_LOOKED_INTO
    writes_to: tuple[str, ...] | Unknown = NOT_LOOKED_INTO
    runtime: str = ""
    """"torch", "python" or "" by the libraries that it has mapped."""

    @classmethod
    def unknown(cls, why: Unknown) -> OpenFiles:
        """Nothing is known, for that reason."""
        return cls(why, why, why, why)


def read_open_files(proc: Proc, pid: int, *, maps: bool) -> OpenFiles:
    """Read what the process has open; with maps, also what it has mapped."""
    opened = proc.descriptors(pid)
    content = proc.whole(f"{pid}/maps", MAX_MAPS) if maps else NOT_LOOKED_INTO
    mapped = content if isinstance(content, Unknown) else _mapped_segments(content)
    runtime = "" if isinstance(content, Unknown) else _runtime(content)
    if isinstance(opened, Unknown):
        shared = mapped if isinstance(mapped, Unknown) else _sorted(mapped)
        return OpenFiles(opened, opened, shared, opened, runtime)
    links = [link for _, link in opened]
    segments = {link for link in links if link.startswith(SHARED_MEMORY)}
    outputs = {link for number, link in opened if number in (1, 2)}
    return OpenFiles(
        devices=tuple(sorted({int(found[1]) for link in links if (found := DEVICE.match(link))})),
        sockets=frozenset(int(found[1]) for link in links if (found := _SOCKET.match(link))),
        shared_memory=mapped if isinstance(mapped, Unknown) else _sorted(segments | mapped),
        writes_to=_sorted(
            {
                link
                for number, link in opened
                if link.startswith("/")
                and link not in outputs
                and not _NO_CHECKPOINT.search(link)
                and proc.opened_for_writing(pid, number)
            }
        ),
        runtime=runtime,
    )


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(legible(path) for path in paths))


def _mapped_segments(maps: bytes) -> frozenset[str]:
    if b" /dev/shm/" not in maps:
        return frozenset()
    lines = (line for line in maps.splitlines() if b" /dev/shm/" in line)
    return frozenset(line.split(None, 5)[5].decode("utf-8", "replace") for line in lines)


def _runtime(maps: bytes) -> str:
    if b"/libtorch" in maps or b"/libnccl" in maps:
        return "torch"
    return "python" if b"/libpython" in maps or b"/lib-dynload/" in maps else ""
