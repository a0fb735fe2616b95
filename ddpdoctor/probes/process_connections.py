"""Which ranks of this host are connected with each other: of two jobs beside each other that tells which rank is whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ddpdoctor.facts.processes import Process, ProcessRole
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.process_details import Files

ESTABLISHED = b"01"
LARGEST_TABLE = 1 << 26
_MAPPED = b"0000000000000000FFFF0000"
"""How the kernel begins an IPv4 address that an IPv6 socket has."""

Ends = tuple[bytes, bytes]
"""Own address and port, and the other's."""


def with_connections(proc: Proc, listed: Iterable[Process], files: Mapping[int, Files]) -> list[Process]:
    """The processes; of each rank with the pids of the ranks to which it has a TCP connection, where that can be seen."""
    found = list(listed)
    ranks = [process for process in found if process.role is ProcessRole.RANK]
    if len(ranks) < 2:
        return found
    tables: dict[str, Mapping[int, Ends]] = {}
    owners: dict[tuple[str, bytes, bytes], set[int]] = {}
    own_ends: dict[int, set[tuple[str, bytes, bytes]]] = {}
    for rank in ranks:
        sockets = files.get(rank.pid, Files()).sockets
        if not isinstance(sockets, frozenset):
            continue
        network = rank.network_namespace
        if network not in tables:
            tables[network] = _connections(proc, rank.pid)
        own_ends[rank.pid] = {(network, *tables[network][inode]) for inode in sockets & tables[network].keys()}
        for ends in own_ends[rank.pid]:
            owners.setdefault(ends, set()).add(rank.pid)
    return [_with(process, own_ends[process.pid], owners) if process.pid in own_ends else process for process in found]


def _with(
    rank: Process, ends: Iterable[tuple[str, bytes, bytes]], owners: Mapping[tuple[str, bytes, bytes], set[int]]
) -> Process:
    others = {pid for network, own, other in ends for pid in owners.get((network, other, own), ())}
    return msgspec.structs.replace(rank, connected=tuple(sorted(others - {rank.pid})))


def _connections(proc: Proc, pid: int) -> Mapping[int, Ends]:
    """The ends of each TCP connection in that process's network namespace, by the inode of its socket."""
    found: dict[int, Ends] = {}
    for table in ("tcp", "tcp6"):
        content = proc.read(f"{pid}/net/{table}", LARGEST_TABLE)
        for line in content.splitlines()[1:] if isinstance(content, bytes) else ():
            fields = line.split(None, 10)
            if len(fields) >= 10 and fields[3] == ESTABLISHED and fields[9].isdigit():
                found[int(fields[9])] = (fields[1].removeprefix(_MAPPED), fields[2].removeprefix(_MAPPED))
    return found
