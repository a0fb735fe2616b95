"""A node's agent: orders that crash or take long, and a hub that stops, dies, hangs or talks nonsense."""

import asyncio
import time

import pytest

from ddpdoctor.network_check.protocol.agent import HubGoneError, HubStoppedError, LeftBehindError
from ddpdoctor.network_check.protocol.messages import (
    MAX_LINE_BYTES,
    PROTOCOL,
    Count,
    Greeting,
    NoVerdict,
    Open,
    Opened,
    OrderFailed,
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
    run,
    serving,
)


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
            assert answers == {1: OrderFailed(why="ZeroDivisionError: by ?[31mnothing")}
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
            await asyncio.gather(one.gather(5), answer_joined(one, odd, 1))
            one.announce("gloo")
            asking = asyncio.ensure_future(one.ask(dict.fromkeys((1, 2, 3), Open(ports=3)), 30, lambda answer: False))
            await odd.until(Open)
            odd.writer.close()
            answers = await asyncio.wait_for(asking, 3)
            assert answers == {
                2: OrderFailed(why="it was ended, since it had failed on another node"),
                3: Opened(places=()),
            }
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
            assert one.peers[1].lost == "lost during links: stopped by its user: Ctrl-C"
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
                with pytest.raises(HubStoppedError, match="stopped by its user on node 0"):
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
        writer.write(encode(Greeting(ddpdoctor="0.1.0", protocol=PROTOCOL, nonce="00")))
        await behaviour(reader, writer)
        writer.close()

    async def go():
        async with serving(false_hub) as port:
            began = time.monotonic()
            with pytest.raises((HubGoneError, HubStoppedError, LeftBehindError)) as raised:
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

    assert against(die) == "HubGoneError: the connection was closed by node 0: netcheck was stopped or killed there"
    assert against(reset).startswith("HubGoneError: the connection was")
    assert against(hang) == "LeftBehindError: nothing was heard of node 0 for 0.8 s: is it still running there?"
    assert "sent text that isn't ours: hello" in against(lambda *ends: say(*ends, b"hello\n"))
    assert "sent JSON that isn't ours" in against(lambda *ends: say(*ends, encode(PART)))
    assert "a line of more than" in against(lambda *ends: say(*ends, b"x" * (MAX_LINE_BYTES + 2)))
    assert against(lambda *ends: say(*ends, encode(NoVerdict(why="x\x1b")))) == "HubStoppedError: node 0 says: x?"


def test_an_agent_notices_in_the_middle_of_the_test_that_the_hub_is_dead():
    async def go():
        async with hub(2) as one, agents(one, 1) as tasks:
            await one.gather(5)
            for peer in one.peers.values():
                peer._writer.transport.abort()
            for task in tasks:
                with pytest.raises(HubGoneError):
                    await task

    run(go())
