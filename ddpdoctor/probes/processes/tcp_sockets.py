"""TCP sockets of processes: who listens on which port, and which ranks are connected, which tells the ranks of two jobs apart."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ddpdoctor.facts.processes import Process, ProcessRole
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.open_files import OpenFiles

ESTABLISHED, LISTEN = b"01", b"0A"
HOLDING_STATES = frozenset(f"{state:02X}".encode() for state in range(1, 13)) - {b"06", b"03"}
"""All but TIME_WAIT and SYN_RECV, which no process holds, and which don't keep a listener off."""
MAX_TABLE_BYTES = 1 << 26
_MAPPED = b"0000000000000000FFFF0000"
"""Beginning of an IPv4 address that an IPv6 socket has, as the kernel writes it."""

Ends = tuple[bytes, bytes]
"""Own address and port, and the remote one's."""


def with_connections(proc: Proc, listed: Sequence[Process], files: Mapping[int, OpenFiles]) -> Sequence[Process]:
    """Give each rank the pids of the ranks to which it has a TCP connection, where that can be seen. files: by pid."""
    ranks = [process for process in listed if process.role is ProcessRole.RANK]
    if len(ranks) < 2:
        return listed
    tables: dict[str, Mapping[int, Ends]] = {}
    owners: dict[tuple[str, bytes, bytes], set[int]] = defaultdict(set)
    own_ends: dict[int, set[tuple[str, bytes, bytes]]] = {}
    for rank in ranks:
        sockets = files.get(rank.pid, OpenFiles()).sockets
        if not isinstance(sockets, frozenset):
            continue
        network = rank.network_namespace
        if network not in tables:
            tables[network] = _connections(proc, rank.pid)
        own_ends[rank.pid] = {(network, *tables[network][inode]) for inode in sockets & tables[network].keys()}
        for ends in own_ends[rank.pid]:
            owners[ends].add(rank.pid)

    def connect(process: Process) -> Process:
        if process.pid not in own_ends:
            return process
        peers = {
            pid for network, own, remote in own_ends[process.pid] for pid in owners.get((network, remote, own), ())
        }
        return msgspec.structs.replace(process, connected=tuple(sorted(peers - {process.pid})))

    return [connect(process) for process in listed]


def _connections(proc: Proc, pid: int) -> Mapping[int, Ends]:
    """The ends of each TCP connection in that process's network namespace, by the inode of its socket."""
    return {
        row.inode: (row.own.removeprefix(_MAPPED), row.remote.removeprefix(_MAPPED))
        for row in read_sockets(proc, f"{pid}/net", (ESTABLISHED,))
    }


def listening_ports(proc: Proc, folder: str) -> Mapping[int, int]:
    """Read the inode of each listening TCP socket, and its port. folder: as for `read_sockets`."""
    return {row.inode: row.port for row in read_sockets(proc, folder, (LISTEN,))}


class TcpSocket(NamedTuple):
    """One row of /proc/net/tcp. own, remote: address and port of its ends, as they stand there."""

    own: bytes
    remote: bytes
    state: bytes
    uid: int
    inode: int

    @property
    def port(self) -> int:
        return int(self.own.rpartition(b":")[2], 16)

    @property
    def address(self) -> str:
        """The kernel prints each 32-bit word in the host's own byte order."""
        digits = self.own.partition(b":")[0]
        words = [int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(digits), 8)]
        return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def read_sockets(proc: Proc, folder: str, states: Container[bytes]) -> Iterator[TcpSocket]:
    """Read the TCP sockets in those states. folder: "net" for our own network namespace, whatever number /proc has for us, or
    "PID/net" for that process's."""
    for table in ("tcp", "tcp6"):
        content = proc.read(f"{folder}/{table}", MAX_TABLE_BYTES)
        for line in content.splitlines()[1:] if isinstance(content, bytes) else ():
            fields = line.split(None, 10)
            if len(fields) >= 10 and fields[3] in states and fields[9].isdigit():
                yield TcpSocket(fields[1], fields[2], fields[3], int(fields[7]), int(fields[9]))
