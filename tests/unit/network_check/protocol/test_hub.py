"""Who is let in at the hub, as which node, and what of versions and clocks that differ."""

import asyncio
import time

import msgspec
import pytest

from ddpdoctor.facts.fleet import MissingNode, RejectedNode
from ddpdoctor.network_check.protocol.agent import RejectedError
from ddpdoctor.network_check.protocol.hub import MAX_UNPROVED_REJECTED
from ddpdoctor.network_check.protocol.messages import (
    PROTOCOL,
    Greeting,
    HostFacts,
    Ping,
    Pong,
    Rejected,
    Welcome,
    encode,
)
from tests.support.hub_clients import (
    QUICK,
    TOKEN,
    agent,
    agents,
    answer_joined,
    client,
    finish,
    hub,
    manifest,
    run,
    serving,
)


def test_nodes_without_a_rank_get_the_free_ones_and_rank_0_is_node_0_s_own():
    async def go():
        async with hub(4) as one:
            tasks = []
            for expected, rank in ((2, 2), (1, None), (3, None)):
                tasks.append(asyncio.ensure_future(agent(one.port, rank)))
                while expected not in one.peers:
                    await asyncio.sleep(0.01)
            assert sorted(one.peers) == [1, 2, 3]
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
            assert one.absent() == (MissingNode(rank=1),)
        async with hub(2, hosts=("n1", "n2")) as one, agents(one) as tasks:
            gathering = asyncio.ensure_future(one.gather(10))
            await asyncio.sleep(0.1)
            assert one.absent() == (MissingNode(rank=1, host="n2"),)
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
            odd.say(HostFacts(snapshot=manifest()))
            await asyncio.gather(gathering, answer_joined(one, odd, 1))
            assert not one.peers[1].lost

    run(go(), 5)


def test_facts_that_never_come_are_not_waited_for_for_ever():
    async def go():
        impatient = msgspec.structs.replace(QUICK, facts=0.5)
        async with hub(2, limits=impatient) as one, agents(one), client(one.port) as odd:
            odd.hello()
            await odd.until(Welcome)
            answering = asyncio.ensure_future(odd.answer_pings())
            await one.gather(0.1)
            assert one.peers[1].lost == "lost during join: its facts had not come after 0.5 s"
            assert one.absent() == ()
            await answering

    run(go(), 5)


def test_whoever_is_there_is_told_who_is_waited_for(monkeypatch):
    monkeypatch.setattr("ddpdoctor.network_check.protocol.hub.MISSING_SECONDS", 0.1)

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
        async with hub(nnodes) as one, agents(one, 1) as tasks:
            while not all(rank in one.peers and one.peers[rank].joined for rank in (0, 1)):
                await asyncio.sleep(0.01)
            if gather:
                await one.gather(0.05)
            # Who dials and says nothing for long isn't waited for.
            async with client(one.port, "127.0.0.3") as odd:
                odd.hello(**hello)
                away = await odd.until(Rejected)
                assert await odd.ended() == b""
            await finish(one, *tasks)
            return away, one

    return run(go())


def test_the_second_with_a_rank_is_turned_away_and_told_who_has_it():
    away, one = turned_away(node_rank=1)
    assert away.code == "rank-taken"
    holder = one.peers[1].host
    assert (
        f"node rank 1 is taken by {holder} (127.0.0.1): give every node a --node-rank of its own, 0 to 1" in away.text
    )
    assert one.doubles == [RejectedNode(rank=1, host="odd", address="127.0.0.3", holder=holder, text=away.text)]


def test_rank_0_is_taken_before_node_0_s_own_agent_has_come():
    async def go():
        async with hub(2) as one, client(one.port) as odd:
            odd.hello(node_rank=0)
            away = await odd.until(Rejected)
            assert away.code == "rank-taken"
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
    assert one.doubles == [RejectedNode(rank=rank, host="odd", address="127.0.0.3", code=away.code, text=away.text)]


def test_another_number_of_nodes_is_turned_away_with_both():
    away, one = turned_away_nnodes()
    assert away.code == "nnodes"
    assert away.text == "--nnodes is 4 here and 3 on node 0: it must be the same on all nodes"
    assert [(two.code, two.host, two.rank, two.nnodes) for two in one.doubles] == [("nnodes", "odd", -1, 4)]


def turned_away_nnodes():
    async def go():
        async with hub(3) as one, client(one.port) as odd:
            odd.hello(nnodes=4)
            return await odd.until(Rejected), one

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
            with pytest.raises(RejectedError, match=words) as raised:
                await agent(one.port, 1, token=theirs)
            assert raised.value.code == "token"
            assert one.strangers[0].endswith("which doesn't know the token")
            assert one.peers == {}
            late = [asyncio.ensure_future(agent(one.port, token=ours, own=own)) for own in (one.own, "")]
            await one.gather(5)
            await finish(one, *late)

    run(go())


