"""What becomes of nodes at the hub that die, hang or talk nonsense."""

import asyncio
import base64
import socket
import time
import zlib

import msgspec
import pytest

from ddpdoctor.network_check.protocol import hub as hub_module
from ddpdoctor.network_check.protocol.bounded_lines import MAX_UNPACKED_BYTES
from ddpdoctor.network_check.protocol.messages import (
    MAX_ANSWER_BYTES,
    MAX_FACTS_BYTES,
    MAX_LINE_BYTES,
    Count,
    Goodbye,
    HostFacts,
    NoVerdict,
    Opened,
    Ping,
    Pong,
    Waiting,
    Welcome,
    encode,
)
from tests.support.hub_clients import (
    PART,
    QUICK,
    SEVEN,
    agent,
    agents,
    answer_joined,
    client,
    finish,
    hub,
    manifest,
    run,
)


def lost(misdeed, words, *, phase="reach", told=True):
    """Node 2 does the deed while the others count; they go on, and of node 2 the hub says why it is lost."""

    async def go():
        async with hub(3) as one, agents(one, 1) as tasks, client(one.port, "127.0.0.3") as odd:
            await odd.join(node_rank=2)
            pongs = asyncio.ensure_future(_answer_until(one, odd))
            await one.gather(5)
            assert await pongs
            one.announce(phase)
            asking = asyncio.ensure_future(one.ask(dict.fromkeys(range(3), Count()), 1.0))
            await odd.until(Count)
            await misdeed(one, odd)
            assert await asking == {0: SEVEN, 1: SEVEN}
            assert one.peers[2].lost.startswith(f"lost during {phase}: {words}"), one.peers[2].lost
            assert one.peers[2].lost.isprintable()
            if told:
                assert words in (await odd.until(NoVerdict)).why
                odd.writer.close()
            await finish(one, *tasks)

    run(go())


async def _answer_until(one, odd):
    while not (2 in one.peers and one.peers[2].joined):
        odd.answer_ping(await odd.hear())
    return True


def test_a_node_whose_connection_ends_is_lost():
    async def close(one, odd):
        odd.writer.close()

    lost(close, "the connection was closed", told=False)


def test_a_node_that_is_reset_is_lost():
    async def reset(one, odd):
        odd.writer.transport.abort()

    lost(reset, "the connection was", told=False)


def test_a_node_that_answers_pings_and_nothing_else_is_lost_when_the_time_is_up():
    async def linger(one, odd):
        answering = asyncio.ensure_future(_answer_for(odd, 1.2))
        await answering

    lost(linger, "no answer within 1 s")


async def _answer_for(odd, seconds):
    """Answers pings until it is told that it is lost."""
    line = b""
    while b'"noverdict"' not in line:
        line = await odd.reader.readuntil(b"\n")
        odd.answer_ping(msgspec.json.decode(line, type=Ping | NoVerdict | Waiting))
    odd.reader.feed_data(line)


def test_a_node_that_says_nothing_more_is_lost_before_that():
    """As one that was suspended, or whose host was switched off."""

    async def silence(one, odd):
        await asyncio.sleep(0)

    lost(silence, "nothing was heard of it for 0.8 s")


def test_a_node_stopped_by_its_user_is_lost_at_once():
    async def leave(one, odd):
        odd.say(Goodbye(why="stopped by its user: Ctrl-C"))

    lost(leave, "stopped by its user: Ctrl-C")


NONSENSE = {
    "random bytes": (b"\x93\xff\x00\xfe\n", "it sent bytes that aren't ours: 93 ff 00 fe"),
    "not JSON": (b"{{{{\n", "it sent JSON that isn't ours: {{{{"),
    "a Part": (encode(PART), "it sent JSON that isn't ours"),
    "an order": (encode(Count()), "it sent JSON that isn't ours"),
    "a wrong type": (b'{"type":"counted","undelivered":"many","untransmitted":null}\n', "it sent JSON that isn't ours"),
    "another answer": (encode(Opened(places=())), "it answered Opened where Counted was expected"),
    "a pong for nothing": (encode(Pong(number=10**6, came=0, went=0)), "it answered a ping that was never sent"),
    "its facts again": (encode(HostFacts(snapshot=manifest())), "it sent its facts twice"),
    "deep nesting": (b'{"type":"orderfailed","why":' + b"[" * 60_000 + b"\n", "it sent JSON that isn't ours"),
    "invalid UTF-8": (b'{"type":"orderfailed","why":"\xff\xfe"}\n', "it sent JSON that isn't ours"),
    "an endless line": (b"x" * (MAX_LINE_BYTES + 2), f"a line of more than {MAX_ANSWER_BYTES} bytes"),
    "a farewell for the terminal": (
        b'{"type":"goodbye","why":"\\u001b[2J\\u001b]0;x\\u0007 gone"}\n',
        "?[2J?]0;x? gone",
    ),
}


@pytest.mark.parametrize(("line", "words"), NONSENSE.values(), ids=NONSENSE)
def test_a_node_that_talks_nonsense_is_lost(line, words):
    async def say(one, odd):
        odd.writer.write(line)

    # With megabytes of it unread, the hub's last words are lost in the reset.
    lost(say, words, told=len(line) < 1_000_000)


