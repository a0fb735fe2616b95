"""The gate before a listening socket: how many strangers it holds, and how many of one address it listens to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from ddpdoctor.network_check.protocol.connection_gate import (
    MAX_ADDRESSES,
    ConnectionGate,
    GateLimits,
    StrangerAllowance,
)
from tests.support.hub_clients import HERE, run

LIMITS = GateLimits(pending=4, pending_per_address=3, grace=0.1, burst=20, refill=5.0)


def test_who_comes_too_often_isn_t_even_listened_to() -> None:
    now = [0.0]
    allowance = StrangerAllowance(LIMITS, lambda: now[0])
    for _ in range(LIMITS.burst):
        assert not allowance.is_spent("10.0.0.9")
        allowance.spend("10.0.0.9")
    assert allowance.is_spent("10.0.0.9")
    assert not allowance.is_spent("10.0.0.8")
    now[0] += 1 / LIMITS.refill + 0.001
    assert not allowance.is_spent("10.0.0.9")
    allowance.spend("10.0.0.9")
    assert allowance.is_spent("10.0.0.9")


def test_an_allowance_without_refill_is_for_good() -> None:
    now = [0.0]
    allowance = StrangerAllowance(msgspec.structs.replace(LIMITS, refill=0.0), lambda: now[0])
    for _ in range(LIMITS.burst):
        allowance.spend("10.0.0.9")
    now[0] += 86400
    assert allowance.is_spent("10.0.0.9")


def test_of_thousands_of_addresses_the_latest_are_remembered() -> None:
    allowance = StrangerAllowance(LIMITS)
    for number in range(5000):
        allowance.spend(f"10.0.{number // 256}.{number % 256}")
    assert len(allowance._left) <= MAX_ADDRESSES == 1024


@contextlib.asynccontextmanager
async def gate(limits: GateLimits, evicted: list[str]) -> AsyncIterator[tuple[ConnectionGate, int]]:
    """A gate that admits whoever says "ours", and the port of its socket."""

    async def attend(connection: socket.socket, address: str) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            if await reader.readline() == b"ours\n":
                one.admit()
                writer.write(b"in\n")
                await reader.read()
        finally:
            writer.close()

    one = ConnectionGate(limits, attend, evicted.append)
    listening = socket.socket()
    listening.setblocking(False)
    listening.bind((HERE, 0))
    listening.listen(100)
    one.watch(listening)
    try:
        yield one, listening.getsockname()[1]
    finally:
        await one.close_all()


async def dial(port: int, source: str, words: bytes = b"") -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(source, 0))
    writer.write(words)
    KEPT.append(writer)
    return reader


KEPT: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    KEPT.clear()


def test_of_the_address_that_has_most_of_them_the_oldest_makes_room() -> None:
    async def go() -> tuple[set[str], bytes]:
        evicted: list[str] = []
        async with gate(LIMITS, evicted) as (_, port):
            await dial(port, "127.0.0.8")
            crowd = [await dial(port, "127.0.0.9") for _ in range(3)]
            answer = await (await dial(port, "127.0.0.7", b"ours\n")).readline()
            assert await crowd[0].read() == b""
            assert not crowd[2].at_eof()
            return set(evicted), answer

    assert run(go()) == ({"127.0.0.9"}, b"in\n")


def test_while_the_largest_crowd_is_young_the_oldest_of_another_goes() -> None:
    """Of one that is half as large at the least: nobody waits for the young ones to age."""

    async def go() -> list[str]:
        evicted: list[str] = []
        async with gate(msgspec.structs.replace(LIMITS, grace=0.3), evicted) as (_, port):
            for source in ("127.0.0.8", "127.0.0.8", "127.0.0.9", "127.0.0.9"):
                await dial(port, source)
            await asyncio.sleep(0.35)
            for _ in range(3):
                await dial(port, "127.0.0.10")
            await asyncio.sleep(0.15)
            return evicted

    assert run(go()) == ["127.0.0.8", "127.0.0.9", "127.0.0.8"]


def test_a_single_node_is_not_evicted_for_a_young_crowd() -> None:
    """However slow it is: room is made by the crowd, as soon as that is old enough."""

    async def go() -> list[str]:
        evicted: list[str] = []
        async with gate(msgspec.structs.replace(LIMITS, grace=0.3), evicted) as (_, port):
            await dial(port, "127.0.0.8")
            await asyncio.sleep(0.35)
            for _ in range(3):
                await dial(port, "127.0.0.9")
            await dial(port, "127.0.0.10")
            await asyncio.sleep(0.15)
            assert evicted == []
            await asyncio.sleep(0.3)
            return evicted

    assert run(go()) == ["127.0.0.9"]


def test_more_of_one_address_than_may_be_pending_are_turned_away() -> None:
    async def go() -> tuple[list[str], bytes]:
        evicted: list[str] = []
        async with gate(msgspec.structs.replace(LIMITS, pending=9), evicted) as (_, port):
            crowd = [await dial(port, "127.0.0.9") for _ in range(4)]
            return evicted, await crowd[3].read()

    assert run(go()) == ([], b"")


def test_without_a_limit_of_their_own_those_of_one_address_wait_for_room() -> None:
    """As the ranks that a launcher has started on one host."""

    async def go() -> list[bytes]:
        limits = msgspec.structs.replace(LIMITS, pending_per_address=None, burst=100)
        async with gate(limits, []) as (_, port):
            crowd = [await dial(port, "127.0.0.9", b"ours\n") for _ in range(30)]
            return [await reader.readline() for reader in crowd]

    assert run(go()) == [b"in\n"] * 30


def test_who_was_admitted_is_no_stranger_and_stays_when_the_gate_is_closed() -> None:
    async def go() -> tuple[bool, bool]:
        async with gate(msgspec.structs.replace(LIMITS, burst=1, refill=0.0), []) as (one, port):
            inside = await dial(port, "127.0.0.7", b"ours\n")
            assert await inside.readline() == b"in\n"
            outside = await dial(port, "127.0.0.9", b"not ours\n")
            assert await outside.read() == b""
            await one.close()
            assert not inside.at_eof()
            return one.allowance.is_spent("127.0.0.7"), one.allowance.is_spent("127.0.0.9")

    assert run(go()) == (False, True)
