"""Nodes at the hub: who is let in as which, and what becomes of those that die, hang or talk nonsense."""

import asyncio
import base64
import time
import zlib

import msgspec
import pytest

from ddpdoctor.examination import Verdict
from ddpdoctor.facts.fleet import Absent, Double
from ddpdoctor.netcheck.agent import HubGone, HubStopped, LeftBehindError, TurnedAwayError
from ddpdoctor.netcheck.hub import Hub
from ddpdoctor.netcheck.lines import MOST_UNPACKED
from ddpdoctor.netcheck.messages import (
    MOST,
    MOST_ANSWER,
    MOST_FACTS,
    Cannot,
    Count,
    Counted,
    Greeting,
    Leaving,
    Manifest,
    Open,
    Opened,
    Part,
    Ping,
    Pong,
    Stopped,
    TurnedAway,
    Waiting,
    Welcome,
    encode,
)
from tests.hub_company import HERE, QUICK, TOKEN, agent, agents, client, hub, manifest, run

PART = Part(results=(), verdict=Verdict.OK, exit_code=0, lines=("all is well",))
SEVEN = Counted(undelivered=7, untransmitted=None)


async def finish(one: Hub, *tasks: asyncio.Task[Part]) -> None:
    """The nodes of these tasks carry out an order and get their part, whatever happened to the others."""
    ranks = [rank for rank, guest in one.guests.items() if not guest.lost]
    assert await one.ask(dict.fromkeys(ranks, Count()), 5) == dict.fromkeys(ranks, SEVEN)
    await one.dismiss(dict.fromkeys(ranks, PART))
    assert await asyncio.gather(*tasks) == [PART] * len(tasks)


# --- the way in -------------------------------------------------------------------------------------------------------


def test_nodes_without_a_rank_get_the_free_ones_and_rank_0_is_node_0_s_own():
    async def go():
        async with hub(4) as one:
            tasks = []
            for expected, rank in ((2, 2), (1, None), (3, None)):
                tasks.append(asyncio.ensure_future(agent(one.port, rank)))
                while expected not in one.guests:
                    await asyncio.sleep(0.01)
            assert sorted(one.guests) == [1, 2, 3]
            tasks.append(asyncio.ensure_future(agent(one.port, own=one.own)))
            await one.gather(5)
            await finish(one, *tasks)

    run(go())


def test_gathering_ends_as_soon_as_all_have_come_or_with_the_time():
    async def go():
        async with hub(2) as one:
            began = time.monotonic()
            async with agents(one):
                await one.gather(0.3)
            assert 0.3 <= time.monotonic() - began < 2
            assert one.absent() == (Absent(rank=1),)
        async with hub(2, hosts=("n1", "n2")) as one, agents(one) as tasks:
            gathering = asyncio.ensure_future(one.gather(10))
            await asyncio.sleep(0.1)
            assert one.absent() == (Absent(rank=1, host="n2"),)
            tasks.append(asyncio.ensure_future(agent(one.port)))
            await gathering
            assert one.absent() == ()
            await finish(one, *tasks)

    run(go(), 5)


def test_whoever_still_looks_at_its_host_has_come_and_is_waited_for():
    async def go():
        async with hub(2) as one, agents(one), client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            gathering = asyncio.ensure_future(one.gather(0.1))
            await asyncio.wait([gathering], timeout=0.3)
            assert not gathering.done()
            assert one.absent() == ()
            odd.say(Manifest(snapshot=manifest()))
            await asyncio.gather(gathering, _answer_joined(one, odd, 1))
            assert not one.guests[1].lost

    run(go(), 5)


def test_facts_that_never_come_are_not_waited_for_for_ever():
    async def go():
        impatient = msgspec.structs.replace(QUICK, facts=0.5)
        async with hub(2, limits=impatient) as one, agents(one), client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            answering = asyncio.ensure_future(odd.answer_pings())
            await one.gather(0.1)
            assert one.guests[1].lost == "lost during join: its facts had not come after 0.5 s"
            assert one.absent() == ()
            await answering

    run(go(), 5)


