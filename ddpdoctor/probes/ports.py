"""Which TCP ports torch's store could not listen on, and who holds them."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import Listener
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.process_facts import command, command_of_others

LISTEN = "0A"
WITHOUT_OWNER = ("06", "03")
"""TIME_WAIT and SYN_RECV: no process holds them, and they don't keep a listener off."""

JOB_MARKS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
LONGEST_COMMAND = 300


class _Held(msgspec.Struct, frozen=True):
    address: str
    port: int
    listening: bool
    uid: int
    inode: str


def error_of_bind(port: int) -> int:
    """By which errno torch's store would fail there, 0 if it wouldn't: it tries [::] for both families, then 0.0.0.0, each
    with SO_REUSEADDR. So connections in TIME_WAIT don't count, a listener on any one local address does. Nothing is
    listened on."""
    # IPv6 may fail for want of IPv6 alone, so IPv4 has the last word.
    return _bind(socket.AF_INET6, "::", port) and _bind(socket.AF_INET, "0.0.0.0", port)


def _bind(family: socket.AddressFamily, address: str, port: int) -> int:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind((address, port))
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def holders(context: Context, ports: Iterable[int]) -> tuple[Listener, ...] | Unknown:
    """Those who listen on one of the ports, or hold it as the near end of a connection."""
    wanted = set(ports)
    held: list[_Held] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        text = context.read(table)
        if isinstance(text, str):
            held.extend(row for row in _rows(text) if row.port in wanted)
        elif table == "/proc/net/tcp":
            return text
    owners = _owners(context, {one.inode for one in held}) if held else {}
    ancestors = _ancestors(context)
    return tuple(_listener(context, one, owners.get(one.inode, 0), ancestors) for one in held)


def _rows(table: str) -> Iterator[_Held]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] in WITHOUT_OWNER:
            continue
        address, _, port = fields[1].partition(":")
        yield _Held(_address(address), int(port, 16), fields[3] == LISTEN, int(fields[7]), fields[9])


def _address(digits: str) -> str:
    """The kernel prints each 32-bit word in the host's own byte order."""
    words = [int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(digits), 8)]
    raw = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _owners(context: Context, inodes: set[str]) -> dict[str, int]:
    """Socket inode to process, as far as we may look."""
    found: dict[str, int] = {}
    for process in context.path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):
            for handle in os.scandir(process / "fd"):
                with suppress(OSError):
                    target = os.readlink(handle.path)  # noqa: PTH115 (Path.readlink builds a Path a handle)
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        found.setdefault(target[8:-1], int(process.name))
    return found


def _listener(context: Context, held: _Held, pid: int, ancestors: set[int]) -> Listener:
    words = Proc(os.fspath(context.path("/proc"))).words(pid) if pid else ()
    name = context.read(f"/proc/{pid}/comm") if pid else ""
    shown = command if held.uid == os.geteuid() else command_of_others
    return Listener(
        address=held.address,
        port=held.port,
        pid=pid,
        process=name.strip() if isinstance(name, str) else "",
        command="" if isinstance(words, Unknown) else shown(words)[:LONGEST_COMMAND],
        user=_user(held.uid),
        age=_age(context, pid) if pid else -1.0,
        listening=held.listening,
        same_job=pid in ancestors or (pid > 0 and _same_job(context, pid)),
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _stat(context: Context, pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second, the name, may hold anything."""
    text = context.read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() if isinstance(text, str) else []


def _age(context: Context, pid: int) -> float:
    fields = _stat(context, pid)
    if len(fields) < 20:
        return -1.0
    return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")), 1)


def _ancestors(context: Context) -> set[int]:
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        fields = _stat(context, pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _same_job(context: Context, pid: int) -> bool:
    ours = _marks(context.environ)
    text = context.read(f"/proc/{pid}/environ") if ours else ""
    if not isinstance(text, str):
        return False
    theirs = _marks(dict(line.partition("=")[::2] for line in text.split("\0") if "=" in line))
    return any(theirs.get(name) == value for name, value in ours.items())


def _marks(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells jobs apart. torchrun's run id is "none" unless somebody names it."""
    return {name: environ[name] for name in JOB_MARKS if environ.get(name, "none") not in ("", "none")}
