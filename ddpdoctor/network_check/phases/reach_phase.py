"""The phase in which every node dials every other one, and what has failed once more, under the eyes of the kernels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.facts.fleet import Cell, Reach
from ddpdoctor.network_check.analysis.fault_location import BLOCKED, COUNTED_DIALS
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.hub import Hub
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

Places = Mapping[int, Sequence[messages.ListenAddress]]
"""Where nodes listen, by rank."""

Cells = dict[tuple[int, int, str], str]
"""By who dialled, whom, and the kind of address: a `Cell` value for each of its ports, in their order."""

KINDS = ("route", "nccl", "gloo")
GOOD = (Cell.OK.value, Cell.NOT_TRIED.value)
EXCUSED = str.maketrans(dict.fromkeys((Cell.SILENT.value, Cell.RESET.value), Cell.NOT_TRIED.value))


class ReachResult(msgspec.Struct, frozen=True):
    """Outcome of the phase. `found`: by rank, fields of its `Node`. `untested`: who could not be tested and why, in words.
    `whole`: each node reaches each other one."""

    reach: tuple[Reach, ...] = ()
    found: Mapping[int, Mapping[str, object]] = {}
    untested: str = ""
    whole: bool = False


async def who_reaches_whom(hub: Hub, members: Sequence[int]) -> ReachResult:
    """Ask all nodes that are there. members: the ranks of those that joined, in the order of the matrices."""
    return await _Phase(hub, members).run()


class _Phase:
    def __init__(self, hub: Hub, members: Sequence[int]) -> None:
        self._hub = hub
        self._members = members
        self._places: dict[int, Sequence[messages.ListenAddress]] = {}
        self._troubles: dict[int, dict[str, None]] = {}
        self._full: set[int] = set()
        """Nodes that had visitors whom they could not let in."""

    @property
    def _there(self) -> list[int]:
        return [rank for rank in self._members if not self._hub.peers[rank].lost]

    async def run(self) -> ReachResult:
        ports = max(MIN_PORTS_PER_PEER, min(messages.MAX_PORTS, MAX_DIALLED_PORTS // len(self._there)))
        opened = await self._ask(dict.fromkeys(self._there, messages.Open(ports=ports)), DIAL_SECONDS)
        self._places = {rank: answer.places for rank, answer in opened.items() if isinstance(answer, messages.Opened)}
        cells = await self._dial(dict.fromkeys(self._there, self._places), TRY_SECONDS)
        failed = self._failed_routes(cells)
        packets = await self._dial_counted(failed, cells) if failed else {}
        reach = tuple(self._matrices(cells))
        # Whether NCCL and gloo would take other addresses in vain is for the checks to say: there may be no NCCL.
        routes = [matrix for matrix in reach if matrix.kind == "route"]
        untested = self._untested(routes)
        return ReachResult(
            reach=reach,
            found={
                rank: {"troubles": tuple(self._troubles.get(rank, ())), **packets.get(rank, {})}
                for rank in self._members
            },
            untested=untested,
            whole=not untested and len(self._there) == len(self._members) and not count_failures(routes),
        )

    async def _ask(self, orders: Mapping[int, messages.Order], seconds: float) -> dict[int, messages.Answer]:
        """Give the answers, and note what the nodes had trouble with."""
        answers = await self._hub.ask(orders, seconds)
        for rank, answer in answers.items():
            errors = (answer.why,) if isinstance(answer, messages.OrderFailed) else getattr(answer, "errors", ())
            if errors:
                self._troubles.setdefault(rank, {}).update(dict.fromkeys(errors))
        return answers

    async def _dial(self, whom: Mapping[int, Places], seconds: float, *, again: bool = True) -> Cells:
        """Have each node dial those places, and give what it met there. A node may say what it likes."""
        orders = {
            rank: messages.Dial(
                peers=tuple(
                    messages.Peer(node=node, host=self._hub.peers[node].host, places=tuple(there))
                    for node, there in places.items()
                    if node != rank
                ),
                seconds=seconds,
                at_once=MAX_PARALLEL_DIALS,
                again=again,
            )
            for rank, places in whom.items()
        }
        # Where nobody answers, each place takes two tries, and so many of them are dialled at a time.
        answers = await self._ask(orders, DIAL_SECONDS + 2 * seconds * _rounds(whom))
        return {
            (rank, met.node, met.kind): met.cells
            for rank, answer in answers.items()
            if isinstance(answer, messages.Dialled)
            for met in answer.met
            if met.node != rank and _of_kind(met.kind, whom[rank].get(met.node, ()))
        }

    # --- what has failed --------------------------------------------------------------------------------------------------

    def _failed_routes(self, cells: Cells) -> dict[int, dict[int, tuple[messages.ListenAddress]]]:
        """Each node with the ports on the way to the master that it dialled in vain."""
        failed: dict[int, dict[int, tuple[messages.ListenAddress]]] = {}
        for (rank, node, kind), met in cells.items():
            place = _of_kind(kind, self._places[node]) if kind == "route" else None
            ports = [port for port, cell in zip(place.ports, met, strict=False) if cell in BLOCKED] if place else []
            if place and ports:
                failed.setdefault(rank, {})[node] = (msgspec.structs.replace(place, ports=tuple(ports)),)
        return failed

    async def _dial_counted(
        self, failed: Mapping[int, Mapping[int, tuple[messages.ListenAddress]]], cells: Cells
    ) -> dict[int, dict[str, int | None]]:
        """Have what failed dialled again, so briefly that the number of packets is known, after an idle time as long. Give how
        the counters of each node's kernel grew, as fields of its `Node`.

        The silence of ports that answer now is taken back: packets get lost on the way there, which the transfers will show,
        and a filter would have taken these as well.
        """
        await asyncio.sleep(SETTLING_SECONDS)
        before = await self._count()
        await asyncio.sleep(COUNTED_DIALS * COUNTED_TRY_SECONDS * math.ceil(_rounds(failed)))
        between = await self._count()
        for _ in range(COUNTED_DIALS):
            for (rank, node, kind), met in (await self._dial(failed, COUNTED_TRY_SECONDS, again=False)).items():
                answered = [
                    port for port, cell in zip(failed[rank][node][0].ports, met, strict=False) if cell == Cell.OK.value
                ]
                place = _of_kind(kind, self._places[node])
                assert place is not None
                cells[rank, node, kind] = "".join(
                    Cell.OK.value if cell == Cell.SILENT.value and port in answered else cell
                    for port, cell in zip(place.ports, cells[rank, node, kind], strict=False)
                )
        after = await self._count()
        return {
            rank: {
                "undelivered": _difference(between[rank].undelivered, after[rank].undelivered),
                "untransmitted": _difference(between[rank].untransmitted, after[rank].untransmitted),
                "idle_undelivered": _difference(before[rank].undelivered, between[rank].undelivered) or 0,
                "idle_untransmitted": _difference(before[rank].untransmitted, between[rank].untransmitted) or 0,
            }
            for rank in after
            if rank in before and rank in between
        }

    async def _count(self) -> dict[int, messages.Counted]:
        answers = await self._ask(dict.fromkeys(self._there, messages.Count()), DIAL_SECONDS)
        counted = {rank: answer for rank, answer in answers.items() if isinstance(answer, messages.Counted)}
        self._full.update(rank for rank, answer in counted.items() if answer.errors)
        return counted

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

    def _matrices(self, cells: Cells) -> Iterator[Reach]:
        """One `Reach` for each kind and each of its ports, rows and columns in the order of the members."""
        for kind in KINDS:
            places = [_of_kind(kind, self._places.get(rank, ())) for rank in self._members]
            for nth in range(max((len(place.ports) for place in places if place), default=0)):
                ports = [place.ports[nth] if place and nth < len(place.ports) else 0 for place in places]
                yield Reach(
                    kind=kind,
                    addresses=tuple(
                        place.address if place and port else "" for place, port in zip(places, ports, strict=True)
                    ),
                    ports=tuple(ports),
                    rows=tuple(
                        "".join(
                            self._cell(cells.get((here, there, kind), ""), nth, there) if port else Cell.NOT_TRIED.value
                            for there, port in zip(self._members, ports, strict=True)
                        )
                        for here in self._members
                    ),
                )

    def _cell(self, met: str, nth: int, node: int) -> str:
        """One cell. No filter is to blame for the silence of a node that could not let its visitors in."""
        cell = met[nth : nth + 1]
        if cell not in Cell._value2member_map_:
            return Cell.NOT_TRIED.value
        return cell.translate(EXCUSED) if node in self._full else cell


def count_failures(reach: Iterable[Reach]) -> int:
    """Count the connections that failed."""
    return sum(cell not in GOOD for matrix in reach for row in matrix.rows for cell in row)


def _of_kind(kind: str, places: Iterable[messages.ListenAddress]) -> messages.ListenAddress | None:
    return next((place for place in places if place.kind == kind), None)


def _rounds(whom: Mapping[int, Places]) -> float:
    """Rounds of dialling, where that many places are dialled at a time."""
    return max((sum(map(len, places.values())) for places in whom.values()), default=0) / MAX_PARALLEL_DIALS


def _difference(earlier: int | None, later: int | None) -> int | None:
    return None if earlier is None or later is None else later - earlier