def test_whoever_is_there_is_told_who_is_waited_for(monkeypatch):
    monkeypatch.setattr("ddpdoctor.netcheck.hub.MISSING_SECONDS", 0.1)

    async def go():
        heard = []
        async with hub(3, hosts=("n1", "n2", "n3")) as one, agents(one) as tasks:
            tasks.append(asyncio.ensure_future(agent(one.port, 1, heard=heard.append)))
            gathering = asyncio.ensure_future(one.gather(10))
            while not heard or not heard[-1].waited_for:
                await asyncio.sleep(0.01)
            assert (heard[-1].waited_for, heard[-1].first) == (("node 2 (n3)",), 2)
            async with client(one.port) as odd:
                odd.hello(node_rank=2, host="n3")
                await odd.until(Welcome)
                answering = asyncio.ensure_future(odd.answer_pings())
                while heard[-1].first is not None:
                    await asyncio.sleep(0.01)
                assert heard[-1].waited_for == ("the facts of n3",)
                gathering.cancel()
            await asyncio.gather(answering, gathering, return_exceptions=True)

    run(go(), 5)


def turned_away(nnodes=2, gather=False, **hello):
    """What one more node is told that comes with this Hello while node 0 and node 1 are there; and the hub's notes."""

    async def go():
        async with hub(nnodes) as one, agents(one, 1) as tasks, client(one.port, "127.0.0.3") as odd:
            while not all(rank in one.guests and one.guests[rank].joined for rank in (0, 1)):
                await asyncio.sleep(0.01)
            if gather:
                await one.gather(0.05)
            odd.hello(**hello)
            away = await odd.until(TurnedAway)
            assert await odd.ended() == b""
            await finish(one, *tasks)
            return away, one

    return run(go())


def test_the_second_with_a_rank_is_turned_away_and_told_who_has_it():
    away, one = turned_away(node_rank=1)
    assert away.code == "duplicate-rank"
    holder = one.guests[1].host
    assert (
        f"node rank 1 is taken by {holder} (127.0.0.1): give every node a --node-rank of its own, 0 to 1" in away.text
    )
    assert one.doubles == [Double(rank=1, host="odd", address="127.0.0.3", holder=holder, text=away.text)]


def test_rank_0_is_taken_before_node_0_s_own_agent_has_come():
    async def go():
        async with hub(2) as one, client(one.port) as odd:
            odd.hello(node_rank=0)
            away = await odd.until(TurnedAway)
            assert away.code == "duplicate-rank"
            assert one.doubles[0].rank == 0
            assert one.doubles[0].holder
            async with agents(one, 1) as tasks:
                await one.gather(5)
                await finish(one, *tasks)

    run(go())


@pytest.mark.parametrize("rank", [2, 99, -1, 2**40])
def test_a_rank_out_of_range_is_turned_away(rank):
    away, one = turned_away(node_rank=rank)
    assert away.code == "rank-out-of-range"
    assert away.text == f"node rank {rank} is out of range: 2 nodes have ranks 0 to 1"
    assert one.doubles == [Double(rank=rank, host="odd", address="127.0.0.3", code=away.code, text=away.text)]


def test_another_number_of_nodes_is_turned_away_with_both():
    away, one = turned_away_nnodes()
    assert away.code == "nnodes"
    assert away.text == "--nnodes is 4 here and 3 on node 0: it must be the same on all nodes"
    assert [(two.code, two.host, two.rank, two.nnodes) for two in one.doubles] == [("nnodes", "odd", -1, 4)]


def turned_away_nnodes():
    async def go():
        async with hub(3) as one, client(one.port) as odd:
            odd.hello(nnodes=4)
            return await odd.until(TurnedAway), one

    return run(go())


def test_one_too_many_is_turned_away():
    away, _ = turned_away()
    assert away.code == "full"


def test_who_comes_after_the_test_began_is_told_so():
    away, _ = turned_away(nnodes=3, gather=True, node_rank=2)
    assert away.code == "closed"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (TOKEN, "", "node 0 wants a token, and this node has none"),
        (TOKEN, "another", "this node's token is another one than node 0's"),
        ("", TOKEN, "node 0 runs without a token, and this node was given one"),
    ],
)
def test_without_the_token_nobody_comes_in(ours, theirs, words):
    async def go():
        async with hub(2, ours) as one:
            with pytest.raises(TurnedAwayError, match=words) as raised:
                await agent(one.port, 1, token=theirs)
            assert raised.value.code == "token"
            assert one.strangers[0].endswith("which doesn't know the token")
            assert one.guests == {}
            late = [asyncio.ensure_future(agent(one.port, token=ours, own=own)) for own in (one.own, "")]
            await one.gather(5)
            await finish(one, *late)

    run(go())


