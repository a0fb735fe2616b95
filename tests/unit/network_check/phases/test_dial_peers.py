"""Listeners and diallers on loopback addresses: who is met there, and what a cell says of it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.phases import peer_listeners as reaching
from ddpdoctor.network_check.phases.dial_peers import dial
from ddpdoctor.network_check.phases.ip_counters import count
from ddpdoctor.network_check.phases.peer_listeners import LARGE_MESSAGE_BYTES, Listeners
from ddpdoctor.network_check.protocol.connection_gate import ConnectionGate
from ddpdoctor.network_check.protocol.messages import Counted, Dial, Dialled, DialOutcome, ListenAddress, Opened, Peer
from ddpdoctor.network_check.protocol.peer_handshake import (
    MEASURE,
    REACH,
    NotAPeerError,
    PeerStream,
    accept_peer,
    dial_peer,
)
from ddpdoctor.network_check.worker import listening_places

RUN, OTHER_RUN = "0123456789abcdef" * 2, "f" * 32
RANGE = (32768, 60999)
PORTS = 3

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def no_measure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"measured\n")
    await writer.drain()


@asynccontextmanager
async def listening(
    node: int, address: str = "127.0.0.1", *, measuring: bool = True, **more: str
) -> AsyncIterator[Opened]:
    listeners = Listeners(no_measure)
    listeners.measuring = measuring
    try:
        yield await listeners.open({"route": address, **more}, RUN, node, RANGE, PORTS)
    finally:
        await listeners.close()


@asynccontextmanager
async def server(serve: Server) -> AsyncIterator[ListenAddress]:
    """Somebody else on a port."""
    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with made:
        yield ListenAddress("route", "127.0.0.1", (made.sockets[0].getsockname()[1],))


async def met(place: ListenAddress, node: int = 1, run: str = RUN, seconds: float = 0.3) -> DialOutcome:
    """What node 0 meets where node `node` is said to listen."""
    answer = await dial(Dial(peers=(Peer(node, "n", (place,)),), seconds=seconds), run, 0)
    return answer.met[0]


def test_a_peer_is_reached_on_ports_spread_over_the_range() -> None:
    async def go() -> tuple[Opened, DialOutcome]:
        async with listening(1, "127.0.0.2", nccl="127.0.0.3") as opened:
            return opened, await met(opened.places[0])

    opened, found = asyncio.run(go())
    assert [place.kind for place in opened.places] == ["route", "nccl"]
    assert [(port - 32768) * 3 // 28232 for port in opened.places[0].ports] == [0, 1, 2]
    assert len(opened.places[1].ports) == 1
    assert (found.cells, found.words) == ("...", "")


def test_an_address_that_isnt_here_is_said() -> None:
    async def go() -> Opened:
        async with listening(1, "192.0.2.1", gloo="127.0.0.1") as opened:
            return opened

    opened = asyncio.run(go())
    assert [place.kind for place in opened.places] == ["gloo"]
    assert opened.errors == ("192.0.2.1: Cannot assign requested address",)


@pytest.mark.parametrize("address", ["192.0.2.1", "fe80::1", "no address"])
def test_an_address_that_nccl_could_not_take_spoils_no_route(address: str) -> None:
    async def go() -> Opened:
        async with listening(1, nccl=address, gloo=address) as opened:
            return opened

    opened = asyncio.run(go())
    assert [place.kind for place in opened.places] == ["route"]
    assert not opened.errors


def test_a_link_local_address_is_nothing_to_dial() -> None:
    """As IPoIB has where nobody gave it another."""
    nccl = Nccl(predicted_interface="ib0", predicted_address="fe80::1", gloo_interface="eth1", gloo_address="10.0.1.1")
    found = listening_places(Snapshot(nccl=nccl), "10.0.0.1")
    assert found == {"route": "10.0.0.1", "gloo": "10.0.1.1"}


def test_reserved_ports_are_left_to_their_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Below those that the kernel hands out, of which any may be taken just now.
    reserved = tmp_path / "reserved"
    reserved.write_text("21000,21002-21009\n")
    monkeypatch.setattr(reaching, "RESERVED", reserved)

    async def go() -> Opened:
        listeners = Listeners(no_measure)
        try:
            return await listeners.open({"route": "127.0.0.1"}, RUN, 1, (21000, 21011), PORTS)
        finally:
            await listeners.close()

    ports = asyncio.run(go()).places[0].ports
    assert ports[0] == 21001
    assert ports[2] in (21010, 21011)


def test_nobody_listens_any_more() -> None:
    async def go() -> DialOutcome:
        async with listening(1) as opened:
            pass
        return await met(opened.places[0])

    assert asyncio.run(go()).cells == "rrr"


def test_a_node_that_is_another_one() -> None:
    """As 172.17.0.1 is another host everywhere, or oneself."""

    async def go() -> list[DialOutcome]:
        async with listening(2) as second, listening(0) as own:
            return [await met(second.places[0]), await met(own.places[0])]

    other, own = asyncio.run(go())
    assert (other.cells, other.words) == ("www", "node 2 answered")
    assert (own.cells, own.words) == ("www", "it is this node itself")


def test_nobody_is_let_in_without_the_runs_key() -> None:
    async def go() -> tuple[DialOutcome, PeerStream]:
        async with listening(1) as opened:
            stranger = await met(opened.places[0], run=OTHER_RUN)
            found = await dial_peer("127.0.0.1", opened.places[0].ports[0], RUN, 0, MEASURE, 1)
            assert await found.reader.readline() == b"measured\n"
            found.writer.close()
            return stranger, found

    stranger, found = asyncio.run(go())
    assert stranger.cells == "www"
    assert found.node == 1


def test_a_visit_that_was_overheard_opens_no_second_one() -> None:
    """Whoever listens on the wire says again what the visitor said: the listener has another nonce by then."""
    heard: list[bytes] = []

    async def listen_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, on = await asyncio.open_connection("127.0.0.1", port)
        heard.append(await reader.readline())
        on.write(heard[0])
        writer.write(await there.readline())
        heard.append(await reader.readline())
        on.write(heard[1])
        writer.write(await there.readline())
        for one in (writer, on):
            one.close()

    async def go() -> bytes:
        nonlocal port
        async with listening(1) as opened, server(listen_in) as wire:
            port = opened.places[0].ports[0]
            found = await dial_peer("127.0.0.1", wire.ports[0], RUN, 0, MEASURE, 1)
            assert await found.reader.readline() == b"measured\n"
            found.writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"".join(heard))
            await reader.readline()
            answer = await reader.read()
            writer.close()
            return answer

    port = 0
    assert asyncio.run(go()) == b""


def test_nobody_measures_before_it_is_time() -> None:
    async def go() -> bytes:
        async with listening(1, measuring=False) as opened:
            found = await dial_peer("127.0.0.1", opened.places[0].ports[0], RUN, 0, MEASURE, 1)
            answer = await found.reader.read()
            found.writer.close()
            return answer

    assert asyncio.run(go()) == b""


@pytest.mark.parametrize("address", ["no address", "x" * 64, "\u0661.0.0.1", "a\0b", "." * 64, "10.0.0.1%$(x)"])
def test_an_address_that_is_none_keeps_nobody_from_the_others(address: str) -> None:
    async def go() -> Dialled:
        async with listening(1) as opened:
            peers = (Peer(2, "n2", (ListenAddress("route", address, (9,)),)), Peer(1, "n1", opened.places))
            return await dial(Dial(peers=peers, seconds=1.0), RUN, 0)

    bad, good = sorted(asyncio.run(go()).met, key=lambda one: -one.node)
    assert set(good.cells) == {"."}
    assert bad.cells == "-"


async def says_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def says_too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x" * 200_000)
    await writer.drain()
    writer.close()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("serve", "cell"), [(says_http, "w"), (says_too_much, "w"), (says_nothing, "t"), (hangs_up, "x")]
)
def test_somebody_else_has_the_port(serve: Server, cell: str) -> None:
    async def go() -> DialOutcome:
        async with server(serve) as place:
            return await met(place)

    found = asyncio.run(go())
    assert found.cells == cell
    # Whoever is told of it learns nothing that it said.
    assert found.words
    assert "HTTP" not in found.words
    assert "xx" not in found.words


@pytest.mark.parametrize(("purpose", "seconds"), [(REACH, 5.0), (MEASURE, 0.0)])
def test_a_visitor_who_goes_on_talking_is_not_listened_to(
    purpose: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its large message, or where links have been measured for long enough."""
    monkeypatch.setattr(reaching, "MEASURING_SECONDS", seconds)

    async def go() -> bool:
        async with listening(1) as opened:
            found = await dial_peer("127.0.0.1", opened.places[0].ports[0], RUN, 0, purpose, 1)
            found.writer.write(bytes(LARGE_MESSAGE_BYTES))
            try:
                for _ in range(200):
                    found.writer.write(bytes(LARGE_MESSAGE_BYTES))
                    await found.writer.drain()
            except OSError:
                return True
            finally:
                found.writer.transport.abort()
            return False

    assert asyncio.run(go())