@pytest.mark.parametrize("token", ["", TOKEN])
@pytest.mark.parametrize(
    "said", [{"protocol": 99, "ddpdoctor": "6.6.6", "proof": "00"}, {"proof": "00"}], ids=["version", "proof"]
)
def test_a_stranger_who_says_that_he_is_a_node_ends_nobody_s_waiting(said, token):
    async def go():
        async with hub(2, token) as one, client(one.port, "127.0.0.9") as odd:
            zero = asyncio.ensure_future(agent(one.port, token=token, own=one.own))
            odd.hello(**said)
            await odd.until(Rejected)
            waits = asyncio.ensure_future(one.gather(10))
            await asyncio.sleep(3 * QUICK.second_thoughts)
            assert not waits.done()
            for number in range(2 * MAX_UNPROVED_REJECTED):
                async with client(one.port, "127.0.0.9") as more:
                    more.hello(**said, host=f"n{number}")
                    await more.until(Rejected)
            assert len(one.doubles) == MAX_UNPROVED_REJECTED, "there is room for real ones"
            late = asyncio.ensure_future(agent(one.port, 1, token=token))
            await waits
            assert sorted(one.peers) == [0, 1]
            await finish(one, zero, late)

    run(go())


def test_a_proof_that_was_overheard_is_of_no_use():
    async def go():
        async with hub(2) as one, client(one.port) as good, client(one.port) as thief:
            thief.greeting = good.greeting
            thief.hello()
            assert (await thief.until(Rejected)).code == "token"

    run(go())


def test_a_hub_that_doesn_t_know_the_token_is_not_trusted():
    """It lets everybody in, and can't show that it knows what they know."""

    async def false_hub(reader, writer):
        writer.write(encode(Greeting(ddpdoctor="0.1.0", protocol=PROTOCOL, nonce="00")))
        await reader.readline()
        writer.write(encode(Welcome(node_rank=1, nnodes=2, run="00", proof="00" * 32, wait=1.0)))
        assert await reader.read() == b"", "it got nothing of this host"
        writer.close()

    async def go():
        async with serving(false_hub) as port:
            with pytest.raises(RejectedError, match="doesn't know this job's token"):
                await agent(port, 1)

    run(go())


def test_another_protocol_is_turned_away_with_the_command():
    away, one = turned_away(protocol=PROTOCOL + 1, ddpdoctor="0.9.1")
    assert away.code == "version"
    words = f"ddpdoctor 0.9.1 here speaks protocol {PROTOCOL + 1}, ddpdoctor 0.1.0 on node 0 speaks {PROTOCOL}"
    assert words in away.text
    assert "pip install 'ddpdoctor==0.9.1'" in away.text
    away, one = turned_away(protocol=0, ddpdoctor="0.0.9")
    assert "pip install 'ddpdoctor==0.1.0'" in away.text
    assert [(two.code, two.host, two.proved) for two in one.doubles] == [("version", "odd", True)]


def test_a_hello_of_a_protocol_to_come_is_told_apart_from_a_stranger():
    async def go():
        async with hub() as one, client(one.port) as odd:
            odd.writer.write(b'{"type":"hello","protocol":7,"ddpdoctor":"3.0","host":"n9","identity":{"key":[1,2]}}\n')
            assert (await odd.until(Rejected)).code == "version"
            assert one.strangers[0].endswith("n9, which speaks protocol 7 and showed no proof")
            assert [(two.host, two.proved) for two in one.doubles] == [("n9", False)]

    run(go())


@pytest.mark.parametrize(
    ("protocol", "version", "words"), [(0, "0.0.9", "on node 0, pip"), (PROTOCOL + 1, "0.9", "-m pip install")]
)
def test_an_agent_knows_a_hub_of_another_protocol_by_itself(protocol, version, words):
    heard = []

    async def other_hub(reader, writer):
        writer.write(encode(Greeting(ddpdoctor=version, protocol=protocol, nonce="00")))
        heard.append(await reader.readline())
        writer.close()

    async def go():
        async with serving(other_hub) as port:
            with pytest.raises(RejectedError, match=words) as raised:
                await agent(port, 1)
            assert raised.value.code == "version"
            assert f"ddpdoctor {version} on node 0 speaks {protocol}" in str(raised.value)
            await asyncio.sleep(0.05)

    run(go())
    assert b'"type":"hello"' in heard[0], "the hub can tell its user, too"


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
            while not one.peers[1].joined:
                await asyncio.sleep(0.01)
            peer = one.peers[1]
            assert abs(peer.offset - 5.0) < peer.error + 1e-4
            assert 0 < peer.error < 0.01

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
            peer = one.peers[1]
            assert abs(peer.offset) < float("inf")
            msgspec.json.encode(peer.offset)

    run(go())


async def next_ping(one):
    while True:
        message = await one.hear()
        if isinstance(message, Ping):
            return message