def test_a_proof_that_was_overheard_is_of_no_use():
    async def go():
        async with hub(2) as one, client(one.port) as good, client(one.port) as thief:
            thief.greeting = good.greeting
            thief.hello()
            assert (await thief.until(TurnedAway)).code == "token"

    run(go())


def test_a_hub_that_doesn_t_know_the_token_is_not_trusted():
    """It lets everybody in, and can't show that it knows what they know."""

    async def false_hub(reader, writer):
        writer.write(encode(Greeting(ddpdoctor="0.1.0", protocol=1, nonce="00")))
        await reader.readline()
        writer.write(encode(Welcome(node_rank=1, nnodes=2, run="00", proof="00" * 32, wait=1.0)))
        assert await reader.read() == b"", "it got nothing of this host"
        writer.close()

    async def go():
        async with serving(false_hub) as port:
            with pytest.raises(TurnedAwayError, match="doesn't know this job's token"):
                await agent(port, 1)

    run(go())


# --- versions ---------------------------------------------------------------------------------------------------------


def test_another_protocol_is_turned_away_with_the_command():
    away, one = turned_away(protocol=2, ddpdoctor="0.9.1")
    assert away.code == "version"
    assert "ddpdoctor 0.9.1 here speaks protocol 2, ddpdoctor 0.1.0 on node 0 speaks 1" in away.text
    assert "pip install 'ddpdoctor==0.9.1'" in away.text
    away, one = turned_away(protocol=0, ddpdoctor="0.0.9")
    assert "pip install 'ddpdoctor==0.1.0'" in away.text
    assert [(two.code, two.host) for two in one.doubles] == [("version", "odd")]


def test_a_hello_of_a_protocol_to_come_is_told_apart_from_a_stranger():
    async def go():
        async with hub() as one, client(one.port) as odd:
            odd.writer.write(b'{"type":"hello","protocol":7,"ddpdoctor":"3.0","host":"n9","identity":{"key":[1,2]}}\n')
            assert (await odd.until(TurnedAway)).code == "version"
            assert one.strangers == ()
            assert one.doubles[0].host == "n9"

    run(go())


@pytest.mark.parametrize(
    ("protocol", "version", "words"), [(0, "0.0.9", "on node 0, pip"), (2, "0.9", "-m pip install")]
)
def test_an_agent_knows_a_hub_of_another_protocol_by_itself(protocol, version, words):
    heard = []

    async def other_hub(reader, writer):
        writer.write(encode(Greeting(ddpdoctor=version, protocol=protocol, nonce="00")))
        heard.append(await reader.readline())
        writer.close()

    async def go():
        async with serving(other_hub) as port:
            with pytest.raises(TurnedAwayError, match=words) as raised:
                await agent(port, 1)
            assert raised.value.code == "version"
            assert f"ddpdoctor {version} on node 0 speaks {protocol}" in str(raised.value)
            await asyncio.sleep(0.05)

    run(go())
    assert b'"type":"hello"' in heard[0], "the hub can tell its user, too"


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_the_offset_is_that_of_the_shortest_round_trip():
    async def go():
        async with hub(2) as one, client(one.port) as ahead:
            await ahead.join()
            for number in range(8):
                ping = await ahead.hear()
                while not isinstance(ping, Ping):
                    ping = await ahead.hear()
                came = time.time() + 5.0
                if number != 3:
                    # Slow on the way back alone, which makes the clock look wrong by half of that.
                    await asyncio.sleep(0.02)
                    ahead.say(Pong(number=ping.number, came=came, went=came))
                else:
                    ahead.say(Pong(number=ping.number, came=came, went=time.time() + 5.0))
            while not one.guests[1].joined:
                await asyncio.sleep(0.01)
            guest = one.guests[1]
            assert abs(guest.offset - 5.0) < guest.error + 1e-4
            assert 0 < guest.error < 0.01

    run(go())


