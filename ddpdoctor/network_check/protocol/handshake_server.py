"""The server on the master's port, which checks each connection until it has shown that it belongs to this job."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.sanitize_facts import is_host, is_version
from ddpdoctor.facts.fleet import RejectedNode
from ddpdoctor.network_check.analysis.admission_errors import wrong_token
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.bounded_lines import READ_BYTES, LineError, LineReader, plain
from ddpdoctor.network_check.protocol.connection_gate import ConnectionGate, GateLimits
from ddpdoctor.network_check.protocol.rejected_connections import RejectedConnections, describe_first_bytes
from ddpdoctor.network_check.protocol.tcp_connections import numeric_name, send_again_soon, unacknowledged_bytes
from ddpdoctor.network_check.protocol.tokens import matches, proof

BACKLOG: Final = 4096
"""Connections that the kernel keeps until we get to them: a whole cluster dials at once. It has a limit of its own."""

STRANGERS_PER_ADDRESS: Final = 20
"""Connections of strangers from one address before it has to wait."""
STRANGERS_PER_SECOND: Final = 5.0
"""As many more a second from then on."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of time, in seconds, and of number."""

    hello: float = 5.0
    """For saying who one is."""
    unproved: int = 64
    """Connections that haven't said it yet."""
    grace: float = 0.5
    """What each of those has before it must make room for another."""
    second_thoughts: float = 3.0
    """When all nodes have come and some weren't let in: for starting one again the right way. When one has failed in what
    needs all: for the others to see it by themselves."""
    ping: float = 2.0
    """Between two signs of life."""
    facts: float = 30.0
    """For looking at one's host: the slowest probes, of drivers that hang, are given up after 25."""
    quiet: float = 15.0
    """Without any of them: a guest is lost, the hub is gone."""
    test: float = 1800.0
    """For the whole test, once all have come or aren't waited for any longer: thousands of nodes take some minutes."""
    wait: float = 3600.0
    """For which a hub may hold a node that it has let in until all have come, whatever it says."""
    line: float = 60.0
    """Without a whole line, however many bytes come."""


class AuthenticatedPeer(msgspec.Struct, frozen=True):
    """A connection whose other end speaks our protocol and knows the token."""

    hello: messages.Hello
    address: str
    lines: LineReader
    writer: asyncio.StreamWriter
    proof: str
    """That the hub knows the token, too."""


class _ForeignError(Exception):
    """The other end isn't one of ours; the text says what it looks like."""


class _RejectedError(Exception):
    """The other end speaks as one of ours and can't come in."""

    def __init__(self, host: str, address: str, code: str, text: str, *, proved: bool) -> None:
        super().__init__(text)
        self.node = RejectedNode(rank=-1, host=host, address=address, code=code, text=text, proved=proved)


class _AnyHello(msgspec.Struct, frozen=True):
    """The fields that a Hello of every protocol has, those to come, too."""

    type: str
    protocol: int
    ddpdoctor: str
    host: str = ""
    nonce: str = ""
    proof: str = ""


