"""Listens on the master's port, and checks each connection until it has shown that it belongs to this job."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import secrets
import socket
import sys
import termios
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.sanitize_facts import is_host, is_version
from ddpdoctor.network_check.analysis.admission_errors import wrong_token
from ddpdoctor.network_check.protocol.bounded_lines import READ_BYTES, LineError, LineReader, plain
from ddpdoctor.network_check.protocol.messages import (
    MAX_BYTES_BEFORE_WELCOME,
    PROTOCOL,
    Greeting,
    Hello,
    Rejected,
    encode,
)
from ddpdoctor.network_check.protocol.peer_connection import UNDECODABLE
from ddpdoctor.network_check.protocol.rejected_connections import RejectedConnections, describe_first_bytes
from ddpdoctor.network_check.protocol.tcp_connections import send_again_soon
from ddpdoctor.network_check.protocol.tokens import matches, proof

BACKLOG: Final = 4096
"""Connections that the kernel keeps until we get to them: a whole cluster dials at once. It has a limit of its own."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long, in seconds, and how many."""

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

    hello: Hello
    address: str
    lines: LineReader
    writer: asyncio.StreamWriter
    proof: str
    """That the hub knows the token, too."""


class _ForeignError(Exception):
    """The other end isn't one of ours; the text says what it looks like."""


class _RejectedError(Exception):
    """The other end speaks as one of ours and can't come in. proved: it knows the token."""

    def __init__(self, host: str, away: Rejected, *, proved: bool) -> None:
        super().__init__(away.text)
        self.host = host
        self.away = away
        self.proved = proved


class _PendingConnection:
    """A connection that hasn't shown yet that it belongs here."""

    def __init__(self, address: str, writer: asyncio.StreamWriter, now: float) -> None:
        self.address = address
        self.writer = writer
        self.since = now
        self.pushed_out = False


class _AnyHello(msgspec.Struct, frozen=True):
    """The fields that a Hello of every protocol has, those to come, too."""

    type: str
    protocol: int
    ddpdoctor: str
    host: str = ""
    nonce: str = ""
    proof: str = ""