def test_many_who_measure_at_a_time_are_no_peers() -> None:
    async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"measured\n")
        await asyncio.sleep(60)

    async def go() -> list[bytes]:
        listeners = Listeners(never_ends)
        listeners.measuring = True
        try:
            opened = await listeners.open({"route": "127.0.0.1"}, RUN, 1, RANGE, PORTS)
            port = opened.places[0].ports[0]
            found = [await dial_peer("127.0.0.1", port, RUN, 0, MEASURE, 1) for _ in range(6)]
            said = [await one.reader.readline() for one in found[:4]] + [await one.reader.read() for one in found[4:]]
            for one in found:
                one.writer.transport.abort()
            return said
        finally:
            await listeners.close()

    assert asyncio.run(go()) == [b"measured\n"] * 4 + [b""] * 2


def test_the_runs_key_is_never_shown() -> None:
    heard = bytearray()

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readline())
        writer.close()

    async def go() -> None:
        async with server(listens) as place:
            await met(place)

    asyncio.run(go())
    assert heard.endswith(b"\n")
    assert RUN.encode() not in heard


def test_a_large_message_that_stalls() -> None:
    """The listener greets and then reads nothing: its small buffer takes a part, and then no more."""

    async def go() -> list[DialOutcome]:
        found = []
        for taken in (0, LARGE_MESSAGE_BYTES // 2):
            async with stalling(taken) as place:
                found.append(await met(place, seconds=0.5))
        return found

    at_once, half_way = asyncio.run(go())
    assert at_once.cells == "s"
    assert "of 65536 bytes acknowledged" in at_once.words
    assert half_way.cells == "s"


@asynccontextmanager
async def stalling(taken: int) -> AsyncIterator[ListenAddress]:
    """A node that reads so much of the large message, and no more, behind a receive buffer of some KiB."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    own.bind(("127.0.0.1", 0))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_peer(reader, writer, RUN, 1)
        if taken:
            await reader.readexactly(taken)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    made = await asyncio.start_server(serve, sock=own, limit=2048)
    try:
        yield ListenAddress("route", "127.0.0.1", (own.getsockname()[1],))
    finally:
        made.close()


def test_a_visit_is_a_strangers_where_the_answer_isnt_proved() -> None:
    async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"node":1,"nonce":"00","proof":"00"}\n')
        await writer.drain()
        await reader.read()
        writer.close()

    async def go() -> None:
        async with server(lies) as place:
            with pytest.raises(NotAPeerError, match="another run"):
                await dial_peer("127.0.0.1", place.ports[0], RUN, 0, REACH, 1)

    asyncio.run(go())


def test_more_visitors_than_are_let_in_at_a_time_wait_and_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "MAX_PENDING", 4)

    async def go() -> list[DialOutcome]:
        async with listening(1) as opened:
            return await asyncio.gather(*(met(opened.places[0], seconds=3) for _ in range(20)))

    assert {one.cells for one in asyncio.run(go())} == {"..."}


async def silent_ones(port: int, number: int, source: str) -> list[socket.socket]:
    """Connections to that port, from an address of their own, on which nobody says anything."""
    made = []
    for _ in range(number):
        one = socket.socket()
        one.setblocking(False)
        one.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
        made.append(one)
    return made


def test_a_flood_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many connections that wait in the kernel's queue, a few are taken at a time."""
    taken = []
    monkeypatch.setattr(ConnectionGate, "_is_refused", lambda self, address: taken.append(address) or True)

    async def go() -> int:
        async with listening(1) as opened:
            await asyncio.sleep(0)
            made = [socket.create_connection(("127.0.0.1", opened.places[0].ports[0])) for _ in range(100)]
            for _ in range(10):
                await asyncio.sleep(0)
            for one in made:
                one.close()
            return len(taken)

    assert 0 < asyncio.run(go()) < 20


def test_strangers_from_one_address_are_not_heard_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "MAX_STRANGERS_PER_ADDRESS", 10)

    async def go() -> tuple[bytes, DialOutcome]:
        async with listening(1) as opened:
            port = opened.places[0].ports[0]
            for _ in range(11):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.7", 0))
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
            # It says who it is, and gets no answer.
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.7", 0))
            writer.write(b'{"node":0,"purpose":"reach","nonce":"00"}\n')
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
            writer.close()
            return answer, await met(opened.places[0])

    answer, found = asyncio.run(go())
    assert answer == b""
    assert found.cells == "..."