class HandshakeServer:
    """The listener at the master's addresses, which hands over whoever has proved that it belongs here.

    Args:
        addresses: all numeric.
        port: there; once it is open, the real one.
        token: of the job.
        limits: of time and number.
        admit: takes whoever has proved that it belongs here, and returns when that has gone.
        note_rejected: takes who speaks as ours and was rejected here.
        changed: called when somebody was rejected.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        port: int,
        token: str,
        limits: ConnectionLimits,
        admit: Callable[[AuthenticatedPeer], Awaitable[None]],
        note_rejected: Callable[[RejectedNode], None],
        changed: Callable[[], None],
    ) -> None:
        self.addresses = addresses
        self.port = port
        self.rejected = RejectedConnections()
        self._token = token
        self._limits = limits
        self._admit = admit
        self._note_rejected = note_rejected
        self._changed = changed
        gate_limits = GateLimits(
            pending=limits.unproved,
            grace=limits.grace,
            burst=STRANGERS_PER_ADDRESS,
            refill=STRANGERS_PER_SECOND,
        )
        self._gate = ConnectionGate(gate_limits, self._receive, self._note_eviction)
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """One task for each connection, until it ends."""

    async def open(self) -> None:
        """Listen, there and nowhere else.

        Raises:
            OSError: the port is taken, or the address isn't this host's.
        """
        listening: list[socket.socket] = []
        try:
            for address in self.addresses:
                listening.append(self._listen(address))
        except BaseException:
            for own in listening:
                own.close()
            raise
        for own in listening:
            self._gate.watch(own)

    def _listen(self, address: str) -> socket.socket:
        family, name = numeric_name(address, self.port)
        own = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Without it a connection of the run before would keep the port for a minute, and ours it from torch's store.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            send_again_soon(own)
            own.setblocking(False)
            own.bind(name)
            own.listen(BACKLOG)
        except BaseException:
            own.close()
            raise
        self.port = own.getsockname()[1]
        return own

    async def close(self) -> None:
        """Listen no more, and let those go who haven't shown who they are. Those inside stay."""
        await self._gate.close()

    async def empty(self, seconds: float, longest: float) -> None:
        """Wait until everybody has gone; who hasn't when the time is up is cut off. Whoever still takes what it was sent, over
        however slow a link, has longer: `longest` at most, and `seconds` without a byte."""
        inside = dict(self._connections)
        if not inside:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + longest
        waiting: set[asyncio.Task[None]] = set(inside)
        left = {task: unacknowledged_bytes(writer) for task, writer in inside.items()}
        while waiting and loop.time() < deadline:
            _, waiting = await asyncio.wait(waiting, timeout=min(seconds, deadline - loop.time()))
            before, left = left, {task: unacknowledged_bytes(inside[task]) for task in waiting}
            if all(left[task] >= before[task] for task in waiting):
                break
        for task, writer in inside.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*inside, return_exceptions=True)

    async def _receive(self, connection: socket.socket, address: str) -> None:
        """Serve one connection, to its end."""
        task = asyncio.current_task()
        assert task is not None
        reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
        self._connections[task] = writer
        try:
            peer = await self._authenticate(address, LineReader(reader), writer)
            self._gate.admit()
            await self._admit(peer)
        except _ForeignError as error:
            self.rejected.note(address, str(error))
            self._changed()
        except _RejectedError as error:
            if error.node.proved:
                self._gate.admit()
            writer.write(messages.encode(messages.Rejected(code=error.node.code, text=error.node.text)))
            self._note_rejected(error.node)
            self._changed()
        finally:
            writer.close()
            del self._connections[task]

    def _note_eviction(self, address: str) -> None:
        self.rejected.note(address, "took a place and didn't say who it is")
        self._changed()

    async def _authenticate(self, address: str, lines: LineReader, writer: asyncio.StreamWriter) -> AuthenticatedPeer:
        nonce = secrets.token_hex(16)
        writer.write(messages.encode(messages.Greeting(ddpdoctor=__version__, protocol=messages.PROTOCOL, nonce=nonce)))
        hello = self._hello(await self._first_line(lines), address, nonce)
        if not matches(hello.proof, proof(self._token, "agent", hello.nonce, nonce)):
            without = matches(hello.proof, proof("", "agent", hello.nonce, nonce))
            self.rejected.note(address, f"{hello.host}, which doesn't know the token")
            text = wrong_token(wanted=bool(self._token), given=not without)
            raise _RejectedError(hello.host, address, "token", text, proved=False)
        own_proof = proof(self._token, "hub", nonce, hello.nonce)
        return AuthenticatedPeer(hello, address, lines, writer, own_proof)

    async def _first_line(self, lines: LineReader) -> bytes:
        try:
            return await within(self._limits.hello, lines.read_line(messages.MAX_BYTES_BEFORE_WELCOME))
        except TimeoutError as error:
            said = describe_first_bytes(lines.partial_line) if lines.partial_line else "said nothing"
            raise _ForeignError(f"{said}, and no end of it within {self._limits.hello:g} s") from error
        except LineError as error:
            raise _ForeignError(describe_first_bytes(error.partial)) from error

    def _hello(self, line: bytes, address: str, nonce: str) -> messages.Hello:
        """Decode the Hello of one of ours, with a host's name that is fit for a report. nonce: what it was greeted with.

        Raises:
            _ForeignError: it is no Hello.
            _RejectedError: it speaks another protocol.
        """
        try:
            hello = msgspec.json.decode(line, type=_AnyHello)
            host = hello.host if is_host(hello.host) and len(hello.host) <= 64 else address
            if not is_version(hello.ddpdoctor):
                # It would stand in a command.
                raise _ForeignError(describe_first_bytes(line))
            if hello.type == "hello" and hello.protocol != messages.PROTOCOL:
                # Whoever proves that he knows the token as we do is one of ours, whatever else his protocol has.
                proved = matches(hello.proof, proof(self._token, "agent", hello.nonce, nonce))
                if not proved:
                    self.rejected.note(address, f"{host}, which speaks protocol {hello.protocol} and showed no proof")
                raise _RejectedError(host, address, "version", _other(hello), proved=proved)
            return msgspec.structs.replace(msgspec.json.decode(line, type=messages.Hello), host=host)
        except messages.UNDECODABLE as error:
            raise _ForeignError(describe_first_bytes(line)) from error


def _other(hello: _AnyHello) -> str:
    theirs, ours = plain(hello.ddpdoctor, 20), __version__
    newer = theirs if hello.protocol > messages.PROTOCOL else ours
    return (
        f"ddpdoctor {theirs} here speaks protocol {hello.protocol}, ddpdoctor {ours} on node 0 speaks {messages.PROTOCOL}: "
        f"pip install 'ddpdoctor=={newer}' on both"
    )
