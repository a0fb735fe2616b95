"""How long the phases may take, whatever the links are like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import combinations

import pytest

from ddpdoctor.facts.fleet import Fleet, Link, Node, Reach, TriedCollective
from ddpdoctor.network_check.node_session import NodeSession
from ddpdoctor.network_check.phases.links_phase import LinksPhase
from ddpdoctor.network_check.phases.network_phases import NetworkCoordinator
from ddpdoctor.network_check.protocol.hub import Hub
from tests.support.fixture_hosts import healthy_facts, to_snapshot


class Sluggish(LinksPhase):
    """Whose every measurement takes its time and says something else than the one before."""

    looks = 0

    async def measure(self, pairs: Sequence[tuple[int, int]]) -> list[Link]:
        await asyncio.sleep(0.05)
        self.looks += 1
        rate = 5.0 * 2**self.looks
        return [Link(a=a, b=b, round_trip=0.1, forth=rate, back=rate) for a, b in pairs]


def test_second_looks_end_however_many_links_stand_out() -> None:
    led = Sluggish(NodeSession(Hub(["127.0.0.1"], 0, 9, "")), ())
    found = [Link(a=a, b=b, round_trip=0.1, forth=5.0, back=5.0) for a, b in combinations(range(9), 2)]
    asyncio.run(led.measure_again(found, Fleet(), time.monotonic() + 0.12))
    assert 1 <= led.looks <= 3


class OnGpus(NetworkCoordinator):
    """Of two GPU nodes, whose collectives always pass."""

    ran: tuple[str, ...] = ()
    nccls = ("2.28.9", "2.28.9")

    def why_pointless(self) -> str:
        return ""

    def present_nodes(self) -> list[Node]:
        return [
            Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{rank}", torch="2.13.0+cu130", nccl=version)
            for rank, version in enumerate(self.nccls)
        ]

    async def run_collective(self, backend: str) -> tuple[TriedCollective, ...]:
        self.ran += (backend,)
        return (TriedCollective(node=0, backend=backend, stage="end", ok=True),)


UNREACHED = Reach(kind="nccl", addresses=("172.17.0.1", "172.17.0.1"), ports=(1, 1), rows=("-r", "r-"))


@pytest.mark.parametrize(
    ("nccls", "reach", "reason"),
    [
        (("2.28.9", "2.28.9"), (), ""),
        (("2.28.9", "2.27.7"), (), "NCCL differs: 2.28.9 on n0; 2.27.7 on n1"),
        (("2.28.9", "2.28.9"), (UNREACHED,), "NCCL's addresses don't reach each other (2 connections fail)"),
    ],
)
def test_nccl_is_not_waited_for_where_it_is_known_to_fail(
    nccls: tuple[str, str], reach: tuple[Reach, ...], reason: str
) -> None:
    session = NodeSession(Hub(["127.0.0.1"], 0, 2, ""))
    led = OnGpus(session, quick=False, master="n0", store_port=1)
    led.nccls = nccls
    gpus = to_snapshot(healthy_facts("h100x8-bare-metal"))
    good = [Link(a=0, b=1, round_trip=0.0001, forth=9000.0, back=9000.0)]
    session.snapshots = {0: gpus, 1: gpus}
    asyncio.run(led.run_collectives(reach, good))
    assert led.ran == (("gloo",) if reason else ("gloo", "nccl"))
    assert [phase.reason for phase in session.phases] == ([reason] if reason else [])
