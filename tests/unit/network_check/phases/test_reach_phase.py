"""What the first dials met, and what those met that the kernels counted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddpdoctor.network_check.phases.reach_phase import ReachResult, who_reaches_whom
from ddpdoctor.network_check.protocol.messages import (
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
)
from tests.support.hub_clients import HERE, agents, hub, run

PORTS = (40000, 50000, 60000)


def found_out(met: Mapping[bool, str]) -> ReachResult:
    """With two nodes, of which node 0 meets these cells in its first dials (True) and while it is counted (False)."""

    async def carry_out(order: Order) -> Answer:
        if isinstance(order, Open):
            return Opened(places=(ListenAddress("route", HERE, PORTS),))
        if isinstance(order, Count):
            return Counted(undelivered=0, untransmitted=0)
        assert isinstance(order, Dial)
        (peer,) = order.peers
        cells = met[order.again] if peer.node == 1 else "..."
        return Dialled(met=(DialOutcome(node=peer.node, kind="route", cells=cells),))

    async def go() -> ReachResult:
        async with hub() as one, agents(one, 1, carry_out=carry_out):
            await one.gather(5)
            return await who_reaches_whom(one, [0, 1])

    return run(go())


@pytest.mark.parametrize(
    ("first", "counted", "row"),
    [
        ("...", "", "..."),
        ("..t", ".", "..."),
        ("t.t", "t.", "t.."),
        ("t.t", "tt", "t.t"),
        ("r.t", "..", "r.."),
    ],
)
def test_a_port_that_answers_later_was_not_filtered(first: str, counted: str, row: str) -> None:
    """Packets get lost. A port at which nobody listened at first is something else."""
    found = found_out({True: first, False: counted})
    assert [one.rows[0][1] for one in found.reach] == list(row)
    assert [one.rows[1][0] for one in found.reach] == [".", ".", "."]
    assert found.whole == (row == "...")