@pytest.mark.parametrize("sources", [["127.0.0.7"], [f"127.0.0.{10 + last}" for last in range(6)]])
def test_silent_connections_keep_no_peer_out(sources: list[str]) -> None:
    """Many times as many as there is room for, from one address or from several."""

    async def go() -> DialOutcome:
        async with listening(1) as opened:
            place = opened.places[0]
            made = [one for source in sources for one in await silent_ones(place.ports[0], 400 // len(sources), source)]
            try:
                return await met(place, seconds=1.5)
            finally:
                for one in made:
                    one.close()

    assert asyncio.run(go()).cells == "..."


@contextmanager
def no_more_files() -> Iterator[None]:
    """As many files as this process has open by now are all that it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.dup(0)
    os.close(taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_dialler_without_files_blames_nobody() -> None:
    async def go() -> Dialled:
        async with listening(1) as opened:
            order = Dial(peers=(Peer(1, "n", opened.places),), seconds=0.3)
            with no_more_files():
                return await dial(order, RUN, 0)

    found = asyncio.run(go())
    assert found.met[0].cells == "---"
    assert found.errors == ("Too many open files",)


def test_a_listener_without_files_says_so() -> None:
    async def go() -> tuple[str, ...]:
        listeners = Listeners(no_measure)
        try:
            opened = await listeners.open({"route": "127.0.0.1"}, RUN, 1, RANGE, PORTS)
            visitor = socket.socket()
            visitor.setblocking(False)
            with no_more_files(), visitor:
                await asyncio.get_running_loop().sock_connect(visitor, ("127.0.0.1", opened.places[0].ports[0]))
                await asyncio.sleep(0.1)
            return listeners.errors
        finally:
            await listeners.close()

    assert asyncio.run(go()) == ("Too many open files",)


# --- the kernel's counters -----------------------------------------------------------------------------------------------

SNMP = (
    "Ip: Forwarding DefaultTTL InReceives ForwDatagrams InDelivers OutRequests ReasmReqds ReasmOKs OutTransmits\n"
    "Ip: 1 64 1000 100 850 500 30 10 590\n"
    "Icmp: InMsgs\nIcmp: 4\n"
)
SNMP6 = "Ip6InReceives   90\nIp6InDelivers   80\nIp6OutForwDatagrams 0\nIp6OutRequests 50\nIp6InMcastPkts 20\nIcmp6InMsgs 3\n"


def test_packets_that_went_nowhere(tmp_path: Path) -> None:
    (tmp_path / "snmp").write_text(SNMP)
    (tmp_path / "snmp6").write_text(SNMP6)
    # 1000 received: 850 delivered, 100 forwarded, 20 joined to others; 500 + 100 to be sent.
    assert count("10.0.0.1", tmp_path) == Counted(undelivered=30, untransmitted=10)
    # Multicasts that were delivered are not missing. Before Linux 6.8 nobody counts what is sent.
    assert count("fd00::1", tmp_path) == Counted(undelivered=10, untransmitted=None)


@pytest.mark.parametrize("text", [None, "", "Ip: a\n", "Ip: InReceives\nIp: x\n", "Ip: A B\nIp: 1\n"])
def test_counters_that_cant_be_read(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "snmp").write_text(text)
        (tmp_path / "snmp6").write_text("")
    nothing = Counted(undelivered=None, untransmitted=None)
    assert count("10.0.0.1", tmp_path) == nothing
    assert count("fd00::1", tmp_path) == nothing


def test_this_kernels_counters() -> None:
    found = count("127.0.0.1")
    assert isinstance(found.undelivered, int)
