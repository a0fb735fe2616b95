"""From what each node met when it dialled the others to matrices of the whole fleet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.fleet import Cell, Reach
from ddpdoctor.network_check.messages import Met, Place

KINDS = ("route", "nccl", "gloo")


def matrices(
    ranks: Sequence[int], places: Mapping[int, Sequence[Place]], met: Mapping[int, Sequence[Met]]
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
    kind: str, places: Sequence[Place | None], ranks: Sequence[int], met: Mapping[int, Sequence[Met]]
) -> Iterator[Reach]:
    cells = {(rank, one.node): one.cells for rank, row in met.items() for one in row if one.kind == kind}
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
