"""The processes that have a file open or mapped, as far as this user may see."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Occupant(NamedTuple):
    """A process that has the file. how: "open for writing", "open" or "mapped"."""

    pid: int
    program: str
    how: str

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid}) has it {self.how}"


class _Wanted(NamedTuple):
    """The file as processes show it. inodes: a stacked file system (overlay) counts its own and the lower one's."""

    status: os.stat_result
    inodes: frozenset[str]
    name: str


def occupants(file: int) -> tuple[Occupant, ...]:
    """List who but this descriptor has the file open or mapped. file: open."""
    status = os.fstat(file)
    inode = str(status.st_ino)
    inodes = frozenset({inode, _fdinfo("self", str(file)).get("ino") or inode})
    wanted = _Wanted(status, inodes, Path(f"/proc/self/fd/{file}").readlink().name)
    found = []
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        how = _how(pid, wanted, skip=str(file) if pid == os.getpid() else "")
        if how:
            try:
                program = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            except OSError:
                program = ""
            found.append(Occupant(pid, program or "a process", how))
    return tuple(found)


def _how(pid: int, wanted: _Wanted, skip: str) -> str:
    """ "" if it hasn't the file, or has ended, or is none of this user's."""
    hows = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if entry.name != skip:
                hows.add(_descriptor(pid, entry.name, wanted))
    for how in ("open for writing", "open"):
        if how in hows:
            return how
    return "mapped" if _maps(pid, wanted) else ""


def _descriptor(pid: int, number: str, wanted: _Wanted) -> str:
    info = _fdinfo(str(pid), number)
    # Newer kernels name the inode here; asking the file itself can hang where a file server doesn't answer.
    if info.get("ino", "") and info["ino"] not in wanted.inodes:
        return ""
    try:
        status = Path(f"/proc/{pid}/fd/{number}").stat()
    except OSError:
        return ""
    if not os.path.samestat(status, wanted.status):
        return ""
    writing = int(info.get("flags", "0"), 8) & os.O_ACCMODE != os.O_RDONLY
    return "open for writing" if writing else "open"


def _fdinfo(pid: str, number: str) -> dict[str, str]:
    try:
        with Path(f"/proc/{pid}/fdinfo/{number}").open() as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def _maps(pid: int, wanted: _Wanted) -> bool:
    device = f"{os.major(wanted.status.st_dev):02x}:{os.minor(wanted.status.st_dev):02x}"
    with suppress(OSError), Path(f"/proc/{pid}/maps").open(errors="surrogateescape") as file:
        for line in file:
            # Address, rights, offset, device, inode, path. Not every file system shows the same device here as in stat.
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) < 6 or fields[4] not in wanted.inodes:
                continue
            if fields[3] == device or Path(fields[5]).name == wanted.name:
                return True
    return False


def is_ours(pid: int) -> bool:
    """Whether a process is another run of ddpdoctor, which reads or writes for a moment only."""
    if pid == os.getpid():
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        # It has just ended.
        return not Path(f"/proc/{pid}").exists()
    # "ddpdoctor ...", "python .../bin/ddpdoctor ...", "python -m ddpdoctor ...".
    return any(os.path.basename(word) == b"ddpdoctor" for word in words[:4])  # noqa: PTH119


def file_system(file: int) -> str:
    """The type of the file system that an open file lies on ("ext4", "nfs4", "fuse.sshfs"), "" if it can't be told."""
    mount = _fdinfo("self", str(file)).get("mnt_id")
    with suppress(OSError), Path("/proc/self/mountinfo").open(errors="surrogateescape") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[0] == mount:
                return fields[fields.index("-") + 1]
    return ""