def test_two_answers_to_one_order_are_one_too_many():
    async def go():
        async with hub(2) as one, agents(one) as tasks, client(one.port) as odd:
            await odd.join()
            await asyncio.gather(one.gather(5), answer_joined(one, odd, 1))
            asking = asyncio.ensure_future(one.ask({1: Count()}, 5))
            await odd.until(Count)
            odd.writer.write(encode(SEVEN) * 2)
            assert await asking == {1: SEVEN}
            await odd.until(NoVerdict)
            assert "it answered Counted where nothing was asked" in one.peers[1].lost
            await finish(one, *tasks)

    run(go())


def bad_facts(content):
    async def go():
        async with hub(2) as one, client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            odd.writer.write(encode(HostFacts(snapshot=content)))
            await odd.until(NoVerdict)
            assert one.peers[1].facts is None
            assert [absent.rank for absent in one.absent()] == [0]
            return one.peers[1].lost

    return run(go())


def test_facts_that_unpack_to_a_thousand_times_their_size_are_not_unpacked():
    zeros = zlib.compressobj(9)
    first, second = (zeros.compress(bytes(1 << 20)) + zeros.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    bomb = first + 127 * second
    assert len(zlib.decompressobj().decompress(bomb, 1 << 25)) == 1 << 25
    assert len(bomb) < MAX_FACTS_BYTES * 3 // 4
    assert bad_facts(bomb) == f"lost during join: its facts unpack to more than {MAX_UNPACKED_BYTES >> 20} MiB"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "its facts are cut off"),
        (b"not deflated", "its facts can't be unpacked"),
        (manifest()[:-8], "its facts are cut off"),
        (zlib.compress(b"[1, 2, 3]"), "its facts: not a snapshot"),
        (zlib.compress(b"{}"), "its facts: not a snapshot"),
        (zlib.compress(b"[" * 1_000_000), "its facts"),
    ],
)
def test_facts_that_are_none_lose_their_node(content, words):
    assert bad_facts(content).startswith(f"lost during join: {words}")


def test_base64_that_is_none_loses_its_node():
    async def go():
        async with hub(2) as one, client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            odd.writer.write(b'{"type":"hostfacts","snapshot":"' + base64.b64encode(b"x" * 9)[:-1] + b'!"}\n')
            await odd.until(NoVerdict)
            assert "it sent JSON that isn't ours" in one.peers[1].lost

    run(go())


def test_a_node_may_come_again_after_its_first_try_died():
    async def go():
        async with hub(2) as one, agents(one) as tasks:
            async with client(one.port) as first:
                await first.join(node_rank=1)
                while 1 not in one.peers:
                    await asyncio.sleep(0.01)
            while not one.peers[1].lost:
                await asyncio.sleep(0.01)
            assert one.peers[1].lost.startswith("lost during join: the connection was")
            tasks.append(asyncio.ensure_future(agent(one.port, 1)))
            await one.gather(5)
            assert one.peers[1].lost == ""
            await finish(one, *tasks)

    run(go())


def test_a_node_whose_facts_take_long_is_kept_as_long_as_it_lives():
    async def go():
        async with hub(2) as one, agents(one) as tasks, client(one.port) as slow:
            slow.hello()
            await slow.until(Welcome)
            answering = asyncio.ensure_future(slow.answer_pings())
            await asyncio.sleep(QUICK.quiet + 0.4)
            assert not one.peers[1].lost
            assert not one.peers[1].joined
            slow.say(HostFacts(snapshot=manifest()))
            await one.gather(5)
            await one.dismiss({0: PART})
            assert await tasks[0] == PART
            await answering

    run(go())


def test_a_node_that_sends_bytes_and_never_a_line_is_lost():
    async def go():
        limits = msgspec.structs.replace(QUICK, line=0.5)
        async with hub(2, limits=limits) as one, client(one.port) as slow:
            slow.hello()
            await slow.until(Welcome)
            dripping = asyncio.ensure_future(_drip(slow))
            while not isinstance(await slow.hear(), NoVerdict):
                pass
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            assert one.peers[1].lost == "lost during join: it sent no whole line for 0.5 s"

    run(go())


async def _drip(slow):
    while True:
        slow.writer.write(b"x")
        await asyncio.sleep(0.05)


def test_who_was_halted_itself_blames_nobody_for_the_silence():
    """As a virtual machine that is moved, or Ctrl-Z and fg: the hub and an agent sleep, and go on."""

    async def go():
        async with hub(2) as one, agents(one, 1) as tasks:
            await one.gather(5)
            time.sleep(QUICK.quiet * 2)
            await asyncio.sleep(QUICK.ping * 3)
            await finish(one, *tasks)

    run(go())


@pytest.mark.parametrize("reads", [True, False])
def test_a_part_of_the_verdict_has_the_time_that_a_slow_link_takes(reads, monkeypatch):
    """As long as it takes something, and no longer."""
    monkeypatch.setattr(hub_module, "FAREWELL_SECONDS", 0.5)
    large = msgspec.structs.replace(PART, lines=("x" * 1_000_000,) * 3)

    async def go():
        async with hub(2) as one, agents(one) as tasks, client(one.port) as slow:
            await slow.join(node_rank=1)
            answering = asyncio.ensure_future(slow.answer_pings())
            await one.gather(5)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            # The kernel would take it all at once.
            one.peers[1]._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
            ending = asyncio.ensure_future(one.dismiss({0: PART, 1: large}))
            said = b""
            while reads and encode(large) not in said and not slow.reader.at_eof():
                said += await slow.reader.read(50_000)
                await asyncio.sleep(0.04)
            if reads:
                slow.writer.close()
            await asyncio.wait_for(ending, 5)
            assert await tasks[0] == PART
            return said

    assert (encode(large) in run(go())) == reads
