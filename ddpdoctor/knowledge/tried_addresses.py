"""Whether the other nodes reach the address that NCCL or gloo would offer them, as they tried it out. Pure."""

from __future__ import annotations

import msgspec

from ddpdoctor.facts.fleet import Cell, Fleet, Reach
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.findings import Evidence
from ddpdoctor.knowledge.blame import BLOCKED, MOST_OF_THEM
from ddpdoctor.wording import listed

MET = {
    Cell.SILENT.value: "no answer",
    Cell.REFUSED.value: "refused",
    Cell.PROHIBITED.value: "no route to host",
    Cell.RESET.value: "cut off",
    Cell.OTHER.value: "another host answered",
}


class Tried(msgspec.Struct, frozen=True):
    """One node's address of one kind, and the one at which it meets the master.

    failed: the names of those who reach the second and not the first, of `peers` who tried; cells: what they met.
    """

    address: str
    route: str
    failed: tuple[str, ...]
    peers: int
    cells: str

    @property
    def is_wrong(self) -> bool:
        """Whether most of the peers fail there: the word of one among several proves nothing."""
        return bool(self.failed) and len(self.failed) >= MOST_OF_THEM * self.peers

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
        met = listed(MET[one] for one in dict.fromkeys(self.cells))
        text = f"{listed(self.failed)} dialled {self.address}: {met}; they reach {self.route}"
        return Evidence(text, "TCP connections between all nodes")


def tried(fleet: Fleet, meeting: Meeting, kind: str) -> Tried | None:
    """What came of this node's address of that kind ("nccl", "gloo"). Where that is the address at which it meets the
    master anyway, nobody can reach the one without the other. None: nobody dialled this node."""
    me = next((at for at, one in enumerate(fleet.nodes) if one.rank == meeting.node_rank), -1)
    routes = [one for one in fleet.reach if one.kind == "route" and me >= 0 and one.addresses[me]]
    if not routes:
        return None
    route = routes[0].addresses[me]
    there = next((one for one in fleet.reach if one.kind == kind and one.addresses[me]), None)
    if there is None:
        own = getattr(fleet.nodes[me], f"{kind}_address")
        return Tried(route, route, (), 0, "") if own in (None, route) else None
    reached = [at for at in range(len(fleet.nodes)) if at != me and all(_passes(one, at, me) for one in routes)]
    asked = [at for at in reached if there.rows[at][me] != Cell.NOT_TRIED.value]
    failed = [at for at in asked if there.rows[at][me] in BLOCKED]
    return Tried(
        address=there.addresses[me],
        route=route,
        failed=tuple(fleet.nodes[at].host or f"node {fleet.nodes[at].rank}" for at in failed),
        peers=len(asked),
        cells="".join(there.rows[at][me] for at in failed),
    )


def _passes(reach: Reach, dialler: int, listener: int) -> bool:
    return reach.rows[dialler][listener] == Cell.OK.value
