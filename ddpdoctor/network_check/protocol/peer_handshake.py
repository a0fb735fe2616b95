"""A visit of one node to another one's listener: three lines, in which both show that they belong to this run.

Who dials shows no secret: an address may mean another host here than where it came from.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Final, TypeVar

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.network_check.protocol.tcp_connections import numeric_name
from ddpdoctor.network_check.protocol.tokens import matches, proof

T = TypeVar("T")

MAX_VISIT_LINE_BYTES: Final = 512
"""Bytes of a visit's lines."""

HELLO_SECONDS: Final = 5.0
"""How long a visitor may take to say who it is."""

REACH, MEASURE = "reach", "measure"


class DialHello(msgspec.Struct, frozen=True):
    """Whoever dials: its node, and what it comes for. `nonce` is fresh for every visit."""

    node: int
    purpose: str
    nonce: str


class ListenerReply(msgspec.Struct, frozen=True):
    """Whoever listens: its node, a fresh nonce of its own, and the proof over both that it is of this run."""

    node: int
    nonce: str
    proof: str


class DialProof(msgspec.Struct, frozen=True):
    """Whoever dials: the proof over both nonces, so that what was overheard opens no second visit."""

    proof: str


class PeerHandshakeError(Exception):
    """No visit came of a connection."""


class CutOffError(PeerHandshakeError):
    """The connection was closed or reset before an answer came."""


class NotAPeerError(PeerHandshakeError):
    """Something answered, and it is no node of this run."""


class PeerStream(msgspec.Struct, frozen=True):
    """An open conversation. `node`: the other side's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    node: int


async def dial_peer(address: str, port: int, run: str, node: int, purpose: str, seconds: float) -> PeerStream:
    """Dial, and shows who we are: node `node` of the run with that key. The caller closes the writer.

    Raises:
        OSError: no connection came about.
        TimeoutError: no connection, or no answer on it, within the seconds.
        PeerHandshakeError: it was connected, and then cut off, or something else answered.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    family, name = numeric_name(address, port)
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        own.setblocking(False)
        await within(seconds, loop.sock_connect(own, name))
        reader, writer = await asyncio.open_connection(sock=own)
    except BaseException:
        own.close()
        raise
    try:
        theirs = await within(deadline - loop.time(), _knock(reader, writer, run, node, purpose))
    except BaseException:
        writer.transport.abort()
        raise
    return PeerStream(reader, writer, theirs)


async def _knock(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: str, node: int, purpose: str) -> int:
    """Say who we are; return the node that answered.

    Raises:
        NotAPeerError: what answered is of another run.
    """
    nonce = secrets.token_hex(16)
    await _say(writer, DialHello(node, purpose, nonce))
    reply = await _hear(reader, ListenerReply)
    if not matches(reply.proof, proof(run, "host", nonce, reply.nonce, reply.node)):
        raise NotAPeerError("what answered is of another run")
    await _say(writer, DialProof(proof(run, "visitor", nonce, reply.nonce, node, purpose, reply.node)))
    return reply.node


async def accept_peer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: str, node: int
) -> tuple[int, str]:
    """The listener's side: the visitor's node, and what it comes for.

    Raises:
        TimeoutError: it said nothing for too long.
        NotAPeerError: it is of another run.
        PeerHandshakeError: it is gone.
    """
    knock = await within(HELLO_SECONDS, _hear(reader, DialHello))
    nonce = secrets.token_hex(16)
    await _say(writer, ListenerReply(node, nonce, proof(run, "host", knock.nonce, nonce, node)))
    shown = await within(HELLO_SECONDS, _hear(reader, DialProof))
    if not matches(shown.proof, proof(run, "visitor", knock.nonce, nonce, knock.node, knock.purpose, node)):
        raise NotAPeerError("a visitor of another run")
    return knock.node, knock.purpose


async def _say(writer: asyncio.StreamWriter, what: DialHello | ListenerReply | DialProof) -> None:
    writer.write(msgspec.json.encode(what) + b"\n")
    try:
        await writer.drain()
    except OSError as error:
        raise CutOffError(str(error)) from error


async def _hear(reader: asyncio.StreamReader, kind: type[T]) -> T:
    try:
        line = await reader.readuntil(b"\n")
        if len(line) > MAX_VISIT_LINE_BYTES:
            raise NotAPeerError("it answered with a line that is too long")
        return msgspec.json.decode(line, type=kind)
    except (asyncio.IncompleteReadError, OSError) as error:
        # Node 0 is told of it, and without a token anybody may be node 0: a stranger's words are quoted to nobody.
        if isinstance(error, asyncio.IncompleteReadError) and error.partial:
            raise NotAPeerError("something else answered") from error
        raise CutOffError("closed without an answer" if isinstance(error, EOFError) else str(error)) from error
    except asyncio.LimitOverrunError as error:
        raise NotAPeerError("it answered with a line that is too long") from error
    except msgspec.DecodeError as error:
        raise NotAPeerError("something else answered") from error
