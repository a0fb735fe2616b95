"""Finds TCP ports that torch's store could not listen on, and who holds them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import Listener
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import MAX_ENVIRON, Proc, user_name, variables
from ddpdoctor.probes.processes.command_lines import command, command_of_others
from ddpdoctor.probes.processes.tcp_sockets import HOLDING_STATES, LISTEN, TcpSocket, read_sockets
from ddpdoctor.probes.run_as import INQUIRY_MARK

JOB_SETTINGS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
"""What tells jobs apart."""
MAX_COMMAND_LENGTH = 300


def error_of_bind(port: int) -> int:
    """Find out by which errno torch's store would fail on that port, 0 if it wouldn't. Nothing is listened on.

    The store tries [::] for both families, then 0.0.0.0, each with SO_REUSEADDR. So connections in TIME_WAIT don't count, a
    listener on any one local address does.
    """
    # IPv6 may fail for want of IPv6 alone, so IPv4 has the last word.
    return _bind(socket.AF_INET6, "::", port) and _bind(socket.AF_INET, "0.0.0.0", port)


def _bind(family: socket.AddressFamily, address: str, port: int) -> int:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trial.bind((address, port))
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def port_holders(context: Context, ports: Iterable[int]) -> tuple[Listener, ...] | Unknown:
    """List those who listen on one of the ports, or hold it as the near end of a connection."""
    proc = Proc(context.path("/proc"))
    if isinstance(unreadable := proc.read("net/tcp", 1), Unknown):
        return unreadable
    wanted = set(ports)
    sockets = [row for row in read_sockets(proc, "net", HOLDING_STATES) if row.port in wanted]
    owners = _owners(context, {str(row.inode) for row in sockets}) if sockets else {}
    ancestors = _ancestors(proc)
    return tuple(_listener(proc, context.environ, row, owners.get(str(row.inode), 0), ancestors) for row in sockets)


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


def _listener(proc: Proc, environ: Mapping[str, str], row: TcpSocket, pid: int, ancestors: set[int]) -> Listener:
    """pid: of the process that holds the socket, 0 where that can't be seen."""
    words = proc.words(pid) if pid else ()
    stat = proc.stat(pid)
    mine = row.uid == os.geteuid()
    shown = command if mine else command_of_others
    return Listener(
        address=row.address,
        port=row.port,
        pid=pid,
        process=proc.text(f"{pid}/comm").strip() if pid else "",
        command="" if isinstance(words, Unknown) else shown(words)[:MAX_COMMAND_LENGTH],
        user=user_name(row.uid),
        age=-1.0 if isinstance(stat, Unknown) else round(stat.age, 1),
        listening=row.state == LISTEN,
        same_job=pid in ancestors or (pid > 0 and _is_of_same_job(proc, environ, pid, mine=mine)),
    )


def _ancestors(proc: Proc) -> set[int]:
    """This process, its parent, and so on."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        stat = proc.stat(pid)
        pid = 0 if isinstance(stat, Unknown) else stat.parent
    return found


def _is_of_same_job(proc: Proc, environ: Mapping[str, str], pid: int, *, mine: bool) -> bool:
    """Whether it was started with the settings that tell our job from others, or is what a ddpdoctor of ours started on its own account."""
    content = proc.read(f"{pid}/environ", MAX_ENVIRON)
    theirs = variables(content) if isinstance(content, bytes) else {}
    if mine and INQUIRY_MARK.items() <= theirs.items():
        return True
    job = _job_settings(theirs)
    return any(job.get(name) == value for name, value in _job_settings(environ).items())


def _job_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """torchrun's run id is "none" unless somebody names it."""
    return {name: environ[name] for name in JOB_SETTINGS if environ.get(name, "none") not in ("", "none")}
