"""A node's side of the protocol with the hub: it proves who it is, sends its facts, and answers orders."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.sanitize_facts import is_version
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.bounded_lines import LineError, LineReader, plain
from ddpdoctor.network_check.protocol.handshake_server import ConnectionLimits
from ddpdoctor.network_check.protocol.rejected_connections import describe_first_bytes
from ddpdoctor.network_check.protocol.tokens import matches, proof

if TYPE_CHECKING:
    from ddpdoctor.network_check.job import NetcheckJob
    from ddpdoctor.network_check.phases.hub_search import Connection

T = TypeVar("T")

MAX_SHOWN_LENGTH: Final = 300
"""Characters of what node 0 says."""

MAX_UNREAD_BYTES: Final = 2 * messages.MAX_LINE_BYTES
"""Bytes that wait until node 0 reads them: an answer and some signs of life."""

MAX_QUEUED_ORDERS: Final = 8
"""That wait while one is carried out."""

_BEFORE_ADMISSION: Final[msgspec.json.Decoder[messages.Welcome | messages.Rejected | messages.NoVerdict]] = (
    msgspec.json.Decoder(messages.Welcome | messages.Rejected | messages.NoVerdict)
)
_AFTER_ADMISSION: Final[
    msgspec.json.Decoder[
        messages.Ping | messages.Waiting | messages.NoVerdict | messages.NodeVerdict | messages.Order | messages.Abort
    ]
] = msgspec.json.Decoder(
    messages.Ping | messages.Waiting | messages.NoVerdict | messages.NodeVerdict | messages.Order | messages.Abort
)


class AgentError(Exception):
    """There will be no verdict from node 0; the text says why."""


class RejectedError(AgentError):
    """The hub doesn't let this node in. `code` as in `Rejected`; the text says why and what to do, and `shown` the same and
    whose words they are."""

    def __init__(self, code: str, text: str, *, by_node_0: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.shown = _quote_node_0(text) if by_node_0 else text


class HubGoneError(AgentError):
    """The hub went away without a word, or talks nonsense; the text says how."""


class HubStoppedError(AgentError):
    """The hub says that there will be no verdict, and why."""


class LeftBehindError(AgentError):
    """There is a verdict, or a finding in its place, but none on this node; the text says why."""


async def take_part(
    connection: Connection,
    job: NetcheckJob,
    token: str,
    facts: Callable[[messages.Welcome], Awaitable[bytes]],
    carry_out: Callable[[messages.Order], Awaitable[messages.Answer]],
    on_waiting: Callable[[messages.Waiting], None],
    own: str = "",
    limits: ConnectionLimits | None = None,
    command: str = "netcheck",
) -> messages.NodeVerdict:
    """Go through the whole test on a connection that the hub has greeted us on, and close it in the end.

    When it is cancelled, the hub is told; the cancellation's message, "its user: Ctrl-C" where it has none, says by whom or
    what.

    Args:
        connection: to the hub.
        job: as this node sees it.
        token: of the job, "" for none.
        facts: gives this host's Snapshot as JSON, deflated by zlib, as the node that we were let in as; may take its time.
        carry_out: does one order at a time. What it raises becomes the order's answer; cancelled with ABORTED, it may still
            give one.
        on_waiting: takes what the fleet does and whom it waits for.
        own: `Hub.own`, where the hub is ours.
        limits: how long the hub may take.
        command: what this node was started for.

    Raises:
        AgentError: there will be no verdict from node 0; RejectedError where it doesn't let us in, or doesn't know our token,
            or speaks another protocol, HubStoppedError where it says that there will be none.
        HubGoneError: it went away, or it isn't ours.
        LeftBehindError: it fell silent, or says that it goes on without us.
        asyncio.CancelledError: this node was stopped.
    """
    agent = _Agent(connection, token, carry_out, on_waiting, limits or ConnectionLimits(), command)
    try:
        welcome = await agent.enter(job, own or secrets.token_hex(16))
        check_assigned_rank(welcome, job, own_hub=bool(own))
        return await agent.serve(facts(welcome), welcome.wait)
    except asyncio.CancelledError as error:
        await agent.farewell(f"stopped by {error.args[0] if error.args else 'its user: Ctrl-C'}")
        raise
    except (HubGoneError, LeftBehindError) as error:
        # Perhaps it only sleeps.
        await agent.farewell(str(error))
        raise
    except AgentError:
        raise
    except Exception as error:
        await agent.farewell(f"it failed: {type(error).__name__}: {error}")
        raise
    finally:
        connection.writer.close()


class _Agent:
    def __init__(
        self,
        connection: Connection,
        token: str,
        carry_out: Callable[[messages.Order], Awaitable[messages.Answer]],
        on_waiting: Callable[[messages.Waiting], None],
        limits: ConnectionLimits,
        command: str,
    ) -> None:
        self._command = command
        self._greeting: messages.Greeting = connection.greeting
        self._writer = connection.writer
        self._lines = LineReader(connection.reader)
        self._token = token
        self._carry_out = carry_out
        self._on_waiting = on_waiting
        self._limits = limits
        self._orders: asyncio.Queue[messages.Order] = asyncio.Queue(MAX_QUEUED_ORDERS)
        self._carrying: asyncio.Task[messages.Answer] | None = None

    async def enter(self, job: NetcheckJob, nonce: str) -> messages.Welcome:
        greeting = self._greeting
        hello = messages.Hello(
            ddpdoctor=__version__,
            protocol=messages.PROTOCOL,
            nonce=nonce,
            proof=proof(self._token, "agent", nonce, greeting.nonce),
            host=socket.gethostname(),
            node_rank=job.node_rank,
            nnodes=job.nnodes,
            command=self._command,
        )
        self._say(hello)
        if not is_version(greeting.ddpdoctor):
            raise HubGoneError(f"what listens on the master's port calls itself ddpdoctor {greeting.ddpdoctor[:20]!a}")
        if greeting.protocol != messages.PROTOCOL:
            # The hub has our Hello, and can tell its user, too.
            raise RejectedError("version", _describe_other_protocol(greeting))
        answer = _decoded(_BEFORE_ADMISSION, await self._line())
        if isinstance(answer, messages.Rejected):
            raise RejectedError(plain(answer.code, 20), plain(answer.text, MAX_SHOWN_LENGTH), by_node_0=True)
        if isinstance(answer, messages.NoVerdict):
            raise _end_by_hub(answer)
        if not matches(answer.proof, proof(self._token, "hub", greeting.nonce, nonce)):
            raise RejectedError(
                "token", "what listens on the master's port doesn't know this job's token: it is not ours"
            )
        return answer

    async def serve(self, facts: Awaitable[bytes], wait: float) -> messages.NodeVerdict:
        """Send the facts, carry out orders, and give the verdict. wait: seconds for which node 0 waits for the others.

        Raises:
            HubGoneError: there is no verdict within the time, or the connection broke.
            AssertionError: the work has ended by itself.
        """
        longest = min(wait, self._limits.wait) + self._limits.test
        reading = asyncio.ensure_future(self._read())
        working = asyncio.ensure_future(self._work(facts))
        try:
            await asyncio.wait({reading, working}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and not working.done():
                raise HubGoneError(
                    f"node 0 still lives, and has come to no verdict within {longest:.0f} s: stop it there"
                )
            if not reading.done() and isinstance(working.exception(), OSError):
                # The connection broke while we wrote; what was read last may say why.
                await asyncio.wait({reading}, timeout=1.0)
            if reading.done():
                return reading.result()
            working.result()
            raise AssertionError("it works until it is cancelled")
        except OSError as error:
            raise HubGoneError(f"the connection to node 0 broke: {error.strerror or error}") from error
        finally:
            for task in (reading, working):
                task.cancel()
            await asyncio.gather(reading, working, return_exceptions=True)

    async def farewell(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self._say(messages.Goodbye(why=why))
            await within(1.0, self._writer.drain())

    def _say(self, message: messages.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(messages.encode(message))

    async def _work(self, facts: Awaitable[bytes]) -> None:
        self._say(messages.HostFacts(snapshot=await facts))
        await self._writer.drain()
        while True:
            self._carrying = asyncio.create_task(self._answer(await self._orders.get()))
            line = messages.encode(await self._carrying)
            if len(line) > messages.MAX_LINE_BYTES:
                line = messages.encode(
                    messages.OrderFailed(
                        why=f"the answer has {len(line)} bytes, and {messages.MAX_LINE_BYTES} are allowed"
                    )
                )
            self._writer.write(line)
            await self._writer.drain()

    async def _answer(self, order: messages.Order) -> messages.Answer:
        try:
            return await self._carry_out(order)
        except asyncio.CancelledError as error:
            if error.args != (messages.ABORTED,):
                raise
            return messages.OrderFailed(why="it was ended, since it had failed on another node")
        except Exception as error:
            return messages.OrderFailed(why=plain(f"{type(error).__name__}: {error}", 400))

    async def _read(self) -> messages.NodeVerdict:
        while True:
            line = await self._line()
            came = time.time()
            message = _decoded(_AFTER_ADMISSION, line)
            if isinstance(message, messages.Ping):
                self._say(messages.Pong(number=message.number, came=came, went=time.time()))
                if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                    raise HubGoneError("node 0 asks and doesn't read the answers")
            elif isinstance(message, messages.Waiting):
                self._on_waiting(message)
            elif isinstance(message, messages.NoVerdict):
                raise _end_by_hub(message)
            elif isinstance(message, messages.NodeVerdict):
                return message
            elif isinstance(message, messages.Abort):
                if self._carrying is not None:
                    self._carrying.cancel(messages.ABORTED)
            elif self._orders.full():
                raise HubGoneError("node 0 sent order after order without waiting for the answers")
            else:
                self._orders.put_nowait(message)

    async def _line(self) -> bytes:
        """Read the next line of the hub, which sends one every few seconds as long as it lives.

        Raises:
            HubGoneError: it closed the connection, or sends no lines.
            LeftBehindError: it fell silent.
        """
        loop = asyncio.get_running_loop()
        limits, lines = self._limits, self._lines
        reading = asyncio.ensure_future(lines.read_line(messages.MAX_LINE_BYTES))
        try:
            while True:
                began = loop.time()
                left = min(lines.last_bytes_at + limits.quiet, lines.last_line_at + limits.line) - began
                # What came while this process was held up is still to be read.
                await asyncio.wait({reading}, timeout=max(left, 0.05))
                if reading.done():
                    return reading.result()
                if loop.time() - began > max(left, 0.05) + limits.quiet / 3:
                    lines.restart_clocks()
                elif left <= 0:
                    # Where its process had ended, its host would have said so.
                    raise LeftBehindError(
                        f"nothing was heard of node 0 for {limits.quiet:g} s: is it still running there?"
                    )
        except LineError as error:
            raise HubGoneError(f"{error} by node 0: {self._command} was stopped or killed there") from error
        finally:
            reading.cancel()


def check_assigned_rank(welcome: messages.Welcome, job: NetcheckJob, *, own_hub: bool) -> None:
    """Check the rank that the hub gives this node.

    Args:
        welcome: the hub's.
        job: as this node sees it.
        own_hub: whether this is node 0.

    Raises:
        HubGoneError: no hub of this job would give that rank to this node.
    """
    nnodes, rank = job.nnodes or welcome.nnodes, welcome.node_rank
    wanted = 0 if own_hub else job.node_rank if job.node_rank is not None else rank
    if welcome.nnodes != nnodes or rank != wanted or rank >= nnodes or (rank == 0) != own_hub:
        raise HubGoneError(
            f"what listens on the master's port takes this for node {rank} of {welcome.nnodes}: it is not ours"
        )


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except messages.UNDECODABLE as error:
        raise HubGoneError(f"what listens on the master's port sent {describe_first_bytes(line)}") from error


def _end_by_hub(message: messages.NoVerdict) -> AgentError:
    return (LeftBehindError if message.exit_code == 1 else HubStoppedError)(_quote_node_0(message.why))


def _quote_node_0(text: str) -> str:
    """Mark what node 0 says as its words."""
    return f"node 0 says: {plain(text, MAX_SHOWN_LENGTH)}"


def _describe_other_protocol(greeting: messages.Greeting) -> str:
    theirs = plain(greeting.ddpdoctor, 20)
    said = f"ddpdoctor {__version__} here speaks protocol {messages.PROTOCOL}, ddpdoctor {theirs} on node 0 speaks {greeting.protocol}"
    if greeting.protocol > messages.PROTOCOL:
        return f"{said}: {sys.executable} -m pip install 'ddpdoctor=={theirs}'"
    return f"{said}: on node 0, pip install 'ddpdoctor=={__version__}'"
