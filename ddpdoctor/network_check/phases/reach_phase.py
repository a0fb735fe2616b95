"""The phase in which every node dials every other one, and what has failed once more, under the eyes of the kernels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.facts.fleet import Cell, Reach
from ddpdoctor.network_check.analysis.fault_location import BLOCKED, COUNTED_DIALS
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import (
    MAX_PORTS,
    Answer,
    Count,
    Counted,
    Dial,
    Dialled,
    DialOutcome,
    ListenAddress,
    Open,
    Opened,
    Order,
    OrderFailed,
    Peer,
)
from ddpdoctor.network_check.protocol.order_limits import MAX_DIALLED_PORTS, MIN_PORTS_PER_PEER

TRY_SECONDS = 2.5
"""For one try to connect: the kernel sends its first packet again after one second."""
COUNTED_TRY_SECONDS = 0.3
"""For one while it is counted: the kernel must not send its packet again, after one second."""
SETTLING_SECONDS = 1.2
"""After two tries: the answers (SYN-ACK) that a filter took come again 1, 3, 7 and 15 seconds after each, and what follows
begins where there is a pause."""
DIAL_SECONDS = 20.0
"""For all dialling of one node where few places are silent: two tries, and the large messages."""
MAX_PARALLEL_DIALS = 64
"""Places that one node dials at a time."""

Places = Mapping[int, Sequence[ListenAddress]]
"""Where nodes listen, by rank."""

Dialling = tuple[int, int, int]
"""Who dialled, whom, and at which port, on the way to the master."""

GOOD = (Cell.OK.value, Cell.NOT_TRIED.value)


class Packets(msgspec.Struct, frozen=True):
    """How the kernel's counters of one node grew: while what had failed was dialled again, and in an idle time before."""

    dialling: Counted
    idle: Counted


class ReachResult(msgspec.Struct, frozen=True):
    """What the phase came to. By rank: `packets`, where something had failed, and `troubles`, a node's own. `untested`: who
    could not be tested and why, in words. `whole`: each node reaches each other one."""

    reach: tuple[Reach, ...] = ()
    packets: Mapping[int, Packets] = {}
    troubles: Mapping[int, tuple[str, ...]] = {}
    untested: str = ""
    whole: bool = False


async def who_reaches_whom(hub: Hub, members: Sequence[int]) -> ReachResult:
    """Asks all nodes that are there. members: the ranks of those that joined, in the order of the matrices."""
    return await _Phase(hub, members).run()