class HandshakeServer:
    """Listens at the master's addresses, and hands over whoever has proved that it belongs here.

    Args:
        addresses: all numeric.
        port: there; once it is open, the real one.
        token: of the job.
        limits: of time and number.
        admit: takes whoever has proved that it belongs here, and returns when that has gone.
        note_rejected: takes who speaks as ours and was rejected here: host, address, the message, and whether it knew the
            token.
        changed: called when somebody was rejected.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        port: int,
        token: str,
        limits: ConnectionLimits,
        admit: Callable[[AuthenticatedPeer], Awaitable[None]],
        note_rejected: Callable[[str, str, Rejected, bool], None],
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
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._pending: dict[asyncio.Task[None], _PendingConnection] = {}
        self._left = asyncio.Event()
        """A pending connection has made room."""
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """One task for each connection, until it ends."""

    async def open(self) -> None:
        """Listens, there and nowhere else.

        Raises:
            OSError: the port is taken, or the address isn't this host's.
        """
        try:
            for address in self.addresses:
                self._listen(address)
        except BaseException:
            await self.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(own)) for own in self._sockets]

    def _listen(self, address: str) -> None:
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        family, _, _, _, name = socket.getaddrinfo(address, self.port, type=socket.SOCK_STREAM, flags=flags)[0]
        own = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(own)
        # Without it a connection of the run before would keep the port for a minute, and ours it from torch's store.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        send_again_soon(own)
        own.setblocking(False)
        own.bind(name)
        own.listen(BACKLOG)
        self.port = own.getsockname()[1]

    async def close(self) -> None:
        """Listens no more, and lets those go who haven't shown who they are. Those inside stay."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for own in self._sockets:
            own.close()
        self._accepting, self._sockets = [], []
        waiting = list(self._pending)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def empty(self, seconds: float, longest: float) -> None:
        """Waits until everybody has gone; who hasn't when the time is up is cut off. Whoever still takes what it was sent, over
        however slow a link, has longer: `longest` at most, and `seconds` without a byte."""
        inside = dict(self._connections)
        if not inside:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + longest
        waiting: set[asyncio.Task[None]] = set(inside)
        left = {task: _unsent(writer) for task, writer in inside.items()}
        while waiting and loop.time() < deadline:
            _, waiting = await asyncio.wait(waiting, timeout=min(seconds, deadline - loop.time()))
            before, left = left, {task: _unsent(inside[task]) for task in waiting}
            if all(left[task] >= before[task] for task in waiting):
                break
        for task, writer in inside.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*inside, return_exceptions=True)

    async def _accept(self, own: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                connection, name = await loop.sock_accept(own)
            except OSError:
                # It went away again before we got to it, or this process has no descriptor left.
                await asyncio.sleep(0.05)
                continue
            if self.rejected.is_flooding(name[0]):
                connection.close()
                # Without this, a flood would keep the loop here.
                await asyncio.sleep(0)
                continue
            reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
            pending = _PendingConnection(name[0], writer, loop.time())
            task = asyncio.create_task(self._receive(pending, reader))
            self._pending[task] = pending
            self._connections[task] = writer
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task)
        self._settled(task)

    def _settled(self, task: asyncio.Task[None]) -> None:
        if self._pending.pop(task, None) is not None:
            self._left.set()

    async def _make_room(self) -> None:
        """Waits until one more may come in. Of the address that has most of them here, the oldest must go."""
        loop = asyncio.get_running_loop()
        while len(self._pending) >= self._limits.unproved:
            crowded = Counter(pending.address for pending in self._pending.values()).most_common(1)[0][0]
            oldest = next(waiting for waiting in self._pending.values() if waiting.address == crowded)
            left = oldest.since + self._limits.grace - loop.time()
            if left <= 0:
                oldest.pushed_out = True
                oldest.writer.transport.abort()
                left = 1.0
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                await within(left, self._left.wait())

    async def _receive(self, pending: _PendingConnection, reader: asyncio.StreamReader) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        assert task is not None
        try:
            peer = await self._ask_who(pending, LineReader(reader))
            self._settled(task)
            await self._admit(peer)
        except _ForeignError as error:
            self.rejected.note(pending.address, str(error))
            self._changed()
        except _RejectedError as error:
            pending.writer.write(encode(error.away))
            self._note_rejected(error.host, pending.address, error.away, error.proved)
            self._changed()
        finally:
            pending.writer.close()

    async def _ask_who(self, pending: _PendingConnection, lines: LineReader) -> AuthenticatedPeer:
        nonce = secrets.token_hex(16)
        pending.writer.write(encode(Greeting(ddpdoctor=__version__, protocol=PROTOCOL, nonce=nonce)))
        hello = self._hello(await self._first_line(pending, lines), pending.address, nonce)
        if not matches(hello.proof, proof(self._token, "agent", hello.nonce, nonce)):
            without = matches(hello.proof, proof("", "agent", hello.nonce, nonce))
            self.rejected.note(pending.address, f"{hello.host}, which doesn't know the token")
            text = wrong_token(wanted=bool(self._token), given=not without)
            raise _RejectedError(hello.host, Rejected(code="token", text=text), proved=False)
        own_proof = proof(self._token, "hub", nonce, hello.nonce)
        return AuthenticatedPeer(hello, pending.address, lines, pending.writer, own_proof)

    async def _first_line(self, pending: _PendingConnection, lines: LineReader) -> bytes:
        try:
            return await within(self._limits.hello, lines.read_line(MAX_BYTES_BEFORE_WELCOME))
        except TimeoutError as error:
            said = describe_first_bytes(lines.partial_line) if lines.partial_line else "said nothing"
            raise _ForeignError(f"{said}, and no end of it within {self._limits.hello:g} s") from error
        except LineError as error:
            if pending.pushed_out:
                raise _ForeignError("took a place and didn't say who it is") from error
            raise _ForeignError(describe_first_bytes(error.partial)) from error

    def _hello(self, line: bytes, address: str, nonce: str) -> Hello:
        """Decodes the Hello of one of ours, with a host's name that is fit for a report. nonce: what it was greeted with.

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
            if hello.type == "hello" and hello.protocol != PROTOCOL:
                # Whoever proves that he knows the token as we do is one of ours, whatever else his protocol has.
                proved = matches(hello.proof, proof(self._token, "agent", hello.nonce, nonce))
                if not proved:
                    self.rejected.note(address, f"{host}, which speaks protocol {hello.protocol} and showed no proof")
                raise _RejectedError(host, Rejected(code="version", text=_other(hello)), proved=proved)
            return msgspec.structs.replace(msgspec.json.decode(line, type=Hello), host=host)
        except UNDECODABLE as error:
            raise _ForeignError(describe_first_bytes(line)) from error


def _unsent(writer: asyncio.StreamWriter) -> int:
    """Bytes that the other host has not received yet: in our buffer, and in the kernel's."""
    transport = writer.transport
    unsent = int(transport.get_write_buffer_size()) if isinstance(transport, asyncio.WriteTransport) else 0
    own = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, ValueError):
        queued = fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(4))
        unsent += int.from_bytes(queued, sys.byteorder)
    return unsent


def _other(hello: _AnyHello) -> str:
    theirs, ours = plain(hello.ddpdoctor, 20), __version__
    newer = theirs if hello.protocol > PROTOCOL else ours
    return (
        f"ddpdoctor {theirs} here speaks protocol {hello.protocol}, ddpdoctor {ours} on node 0 speaks {PROTOCOL}: "
        f"pip install 'ddpdoctor=={newer}' on both"
    )
