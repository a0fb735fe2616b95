"""What the nodes that wait are told of those that are missing."""

import asyncio

import pytest

from ddpdoctor.network_check.protocol.messages import Waiting
from tests.support.hub_clients import agent, agents, hub, run


@pytest.mark.parametrize(
    ("nnodes", "missing"),
    [
        (4, ("node 1", "node 3 (n3)")),
        (8, ("node 1", "node 3 (n3)", "node 4", "node 5", "2 more")),
    ],
)
def test_who_is_missing_is_told_to_all_who_wait(nnodes: int, missing: tuple[str, ...]) -> None:
    heard: list[Waiting] = []

    async def go() -> None:
        async with hub(nnodes, hosts=("", "", "", "n3")) as one, agents(one) as tasks:
            tasks.append(asyncio.ensure_future(agent(one.port, 2, heard=heard.append)))
            await one.gather(2.5)

    run(go())
    assert (heard[-1].phase, heard[-1].waited_for, heard[-1].first) == ("join", missing, 1)
    # Not again and again: it stays the same.
    assert len(heard) <= 2
