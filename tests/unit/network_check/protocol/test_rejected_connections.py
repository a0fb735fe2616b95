"""Whoever knocks at the hub and doesn't belong there: refused in time, recorded, and no harm to the nodes."""

import asyncio
import socket
import struct
from contextlib import AsyncExitStack

import msgspec
import pytest

from ddpdoctor.engine.examination import Verdict
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import PROTOCOL, Count, Counted, NodeVerdict, Waiting, encode
from ddpdoctor.network_check.protocol.rejected_connections import (
    MAX_KINDS_LISTED,
    RejectedConnections,
    describe_first_bytes,
)
from tests.support.hub_clients import HERE, QUICK, TOKEN, agents, client, hub, run

PART = NodeVerdict(results=(), verdict=Verdict.OK, exit_code=0, lines=())
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(120))
STORE_CLIENT = b"\x00" + struct.pack("<I", 0x3C85F7CE)

STRANGERS = {
    "HTTP": (b"GET /login HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request: GET /login HTTP/1.1"),
    "TLS": (CLIENT_HELLO, "a TLS handshake"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH client: SSH-2.0-OpenSSH_9.6"),
    "torch": (STORE_CLIENT, "a rank of a PyTorch job that looks for its TCPStore"),
    "random bytes": (bytes.fromhex("9c01f38a7700e1b2c3d4a5968778695a") + b"\n", "bytes that aren't ours: 9c 01 f3 8a"),
    "text": (b"help\r\n", "text that isn't ours: help"),
    "endless line": (b"{" + b"a" * 100_000, "JSON that isn't ours: {aaa"),
    "silent": (b"", "said nothing, and no end of it within 0.4 s"),
    "other JSON": (b'{"type": "join", "rank": 1}\n', "JSON that isn't ours"),
    "no object": (b"[1, 2]\n", "JSON that isn't ours: [1, 2]"),
    "wrong types": (b'{"type": "hello", "protocol": "one", "ddpdoctor": 1}\n', "JSON that isn't ours"),
    "half a Hello": (b'{"type": "hello", "protocol": %d, "ddpdoctor": "0.1.0"}\n' % PROTOCOL, "JSON that isn't ours"),
    "the hub's own part": (encode(Waiting(phase="join")), "JSON that isn't ours"),
    "deep nesting": (b'{"a":' + b"[" * 2000 + b"\n", "JSON that isn't ours"),
    "escapes for a terminal": (
        b"\x1b]0;pwned\x07 hello there, this is a text\n",
        "text that isn't ours: ?]0;pwned? hello",
    ),
}


async def verdict_for_two(one: Hub, tasks: list[asyncio.Task[NodeVerdict]]) -> None:
    """The nodes go through a whole test, as if nobody else were there."""
    await one.gather(5)
    assert [peer.joined for peer in one.peers.values()] == [True, True]
    answers = await one.ask(dict.fromkeys(range(2), Count()), 5)
    assert list(answers.values()) == [Counted(undelivered=7, untransmitted=None)] * 2
    await one.dismiss(dict.fromkeys(range(2), PART))
    assert await asyncio.gather(*tasks) == [PART, PART]


@pytest.mark.parametrize(("said", "words"), STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_and_recorded(said, words):
    async def go():
        async with hub() as one, agents(one, 1) as tasks, client(one.port) as stranger:
            stranger.writer.write(said)
            assert await asyncio.wait_for(stranger.ended(), 3) == b""
            assert len(one.strangers) == 1
            assert one.strangers[0].startswith(f"{HERE}: {words}")
            assert one.strangers[0].isprintable()
            await verdict_for_two(one, tasks)

    run(go())


def test_a_port_scanner_is_recorded_once_with_its_count():
    async def go():
        async with hub() as one, agents(one, 1) as tasks:
            for _ in range(5):
                async with client(one.port, "127.0.0.9", greeted=False):
                    pass
            while not one.strangers or "5 times" not in one.strangers[0]:
                await asyncio.sleep(0.01)
            assert one.strangers == (
                "127.0.0.9: connected and went away without a word (a port scan or a health check), 5 times",
            )
            await verdict_for_two(one, tasks)

    run(go())


def test_a_node_that_looked_in_and_went_away_is_no_stranger():
    strangers = RejectedConnections()
    strangers.note("10.0.0.2", describe_first_bytes(b""))
    assert strangers.listed({"10.0.0.2"}) == ()
    assert len(strangers.listed(set())) == 1


def test_one_byte_a_second_gets_as_long_as_no_byte():
    async def go():
        async with hub() as one, agents(one, 1) as tasks, client(one.port) as slow:
            began = asyncio.get_running_loop().time()
            dripping = asyncio.ensure_future(_drip(slow))
            await slow.ended()
            assert asyncio.get_running_loop().time() - began < 2
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            assert "text that isn't ours: GGG" in one.strangers[0]
            assert "no end of it within 0.4 s" in one.strangers[0]
            await verdict_for_two(one, tasks)

    run(go())


async def _drip(slow):
    while True:
        slow.writer.write(b"G")
        await asyncio.sleep(0.05)


def test_those_who_keep_their_places_make_room_and_the_nodes_come_in():
    """More silent connections than there are places, from one address; the nodes come from another one."""

    async def go():
        limits = msgspec.structs.replace(QUICK, unproved=8, hello=10.0, grace=0.05)
        async with hub(limits=limits) as one, AsyncExitStack() as stack:
            for _ in range(16):
                await stack.enter_async_context(client(one.port, "127.0.0.66", greeted=False))
            await asyncio.sleep(0.1)
            async with agents(one, 1) as tasks:
                await verdict_for_two(one, tasks)
            assert one.strangers[0].startswith("127.0.0.66: took a place and didn't say who it is")

    run(go())


def test_a_flood_from_one_address_leaves_the_nodes_of_others_alone():
    async def go():
        async with hub() as one, agents(one, 1) as tasks:
            flood = [asyncio.ensure_future(_noise(one.port)) for _ in range(200)]
            await verdict_for_two(one, tasks)
            await asyncio.gather(*flood)
            assert len(one.strangers) == 1

    run(go())


async def _noise(port):
    try:
        async with client(port, "127.0.0.99", greeted=False) as one:
            one.writer.write(b"GET / HTTP/1.0\r\n\r\n")
            await one.ended()
    except OSError:
        pass


def test_at_most_twenty_strangers_are_kept():
    strangers = RejectedConnections()
    for number in range(5000):
        strangers.note(f"10.0.{number // 256}.{number % 256}", "a TLS handshake")
    assert len(strangers.listed(())) == MAX_KINDS_LISTED + 1
    assert strangers.listed(())[-1] == f"and {5000 - MAX_KINDS_LISTED} more"


def test_of_an_endless_line_nothing_is_read_past_the_limit():
    async def go():
        limits = msgspec.structs.replace(QUICK, hello=30.0)
        async with hub(limits=limits) as one, client(one.port) as stranger:
            with pytest.raises(OSError):  # noqa: PT011 - reset, or a broken pipe
                await _shout(stranger)
            assert one.strangers == (f"{HERE}: text that isn't ours: {'x' * 57}...",)

    run(go())


async def _shout(stranger):
    while True:
        stranger.writer.write(b"x" * (1 << 20))
        await stranger.writer.drain()


def test_the_hub_listens_where_it_was_told_and_only_while_the_test_lasts():
    async def go():
        async with hub() as one:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.2", one.port)
            again = Hub([HERE], one.port, 2, TOKEN)
            with pytest.raises(OSError, match="in use"):
                await again.open()
            await one.close_port()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HERE, one.port)

    run(go())


def test_after_the_door_is_closed_the_store_can_have_the_port_though_guests_are_there():
    async def go():
        async with hub() as one, agents(one, 1) as tasks:
            await one.gather(5)
            await one.close_port()
            with socket.socket(socket.AF_INET6) as store:
                # As torch's store does it.
                store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                store.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                store.bind(("::", one.port))
                store.listen()
                answers = await one.ask(dict.fromkeys(range(2), Count()), 5)
                assert sorted(answers) == [0, 1]
            await one.dismiss(dict.fromkeys(range(2), PART))
            assert await asyncio.gather(*tasks) == [PART, PART]

    run(go())
