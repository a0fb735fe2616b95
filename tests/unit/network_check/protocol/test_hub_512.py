"""The hub with 512 nodes, strangers among them, in bounded memory."""

import asyncio

import msgspec

from ddpdoctor.engine.examination import Verdict
from ddpdoctor.network_check.protocol.handshake_server import ConnectionLimits
from ddpdoctor.network_check.protocol.messages import (
    Count,
    Counted,
    Dial,
    Dialled,
    DialOutcome,
    ListenAddress,
    NodeVerdict,
    NoVerdict,
    Peer,
    Ping,
    Waiting,
    encode,
)
from ddpdoctor.network_check.protocol.peer_connection import CLOCK_EXCHANGES
from tests.support.hub_clients import client, hub, run
from tests.support.own_memory import peak, start_over

NODES = 512
MOST_MEMORY = 160 << 20
"""Bytes; of both sides together, since the clients live in this process, too."""

FROM_HUB = msgspec.json.Decoder(Ping | Waiting | NoVerdict | Count | NodeVerdict)
PLACE = ListenAddress("route", "10.0.0.1", (40000, 50000, 60000))
ORDER = Dial(peers=tuple(Peer(node=node, host=f"n{node}", places=(PLACE,)) for node in range(NODES)), seconds=3)
DIAL = encode(ORDER)
PART = NodeVerdict(results=(), verdict=Verdict.OK, exit_code=0, lines=("all is well",))
ROWS = Dialled(met=tuple(DialOutcome(node=node, kind="route", cells="...") for node in range(NODES)))


async def simulated(port: int, own: str, rank: int) -> NodeVerdict:
    """A node that joins, carries out its orders and takes its part. Each has an address of its own, as nodes have."""
    async with client(port, f"127.1.{rank // 250}.{1 + rank % 250}") as one:
        await one.join(node_rank=rank, **({"nonce": own} if rank == 0 else {}))
        while True:
            line = await one.reader.readline()
            if line == DIAL:
                # Not taken apart: what 512 clients would hold of it is not the hub's.
                one.say(ROWS)
                continue
            message = FROM_HUB.decode(line)
            if isinstance(message, NodeVerdict):
                return message
            one.answer_ping(message)
            if isinstance(message, Count):
                one.say(Counted(undelivered=1, untransmitted=None))


async def stranger(port: int, number: int) -> None:
    async with client(port, f"127.2.0.{1 + number % 40}", greeted=False) as one:
        one.writer.write((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(99), b"")[number % 3])
        if number % 3:
            await one.ended()


def test_512_nodes_join_carry_out_orders_and_get_their_parts():
    async def go():
        limits = ConnectionLimits(hello=2.0)
        async with hub(NODES, limits=limits) as one:
            knocking = [asyncio.ensure_future(stranger(one.port, number)) for number in range(150)]
            nodes = [asyncio.ensure_future(simulated(one.port, one.own, rank)) for rank in range(NODES)]
            await one.gather(30)
            assert len(one.peers) == NODES
            assert all(peer.joined and peer._compared >= CLOCK_EXCHANGES for peer in one.peers.values())
            for order, answer in (
                (Count(), Counted(undelivered=1, untransmitted=None)),
                (ORDER, ROWS),
            ):
                one.announce("reach")
                answers = await one.ask(dict.fromkeys(range(NODES), order), 20)
                assert answers == dict.fromkeys(range(NODES), answer)
                del answers
            await one.dismiss(dict.fromkeys(range(NODES), PART))
            assert await asyncio.gather(*nodes) == [PART] * NODES
            await asyncio.gather(*knocking, return_exceptions=True)
            assert 20 <= len(one.strangers) <= 21

    before = start_over()
    run(go(), 60)
    assert peak() - before < MOST_MEMORY