class _Phase:
    def __init__(self, hub: Hub, members: Sequence[int]) -> None:
        self._hub = hub
        self._members = members
        self._troubles: dict[int, dict[str, None]] = {}
        self._full: set[int] = set()
        """Nodes that had visitors whom they could not let in."""

    @property
    def _there(self) -> list[int]:
        return [rank for rank in self._members if not self._hub.peers[rank].lost]

    async def run(self) -> ReachResult:
        ports = max(MIN_PORTS_PER_PEER, min(MAX_PORTS, MAX_DIALLED_PORTS // len(self._there)))
        opened = await self._ask(dict.fromkeys(self._there, Open(ports=ports)), DIAL_SECONDS)
        places = {rank: one.places for rank, one in opened.items() if isinstance(one, Opened)}
        met = await self._dial(dict.fromkeys(self._there, places), TRY_SECONDS)
        failed = _failed(met, places)
        packets, answered = await self._under_the_kernels_eyes(failed) if failed else ({}, set())
        met = {rank: tuple(_mended(rank, cell, places, answered) for cell in row) for rank, row in met.items()}
        reach = matrices(self._members, places, {rank: self._excused(row) for rank, row in met.items()})
        # Whether NCCL and gloo would take other addresses in vain is for the checks to say: there may be no NCCL.
        routes = [matrix for matrix in reach if matrix.kind == "route"]
        untested = self._untested(routes)
        return ReachResult(
            reach=reach,
            packets=packets,
            troubles={rank: tuple(found) for rank, found in self._troubles.items()},
            untested=untested,
            whole=not untested and len(self._there) == len(self._members) and not count_failures(routes),
        )

    async def _ask(self, orders: Mapping[int, Order], seconds: float) -> dict[int, Answer]:
        """The answers; what the nodes had trouble with is noted."""
        answers = await self._hub.ask(orders, seconds)
        for rank, one in answers.items():
            if isinstance(one, OrderFailed):
                self._note(rank, (one.why,))
            elif isinstance(one, (Opened, Dialled, Counted)):
                self._note(rank, one.errors)
        return answers

    def _note(self, rank: int, errors: Iterable[str]) -> None:
        for error in errors:
            self._troubles.setdefault(rank, {})[error] = None

    async def _dial(
        self, whom: Mapping[int, Places], seconds: float, *, again: bool = True
    ) -> dict[int, tuple[DialOutcome, ...]]:
        """What each node met at the places of those whom it was to dial."""
        orders = {
            rank: Dial(peers=self._peers(rank, places), seconds=seconds, at_once=MAX_PARALLEL_DIALS, again=again)
            for rank, places in whom.items()
        }
        # Where nobody answers, each place takes two tries, and so many of them are dialled at a time.
        answers = await self._ask(orders, DIAL_SECONDS + 2 * seconds * _rounds(whom))
        return {rank: one.met for rank, one in answers.items() if isinstance(one, Dialled)}

    def _peers(self, rank: int, places: Places) -> tuple[Peer, ...]:
        return tuple(
            Peer(node=other, host=self._hub.peers[other].host, places=tuple(there))
            for other, there in places.items()
            if other != rank
        )

    # --- what has failed --------------------------------------------------------------------------------------------------

    async def _under_the_kernels_eyes(self, failed: Mapping[int, Places]) -> tuple[dict[int, Packets], set[Dialling]]:
        """Has what failed dialled again, so briefly that the number of packets is known, after an idle time as long. With
        what answered then."""
        await asyncio.sleep(SETTLING_SECONDS)
        before = await self._count()
        await asyncio.sleep(COUNTED_DIALS * COUNTED_TRY_SECONDS * math.ceil(_rounds(failed)))
        between = await self._count()
        answered: set[Dialling] = set()
        for _ in range(COUNTED_DIALS):
            answered |= _answered(await self._dial(failed, COUNTED_TRY_SECONDS, again=False), failed)
        after = await self._count()
        packets = {
            rank: Packets(dialling=_grown(between[rank], after[rank]), idle=_grown(before[rank], between[rank]))
            for rank in after
            if rank in before and rank in between
        }
        return packets, answered

    async def _count(self) -> dict[int, Counted]:
        answers = await self._ask(dict.fromkeys(self._there, Count()), DIAL_SECONDS)
        found = {rank: one for rank, one in answers.items() if isinstance(one, Counted)}
        self._full.update(rank for rank, one in found.items() if one.errors)
        return found

    def _excused(self, row: Sequence[DialOutcome]) -> tuple[DialOutcome, ...]:
        """Without the silence of nodes that could not let their visitors in: no filter is to blame for it."""
        excuse = str.maketrans(dict.fromkeys((Cell.SILENT.value, Cell.RESET.value), Cell.NOT_TRIED.value))
        return tuple(
            msgspec.structs.replace(met, cells=met.cells.translate(excuse)) if met.node in self._full else met
            for met in row
        )

    def _untested(self, routes: Sequence[Reach]) -> str:
        troubled = [
            f"{self._hub.peers[rank].host} could not be tested: {next(iter(found))}"
            for rank, found in self._troubles.items()
            if rank in self._there
        ]
        if troubled:
            return listed(troubled[:3])
        there = [at for at, rank in enumerate(self._members) if rank in self._there]
        missing = any(
            route.rows[i][j] == Cell.NOT_TRIED.value for route in routes for i in there for j in there if i != j
        )
        return "not every node dialled every other one" if missing or not routes else ""


def count_failures(reach: Iterable[Reach]) -> int:
    """How many connections failed."""
    return sum(cell not in GOOD for matrix in reach for row in matrix.rows for cell in row)


def _failed(met: Mapping[int, Sequence[DialOutcome]], places: Places) -> Mapping[int, Places]:
    """Each node to the ports on the way to the master that it dialled in vain."""
    found: dict[int, dict[int, Sequence[ListenAddress]]] = {}
    for rank, row in met.items():
        for one in row:
            place = next((place for place in places.get(one.node, ()) if place.kind == one.kind == "route"), None)
            ports = (
                [port for port, cell in zip(place.ports, one.cells, strict=False) if cell in BLOCKED] if place else []
            )
            if place and ports:
                found.setdefault(rank, {})[one.node] = (msgspec.structs.replace(place, ports=tuple(ports)),)
    return found


def _answered(met: Mapping[int, Sequence[DialOutcome]], places: Mapping[int, Places]) -> set[Dialling]:
    """The ports that were reached."""
    return {
        (rank, one.node, port)
        for rank, row in met.items()
        for one in row
        for place in places[rank].get(one.node, ())
        for port, cell in zip(place.ports, one.cells, strict=False)
        if cell == Cell.OK.value
    }


def _mended(rank: int, one: DialOutcome, places: Places, answered: Container[Dialling]) -> DialOutcome:
    """With the silence of ports that answered later taken back: packets get lost on the way there, which the transfers
    will show, and a filter would have taken the later ones as well."""
    place = next((place for place in places.get(one.node, ()) if place.kind == one.kind == "route"), None)
    if place is None:
        return one
    cells = "".join(
        Cell.OK.value if cell == Cell.SILENT.value and (rank, one.node, port) in answered else cell
        for port, cell in zip(place.ports, one.cells, strict=False)
    )
    return msgspec.structs.replace(one, cells=cells)


def _rounds(whom: Mapping[int, Places]) -> float:
    """Of dialling, where that many places are dialled at a time."""
    return max((sum(map(len, places.values())) for places in whom.values()), default=0) / MAX_PARALLEL_DIALS


def _grown(before: Counted, after: Counted) -> Counted:
    def difference(earlier: int | None, later: int | None) -> int | None:
        return None if earlier is None or later is None else later - earlier

    return Counted(
        undelivered=difference(before.undelivered, after.undelivered),
        untransmitted=difference(before.untransmitted, after.untransmitted),
    )


KINDS = ("route", "nccl", "gloo")


def matrices(
    ranks: Sequence[int], places: Mapping[int, Sequence[ListenAddress]], met: Mapping[int, Sequence[DialOutcome]]
) -> tuple[Reach, ...]:
    """One `Reach` for each kind and each of its ports, rows and columns in the order of `ranks`.

    places: where each node listens; met: what each node met. A node that is missing in either has `Cell.NOT_TRIED`.
    """
    by_kind = {
        kind: [next((place for place in places.get(rank, ()) if place.kind == kind), None) for rank in ranks]
        for kind in KINDS
    }
    return tuple(reach for kind, there in by_kind.items() for reach in _of_kind(kind, there, ranks, met))


def _of_kind(
    kind: str, places: Sequence[ListenAddress | None], ranks: Sequence[int], met: Mapping[int, Sequence[DialOutcome]]
) -> Iterator[Reach]:
    cells = {(rank, cell.node): cell.cells for rank, row in met.items() for cell in row if cell.kind == kind}
    for nth in range(max((len(place.ports) for place in places if place), default=0)):
        ports = [place.ports[nth] if place and nth < len(place.ports) else 0 for place in places]
        yield Reach(
            kind=kind,
            addresses=tuple(one.address if one and port else "" for one, port in zip(places, ports, strict=True)),
            ports=tuple(ports),
            rows=tuple(
                "".join(
                    _cell(cells.get((here, there), ""), nth) if port and here != there else Cell.NOT_TRIED.value
                    for there, port in zip(ranks, ports, strict=True)
                )
                for here in ranks
            ),
        )


def _cell(cells: str, nth: int) -> str:
    """A guest may send what it likes."""
    found = cells[nth : nth + 1]
    return found if found in Cell._value2member_map_ else Cell.NOT_TRIED.value
