"""Whether the other nodes reach the address that NCCL or gloo would offer them, as they tried it out. Pure."""

from __future__ import annotations

from functools import cache

import msgspec

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.text import listed
from ddpdoctor.facts.fleet import Cell, Fleet, Reach
from ddpdoctor.network_check.analysis.fault_location import BLOCKED, MIN_FAILED_SHARE

DIALLED = "TCP connections between all nodes"
MET = {
    Cell.SILENT.value: "no answer",
    Cell.REFUSED.value: "refused",
    Cell.PROHIBITED.value: "no route to host",
    Cell.RESET.value: "cut off",
    Cell.OTHER.value: "another host answered",
}


class Tried(msgspec.Struct, frozen=True):
    """One node's address of one kind, and the one at which it meets the master.

    failed: those (places in `Fleet.nodes`) who reach the second and not the first, of `peers` who tried; names: theirs;
    cells: what they met.
    """

    address: str
    route: str
    failed: tuple[int, ...]
    names: tuple[str, ...]
    peers: int
    cells: str

    @property
    def is_wrong(self) -> bool:
        """Whether most of the peers fail there: the word of one among several proves nothing."""
        return bool(self.failed) and len(self.failed) >= MIN_FAILED_SHARE * self.peers

    @property
    def who(self) -> str:
        """ "none of 7 peers", "its only peer doesn't": whom the address doesn't serve."""
        if self.peers == 1:
            return "its only peer doesn't reach"
        if len(self.failed) < self.peers:
            return f"{len(self.failed)} of {self.peers} peers don't reach"
        return f"none of {self.peers} peers reaches"

    @property
    def seen(self) -> Evidence:
        met = listed(MET[cell] for cell in dict.fromkeys(self.cells))
        text = f"{listed(self.names)} dialled {self.address}: {met}; they reach {self.route}"
        return Evidence(text, DIALLED)


class Unreached(msgspec.Struct, frozen=True):
    """Peers whose address of a kind serves others, and not this node, which does reach them elsewhere."""

    peers: tuple[int, ...]
    addresses: tuple[str, ...]
    names: tuple[str, ...]
    cells: str

    @property
    def seen(self) -> Evidence:
        met = listed(MET[cell] for cell in dict.fromkeys(self.cells))
        return Evidence(f"dialled {listed(self.addresses)} ({listed(self.names)}): {met}", DIALLED)


@cache
def tried(fleet: Fleet, rank: int | None, kind: str) -> Tried | None:
    """Find what came of the address of that kind ("nccl", "gloo") of the node of that rank. Where it is the address at which it
    meets the master anyway, nobody can reach the one without the other. None: nobody could try."""
    me = fleet.place_of(rank)
    routes = [reach for reach in fleet.routes if me >= 0 and reach.addresses[me]]
    if not routes:
        return None
    route = routes[0].addresses[me]
    there = _offered(fleet, me, kind)
    if there is None:
        own = getattr(fleet.nodes[me], f"{kind}_address")
        return Tried(route, route, (), (), 0, "") if own in (None, route) else None
    reached = [
        at
        for at in range(len(fleet.nodes))
        if at != me and all(reach.rows[at][me] == Cell.OK.value for reach in routes)
    ]
    asked = [at for at in reached if there.rows[at][me] != Cell.NOT_TRIED.value]
    failed = [at for at in asked if there.rows[at][me] in BLOCKED]
    if not asked:
        return None
    return Tried(
        address=there.addresses[me],
        route=route,
        failed=tuple(failed),
        names=tuple(_name(fleet, at) for at in failed),
        peers=len(asked),
        cells="".join(there.rows[at][me] for at in failed),
    )


def unreached(fleet: Fleet, rank: int | None, kind: str) -> Unreached | None:
    """The peers whose address of that kind this node doesn't reach, although most others do. None: there are none."""
    me = fleet.place_of(rank)
    found = []
    for at, node in enumerate(fleet.nodes):
        there = _offered(fleet, at, kind) if me >= 0 else None
        theirs = tried(fleet, node.rank, kind)
        if there and theirs and not theirs.is_wrong and me in theirs.failed:
            found.append((at, there.addresses[at], _name(fleet, at), there.rows[me][at]))
    if not found:
        return None
    peers, addresses, names, cells = zip(*found, strict=True)
    return Unreached(peers, addresses, names, "".join(cells))


def _offered(fleet: Fleet, at: int, kind: str) -> Reach | None:
    return next((reach for reach in fleet.reach if reach.kind == kind and reach.addresses[at]), None)


def _name(fleet: Fleet, at: int) -> str:
    return fleet.nodes[at].host or f"node {fleet.nodes[at].rank}"
