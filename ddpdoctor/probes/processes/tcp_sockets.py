"""TCP sockets of processes: who listens on which port, and which ranks are connected, which tells the ranks of two jobs apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddpdoctor.facts.processes import Process, ProcessRole
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.open_files import OpenFiles

ESTABLISHED, LISTEN = b"01", b"0A"
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
        inode: (own.removeprefix(_MAPPED), remote.removeprefix(_MAPPED))
        for inode, own, remote in _sockets(proc, pid, ESTABLISHED)
    }


def listening_ports(proc: Proc, pid: int) -> Mapping[int, int]:
    """Read the inode of each listening TCP socket in that process's network namespace, and its port."""
    return {inode: int(own.rpartition(b":")[2], 16) for inode, own, _ in _sockets(proc, pid, LISTEN)}


def _sockets(proc: Proc, pid: int, state: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Inode, own end and remote end of each TCP socket in that state."""
    for table in ("tcp", "tcp6"):
        content = proc.read(f"{pid}/net/{table}", MAX_TABLE_BYTES)
        for line in content.splitlines()[1:] if isinstance(content, bytes) else ():
            fields = line.split(None, 10)
            if len(fields) >= 10 and fields[3] == state and fields[9].isdigit():
                yield int(fields[9]), fields[1], fields[2]