@pytest.mark.parametrize("stamp", [1e300, -1e300, 0.0])
def test_absurd_stamps_do_no_harm(stamp):
    async def go():
        async with hub(2) as one, client(one.port) as liar:
            await liar.join()
            for _ in range(8):
                ping = await next_ping(liar)
                liar.say(Pong(number=ping.number, came=stamp, went=-stamp))
            await asyncio.sleep(0.1)
            guest = one.guests[1]
            assert abs(guest.offset) < float("inf")
            msgspec.json.encode(guest.offset)

    run(go())


async def next_ping(one):
    while True:
        message = await one.hear()
        if isinstance(message, Ping):
            return message


# --- guests that go, hang or talk nonsense ---------------------------------------------------------------------------


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
            assert one.guests[2].lost.startswith(f"lost during {phase}: {words}"), one.guests[2].lost
            assert one.guests[2].lost.isprintable()
            if told:
                assert words in (await odd.until(Stopped)).why
                odd.writer.close()
            await finish(one, *tasks)

    run(go())


async def _answer_until(one, odd):
    while not (2 in one.guests and one.guests[2].joined):
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
    while b'"stopped"' not in line:
        line = await odd.reader.readuntil(b"\n")
        odd.answer_ping(msgspec.json.decode(line, type=Ping | Stopped | Waiting))
    odd.reader.feed_data(line)


def test_a_node_that_says_nothing_more_is_lost_before_that():
    """As one that was suspended, or whose host was switched off."""

    async def silence(one, odd):
        await asyncio.sleep(0)

    lost(silence, "nothing was heard of it for 0.8 s")


def test_a_node_stopped_by_its_user_is_lost_at_once():
    async def leave(one, odd):
        odd.say(Leaving(why="stopped by its user: Ctrl-C"))

    lost(leave, "stopped by its user: Ctrl-C")


