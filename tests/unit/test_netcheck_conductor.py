"""How long the phases may take, whatever the links are like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import combinations

from ddpdoctor.facts.fleet import Fleet, Link
from ddpdoctor.netcheck.conductor import Conductor
from ddpdoctor.netcheck.hub import Hub
from ddpdoctor.netcheck.messages import Peer


class Sluggish(Conductor):
    """Whose every measurement takes its time and says something else than the one before."""

    looks = 0

    async def _measured(self, pairs: Sequence[tuple[int, int]], peers: Mapping[int, Peer]) -> list[Link]:
        await asyncio.sleep(0.05)
        self.looks += 1
        rate = 5.0 * 2**self.looks
        return [Link(a=a, b=b, round_trip=0.1, forth=rate, back=rate) for a, b in pairs]


def test_second_looks_end_however_many_links_stand_out() -> None:
    led = Sluggish(
        Hub(["127.0.0.1"], 0, 9, ""), wait=1, quick=True, master="n1", store_port=1, command=lambda rank: str(rank)
    )
    found = [Link(a=a, b=b, round_trip=0.1, forth=5.0, back=5.0) for a, b in combinations(range(9), 2)]
    asyncio.run(led._look_again(found, {}, Fleet(), time.monotonic() + 0.12))
    assert 1 <= led.looks <= 3
