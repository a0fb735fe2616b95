"""Made-up fleets and what the checks made of their nodes, for the tests of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpdoctor.base.findings import FAIL, Finding, Severity
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Check, Result, Skipped
from ddpdoctor.facts.fleet import Cell, Fleet, Link, MissingNode, Node, Passed, Phase, Reach
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot

PHASES = (
    Phase(name="join", passed=Passed.PASS, seconds=0.4),
    Phase(name="compare", passed=Passed.PASS, seconds=0.01),
    Phase(name="reach", passed=Passed.PASS, seconds=0.2),
    Phase(name="links", passed=Passed.PASS, seconds=0.5),
    Phase(name="gloo", passed=Passed.NOT_TESTED, reason="--quick"),
)


def page() -> None:
    """Something is wrong.

    ## What breaks
    Training.

    ## Why
    Because.

    ## Fix
    Mend it.
    """


def make_check(slug: str, severity: Severity = FAIL) -> Check:
    return Check(slug, severity, page)  # type: ignore[arg-type]


BROKEN = make_check("broken")
OTHER = make_check("other")


def node(rank: int, **fields: object) -> Node:
    usual = {
        "host": f"n{rank}",
        "address": f"10.9.{rank // 250}.{rank % 250 + 1}",
        "interface": "eth0",
        "mtu": 1500,
        "torch": "2.13.0",
        "nccl": None,
    }
    return Node(rank=rank, **(usual | fields))  # type: ignore[arg-type]


def make_fleet(
    count: int,
    *,
    cells: Mapping[tuple[int, int], Cell] | None = None,
    links: Sequence[Link] | None = None,
    absent: Sequence[MissingNode] = (),
    phases: Sequence[Phase] = PHASES,
    nodes: Sequence[Node] | None = None,
) -> Fleet:
    """All is well but for what is given. cells: (dialler, dialled) to what it met."""
    cells = cells or {}
    rows = tuple(
        "".join(
            Cell.NOT_TRIED.value if one == other else cells.get((one, other), Cell.OK).value for other in range(count)
        )
        for one in range(count)
    )
    if links is None:
        links = [Link(a=0, b=other, round_trip=0.0001, forth=9400.0, back=9300.0) for other in range(1, count)]
    nodes = tuple(nodes or map(node, range(count)))
    return Fleet(
        nodes=nodes,
        expected=count + len(absent),
        absent=tuple(absent),
        reach=(
            Reach(kind="route", addresses=tuple(node.address for node in nodes), ports=(40000,) * count, rows=rows),
        ),
        links=tuple(links),
        phases=tuple(phases),
    )


def examined(
    count: int,
    found: Mapping[int, Sequence[Finding]] | None = None,
    not_tested: Mapping[int, Skipped] | None = None,
    hosts: Sequence[str] | None = None,
) -> list[Examination]:
    """An examination a node: `found` by the check "broken", by place; `not_tested` of the check "other"."""
    found, not_tested = found or {}, not_tested or {}
    return [
        Examination(
            Snapshot(host=hosts[place] if hosts else f"n{place}"),
            Plan(1, ""),
            (
                Result(BROKEN, tuple(found.get(place, ()))),
                Result(OTHER, (), not_tested.get(place)),
            ),
        )
        for place in range(count)
    ]