NONSENSE = {
    "random bytes": (b"\x93\xff\x00\xfe\n", "it sent bytes that aren't ours: 93 ff 00 fe"),
    "not JSON": (b"{{{{\n", "it sent JSON that isn't ours: {{{{"),
    "a Part": (encode(PART), "it sent JSON that isn't ours"),
    "an order": (encode(Count()), "it sent JSON that isn't ours"),
    "a wrong type": (b'{"type":"counted","undelivered":"many","untransmitted":null}\n', "it sent JSON that isn't ours"),
    "another answer": (encode(Opened(places=())), "it answered Opened where Counted was expected"),
    "a pong for nothing": (encode(Pong(number=10**6, came=0, went=0)), "it answered a ping that was never sent"),
    "its facts again": (encode(Manifest(snapshot=manifest())), "it sent its facts twice"),
    "deep nesting": (b'{"type":"cannot","why":' + b"[" * 60_000 + b"\n", "it sent JSON that isn't ours"),
    "invalid UTF-8": (b'{"type":"cannot","why":"\xff\xfe"}\n', "it sent JSON that isn't ours"),
    "an endless line": (b"x" * (MOST + 2), f"a line of more than {MOST_ANSWER} bytes"),
    "a farewell for the terminal": (
        b'{"type":"leaving","why":"\\u001b[2J\\u001b]0;x\\u0007 gone"}\n',
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
            await asyncio.gather(one.gather(5), _answer_joined(one, odd, 1))
            asking = asyncio.ensure_future(one.ask({1: Count()}, 5))
            await odd.until(Count)
            odd.writer.write(encode(SEVEN) * 2)
            assert await asking == {1: SEVEN}
            await odd.until(Stopped)
            assert "it answered Counted where nothing was asked" in one.guests[1].lost
            await finish(one, *tasks)

    run(go())


async def _answer_joined(one, odd, rank):
    while not (rank in one.guests and one.guests[rank].joined):
        odd.answer_ping(await odd.hear())


def bad_facts(content):
    async def go():
        async with hub(2) as one, client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            odd.writer.write(encode(Manifest(snapshot=content)))
            await odd.until(Stopped)
            assert one.guests[1].facts is None
            assert [absent.rank for absent in one.absent()] == [0]
            return one.guests[1].lost

    return run(go())


def test_facts_that_unpack_to_a_thousand_times_their_size_are_not_unpacked():
    zeros = zlib.compressobj(9)
    first, second = (zeros.compress(bytes(1 << 20)) + zeros.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    bomb = first + 127 * second
    assert len(zlib.decompressobj().decompress(bomb, 1 << 25)) == 1 << 25
    assert len(bomb) < MOST_FACTS * 3 // 4
    assert bad_facts(bomb) == f"lost during join: its facts unpack to more than {MOST_UNPACKED >> 20} MiB"


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
            odd.writer.write(b'{"type":"manifest","snapshot":"' + base64.b64encode(b"x" * 9)[:-1] + b'!"}\n')
            await odd.until(Stopped)
            assert "it sent JSON that isn't ours" in one.guests[1].lost

    run(go())


def test_a_node_may_come_again_after_its_first_try_died():
    async def go():
        async with hub(2) as one, agents(one) as tasks:
            async with client(one.port) as first:
                await first.join(node_rank=1)
                while 1 not in one.guests:
                    await asyncio.sleep(0.01)
            while not one.guests[1].lost:
                await asyncio.sleep(0.01)
            assert one.guests[1].lost.startswith("lost during join: the connection was")
            tasks.append(asyncio.ensure_future(agent(one.port, 1)))
            await one.gather(5)
            assert one.guests[1].lost == ""
            await finish(one, *tasks)

    run(go())


def test_a_node_whose_facts_take_long_is_kept_as_long_as_it_lives():
    async def go():
        async with hub(2) as one, agents(one) as tasks, client(one.port) as slow:
            slow.hello()
            await slow.until(Welcome)
            answering = asyncio.ensure_future(slow.answer_pings())
            await asyncio.sleep(QUICK.quiet + 0.4)
            assert not one.guests[1].lost
            assert not one.guests[1].joined
            slow.say(Manifest(snapshot=manifest()))
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
            while not isinstance(await slow.hear(), Stopped):
                pass
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            assert one.guests[1].lost == "lost during join: it sent no whole line for 0.5 s"

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


# --- agents -----------------------------------------------------------------------------------------------------------


def serving(handler):
    """A server on loopback that isn't the hub."""
    return _Serving(handler)


class _Serving:
    def __init__(self, handler):
        self.handler = handler

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.handler, HERE, 0)
        return self.server.sockets[0].getsockname()[1]

    async def __aexit__(self, *error):
        self.server.close()


def test_a_crash_in_an_order_is_its_answer_and_the_agent_lives_on():
    async def carry_out(order):
        if not done:
            done.append(order)
            raise ZeroDivisionError("by \x1b[31mnothing")
        return SEVEN

    done = []

    async def go():
        async with hub(2) as one, agents(one) as tasks:
            tasks.append(asyncio.ensure_future(agent(one.port, carry_out=carry_out)))
            await one.gather(5)
            answers = await one.ask({1: Count()}, 5)
            assert answers == {1: Cannot(why="ZeroDivisionError: by ?[31mnothing")}
            await finish(one, *tasks)

    run(go())


def test_an_agent_shows_that_it_lives_while_it_carries_out_an_order():
    async def slow(order):
        await asyncio.sleep(QUICK.quiet + 0.5)
        return SEVEN

    async def go():
        async with hub(2) as one, agents(one) as tasks:
            tasks.append(asyncio.ensure_future(agent(one.port, carry_out=slow)))
            await one.gather(5)
            assert await one.ask({1: Count()}, 5) == {1: SEVEN}
            await one.dismiss({0: PART, 1: PART})
            assert await asyncio.gather(*tasks) == [PART, PART]

    run(go())


def test_what_needs_all_nodes_is_ended_when_one_is_lost():
    """The answer in time counts; the others end what they do, and are still there afterwards."""

    async def endless(order):
        if isinstance(order, Open):
            await asyncio.sleep(60)
        return SEVEN

    async def quick(order):
        return Opened(places=()) if isinstance(order, Open) else SEVEN

    async def go():
        async with hub(4) as one, agents(one) as tasks, client(one.port) as odd:
            await odd.join(node_rank=1)
            tasks.append(asyncio.ensure_future(agent(one.port, 2, carry_out=endless)))
            tasks.append(asyncio.ensure_future(agent(one.port, 3, carry_out=quick)))
            await asyncio.gather(one.gather(5), _answer_joined(one, odd, 1))
            one.announce("gloo")
            asking = asyncio.ensure_future(one.ask(dict.fromkeys((1, 2, 3), Open(ports=3)), 30, lambda answer: False))
            await odd.until(Open)
            odd.writer.close()
            answers = await asyncio.wait_for(asking, 3)
            assert answers == {2: Cannot(why="it was ended, since it had failed on another node"), 3: Opened(places=())}
            await finish(one, *tasks)

    run(go())


def test_an_agent_that_is_stopped_tells_the_hub():
    async def go():
        async with hub(2) as one, agents(one) as tasks:
            stopped = asyncio.ensure_future(agent(one.port, carry_out=lambda order: asyncio.sleep(60)))
            await one.gather(5)
            one.announce("links")
            asking = asyncio.ensure_future(one.ask({0: Count(), 1: Count()}, 5))
            await asyncio.sleep(0.1)
            stopped.cancel()
            assert await asking == {0: SEVEN}
            assert one.guests[1].lost == "lost during links: stopped by its user: Ctrl-C"
            with pytest.raises(asyncio.CancelledError):
                await stopped
            await finish(one, *tasks)

    run(go())


def test_agents_are_told_when_the_hub_stops_and_where_the_test_is():
    async def go():
        heard = []
        async with hub(2) as one:
            tasks = [asyncio.ensure_future(agent(one.port, own=own, heard=heard.append)) for own in (one.own, "")]
            await one.gather(5)
            one.announce("reach", ("n2",))
            await one.stop("stopped by its user on node 0")
            for task in tasks:
                with pytest.raises(HubStopped, match="stopped by its user on node 0"):
                    await task
        assert [waiting.phase for waiting in heard].count("reach") == 2
        assert heard[-1].waited_for == ("n2",)

    run(go())


def test_a_node_without_a_part_hears_that_there_is_none():
    async def go():
        async with hub(2) as one, agents(one, 1) as tasks:
            await one.gather(5)
            await one.dismiss({0: PART})
            assert await tasks[0] == PART
            with pytest.raises(LeftBehindError, match="went on without this node"):
                await tasks[1]

    run(go())


def against(behaviour):
    """The error of an agent whose hub does that once it has let it in."""

    async def false_hub(reader, writer):
        writer.write(encode(Greeting(ddpdoctor="0.1.0", protocol=1, nonce="00")))
        await behaviour(reader, writer)
        writer.close()

    async def go():
        async with serving(false_hub) as port:
            began = time.monotonic()
            with pytest.raises((HubGone, HubStopped, LeftBehindError)) as raised:
                await agent(port, 1)
            assert time.monotonic() - began < QUICK.quiet + 2
            return f"{type(raised.value).__name__}: {raised.value}"

    return run(go())


def test_an_agent_notices_a_hub_that_dies_hangs_or_talks_nonsense():
    async def die(reader, writer):
        await reader.readline()

    async def reset(reader, writer):
        await reader.readline()
        writer.transport.abort()

    async def hang(reader, writer):
        await reader.read()

    async def say(reader, writer, what):
        await reader.readline()
        writer.write(what)
        await reader.read()

    assert against(die) == "HubGone: the connection was closed by node 0: netcheck was stopped or killed there"
    assert against(reset).startswith("HubGone: the connection was")
    assert against(hang) == "LeftBehindError: nothing was heard of node 0 for 0.8 s: is it still running there?"
    assert "sent text that isn't ours: hello" in against(lambda *ends: say(*ends, b"hello\n"))
    assert "sent JSON that isn't ours" in against(lambda *ends: say(*ends, encode(PART)))
    assert "a line of more than" in against(lambda *ends: say(*ends, b"x" * (MOST + 2)))
    assert against(lambda *ends: say(*ends, encode(Stopped(why="x\x1b")))) == "HubStopped: node 0 says: x?"


def test_an_agent_notices_in_the_middle_of_the_test_that_the_hub_is_dead():
    async def go():
        async with hub(2) as one, agents(one, 1) as tasks:
            await one.gather(5)
            for guest in one.guests.values():
                guest._writer.transport.abort()
            for task in tasks:
                with pytest.raises(HubGone):
                    await task

    run(go())
