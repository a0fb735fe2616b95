"""Company for a hub in tests: real agents, and clients that do as they like. Everything stays on loopback."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.job import NetcheckJob
from ddpdoctor.network_check.protocol.agent import take_part
from ddpdoctor.network_check.protocol.handshake_server import ConnectionLimits
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import (
    PROTOCOL,
    Abort,
    Answer,
    Count,
    Counted,
    Greeting,
    Hello,
    HostFacts,
    Message,
    NodeVerdict,
    NoVerdict,
    Order,
    Ping,
    Pong,
    Rejected,
    Waiting,
    Welcome,
    encode,
)
from ddpdoctor.network_check.protocol.tokens import proof
from tests.support.free_ports import free_port

FromHub = Greeting | Welcome | Rejected | Ping | NoVerdict | Waiting | Order | Abort | NodeVerdict

HERE = "127.0.0.1"
TOKEN = "abcd-efgh-ijkl"
PART = NodeVerdict(results=(), verdict=Verdict.OK, exit_code=0, lines=("all is well",))
SEVEN = Counted(undelivered=7, untransmitted=None)
QUICK = ConnectionLimits(hello=0.4, grace=0.1, second_thoughts=0.3, ping=0.1, quiet=0.8, line=3.0)

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Greeted(NamedTuple):
    """A connection on which the hub has greeted us."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: Greeting


def run(work: Coroutine[Any, Any, T], seconds: float = 20) -> T:
    """Runs it to its end, which has to come within the seconds."""
    return asyncio.run(asyncio.wait_for(work, seconds))


@asynccontextmanager
async def hub(
    nnodes: int = 2, token: str = TOKEN, limits: ConnectionLimits = QUICK, **others: Any
) -> AsyncIterator[Hub]:
    """A hub on a port that no dialled socket is given, so that it can be taken again."""
    before = asyncio.all_tasks()
    one = Hub([HERE], free_port(), nnodes, token, limits=limits, **others)
    await one.open()
    try:
        yield one
    finally:
        await one.stop("the test is over")
        assert asyncio.all_tasks() <= before, "nothing of the hub, its guests or the test's own clients is left"


def manifest(snapshot: Snapshot | None = None) -> bytes:
    """A host's facts, as agents send them."""
    return zlib.compress(msgspec.json.encode(snapshot or Snapshot(host="n")))


async def counts(order: Order) -> Answer:
    """Carries out any order by the same answer."""
    return Counted(undelivered=7, untransmitted=None)


async def agent(
    port: int,
    rank: int | None = None,
    *,
    nnodes: int | None = None,
    token: str = TOKEN,
    own: str = "",
    carry_out: Callable[[Order], Awaitable[Answer]] = counts,
    heard: Callable[[Waiting], None] = lambda waiting: None,
    address: str = HERE,
    limits: ConnectionLimits = QUICK,
) -> NodeVerdict:
    """A real agent, from its dialling to its part of the verdict."""
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
    greeting = msgspec.json.decode(await reader.readline(), type=Greeting)

    async def facts(welcome: Welcome) -> bytes:
        return manifest()

    job = NetcheckJob(master=HERE, port=port, nnodes=nnodes, node_rank=rank)
    return await take_part(Greeted(reader, writer, greeting), job, token, facts, carry_out, heard, own, limits)


@asynccontextmanager
async def agents(
    one: Hub, *ranks: int | None, carry_out: Callable[[Order], Awaitable[Answer]] = counts
) -> AsyncIterator[list[asyncio.Task[NodeVerdict]]]:
    """Node 0's own agent and one for each of the ranks. They are cancelled at the end, if they still run."""
    tasks = [asyncio.ensure_future(agent(one.port, own=one.own, carry_out=carry_out))]
    tasks += [asyncio.ensure_future(agent(one.port, rank, carry_out=carry_out)) for rank in ranks]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Client:
    """A client that says what the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = Greeting(ddpdoctor="", protocol=0, nonce="")

    def say(self, message: Message) -> None:
        self.writer.write(encode(message))

    def hello(self, token: str = TOKEN, **changes: Any) -> None:
        """A proper Hello, but for the changes."""
        nonce = changes.get("nonce", "ab" * 16)
        right = Hello(
            ddpdoctor=__version__,
            protocol=PROTOCOL,
            nonce=nonce,
            proof=proof(token, "agent", nonce, self.greeting.nonce),
            host="odd",
            node_rank=None,
            nnodes=None,
        )
        self.say(msgspec.structs.replace(right, **changes))

    async def hear(self) -> FromHub:
        """The next message, whatever it is.

        Raises:
            EOFError: the hub has closed the connection.
        """
        line = await self.reader.readline()
        if not line:
            raise EOFError
        return msgspec.json.decode(line, type=FromHub)

    async def until(self, kind: type[M]) -> M:
        """The next message of that type; what comes before is dropped, and pings are answered."""
        while True:
            message = await self.hear()
            if isinstance(message, kind):
                return message
            self.answer_ping(message)

    def answer_ping(self, message: object) -> None:
        if isinstance(message, Ping):
            self.say(Pong(number=message.number, came=message.sent, went=message.sent))

    async def ended(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def join(self, **changes: Any) -> Welcome:
        """Goes in like any node, facts and all."""
        self.hello(**changes)
        welcome = await self.until(Welcome)
        self.say(HostFacts(snapshot=manifest()))
        return welcome

    async def answer_pings(self) -> None:
        """For as long as the connection lasts."""
        try:
            while True:
                self.answer_ping(await self.hear())
        except (EOFError, OSError):
            self.writer.close()


@asynccontextmanager
async def client(port: int, address: str = HERE, *, greeted: bool = True) -> AsyncIterator[Client]:
    """A connection from that address of loopback."""
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0), limit=8 << 20)
    one = Client(reader, writer)
    try:
        if greeted:
            one.greeting = msgspec.json.decode(await reader.readline(), type=Greeting)
        yield one
    finally:
        writer.transport.abort()


async def finish(one: Hub, *tasks: asyncio.Task[NodeVerdict]) -> None:
    """The nodes of these tasks carry out an order and get their part, whatever happened to the others."""
    ranks = [rank for rank, peer in one.peers.items() if not peer.lost]
    assert await one.ask(dict.fromkeys(ranks, Count()), 5) == dict.fromkeys(ranks, SEVEN)
    await one.dismiss(dict.fromkeys(ranks, PART))
    assert await asyncio.gather(*tasks) == [PART] * len(tasks)


async def answer_joined(one: Hub, odd: Client, rank: int) -> None:
    """`odd` answers pings until the hub has the facts of the node of that rank."""
    while not (rank in one.peers and one.peers[rank].joined):
        odd.answer_ping(await odd.hear())


@asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server on loopback that isn't the hub; gives its port."""
    server = await asyncio.start_server(handler, HERE, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
