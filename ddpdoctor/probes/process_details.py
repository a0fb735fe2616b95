"""The deep look at one process: what it has open and mapped, and where it is contained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.processes import NOT_LOOKED_INTO
from ddpdoctor.probes.proc import MAX_MAPS, Proc

SHARED = "/dev/shm/"
DEVICE = re.compile(r"/dev/nvidia(\d+)$")
_SOCKET = re.compile(r"socket:\[(\d+)\]$")
_NO_CHECKPOINT = re.compile(r"^/(?:dev|proc|sys)/|^(?:pipe|socket|anon_inode|memfd):|\.(?:log|out|err|txt)(?:\.\d+)?$")
LISTEN = b"0A"

_HEX = r"[0-9a-f]"
_CONTAINER = re.compile(rf"(?<!{_HEX})({_HEX}{{64}})(?!{_HEX})")
_POD = re.compile(r"/(?:[^/]*-)?pod([0-9a-f][0-9a-f_-]{30,40})")
_NAMED = re.compile(
    r"/lxc(?:\.payload)?[./]([^/]+)|/machine\.slice/(?:systemd-nspawn@|machine-)([^/]+?)\.(?:service|scope)"
)
_SLURM = re.compile(r"/(job_\d+)(?:/|$)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


class Files(msgspec.Struct, frozen=True):
    """What a process has open and mapped. Each may be unknown by itself."""

    devices: tuple[int, ...] | Unknown = NOT_LOOKED_INTO
    sockets: frozenset[int] | Unknown = NOT_LOOKED_INTO
    """Inodes."""
    shared_memory: tuple[str, ...] | Unknown = NOT_LOOKED_INTO
    writes_to: tuple[str, ...] | Unknown = NOT_LOOKED_INTO
    programme: str = ""
    """"torch", "python" or "" by the libraries that it has mapped."""


def files(proc: Proc, pid: int, *, maps: bool) -> Files:
    """What it has open; with maps, also what it has mapped."""
    opened = proc.descriptors(pid)
    content = proc.whole(f"{pid}/maps", MAX_MAPS) if maps else NOT_LOOKED_INTO
    mapped = content if isinstance(content, Unknown) else _mapped(content)
    programme = "" if isinstance(content, Unknown) else _programme(content)
    if isinstance(opened, Unknown):
        shared = mapped if isinstance(mapped, Unknown) else _sorted(mapped)
        return Files(opened, opened, shared, opened, programme)
    links = [link for _, link in opened]
    held = {link for link in links if link.startswith(SHARED)}
    said = {link for number, link in opened if number in (1, 2)}
    return Files(
        devices=tuple(sorted({int(found[1]) for link in links if (found := DEVICE.match(link))})),
        sockets=frozenset(int(found[1]) for link in links if (found := _SOCKET.match(link))),
        shared_memory=mapped if isinstance(mapped, Unknown) else _sorted(held | mapped),
        writes_to=_sorted(
            {
                link
                for number, link in opened
                if link.startswith("/")
                and link not in said
                and not _NO_CHECKPOINT.search(link)
                and proc.opened_for_writing(pid, number)
            }
        ),
        programme=programme,
    )


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(legible(path) for path in paths))


def _mapped(maps: bytes) -> frozenset[str]:
    if b" /dev/shm/" not in maps:
        return frozenset()
    lines = (line for line in maps.splitlines() if b" /dev/shm/" in line)
    return frozenset(line.split(None, 5)[5].decode("utf-8", "replace") for line in lines)


def _programme(maps: bytes) -> str:
    if b"/libtorch" in maps or b"/libnccl" in maps:
        return "torch"
    return "python" if b"/libpython" in maps or b"/lib-dynload/" in maps else ""


def listening_ports(proc: Proc, pid: int) -> Mapping[int, int]:
    """Inode of each listening TCP socket in that process's network namespace, and its port."""
    found: dict[int, int] = {}
    for table in ("tcp", "tcp6"):
        content = proc.read(f"{pid}/net/{table}", 1 << 26)
        for line in content.splitlines()[1:] if isinstance(content, bytes) else ():
            fields = line.split(None, 10)
            if len(fields) >= 10 and fields[3] == LISTEN:
                found[int(fields[9])] = int(fields[1].rpartition(b":")[2], 16)
    return found


def contained(cgroup: bytes) -> tuple[str, str]:
    """Container and unit by the content of /proc/PID/cgroup, "" where there is none."""
    paths = list(_paths(cgroup.decode("utf-8", "replace")))
    container = next((one for path in paths if (one := _container(path))), "")
    job = next((found[1] for path in paths if (found := _SLURM.search(path))), "")
    units = (found for path in paths for found in _UNIT.findall(path) if not _CONTAINER.search(found))
    return container, job or next(iter(units), "")


def _paths(cgroup: str) -> Iterator[str]:
    """systemd's own hierarchy first: it names units where the others have none."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()]
    rows = [fields for fields in lines if len(fields) == 3]
    for fields in sorted(rows, key=lambda fields: fields[1] not in ("", "name=systemd")):
        yield fields[2]


def _container(path: str) -> str:
    # The last: a container in a container has both in its path.
    if found := _CONTAINER.findall(path):
        return str(found[-1])[:12]
    if "kubepods" in path and (pod := _POD.search(path)):
        return pod[1].replace("_", "-")[:12]
    named = _NAMED.search(path)
    return (named[1] or named[2])[:12] if named else ""
