"""Measures the link between two nodes over one TCP connection: round trip, rate each way, segments sent again.

The side that dialled leads: it sends frames, the other one answers. Both work on the bare socket in a thread, since
asyncio's streams would measure themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final, TypeVar, cast

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.facts.fleet import Link
from ddpdoctor.network_check.protocol.messages import ListenAddress, Measure, Measured, Peer
from ddpdoctor.network_check.protocol.peer_handshake import MEASURE, PeerHandshakeError, PeerStream, dial_peer
from ddpdoctor.network_check.protocol.tcp_connections import system_words

T = TypeVar("T")

PINGS: Final = 20
MIN_PINGS: Final = 5
PING_SHARE, BULK_SHARE = 0.2, 0.4
"""Of a measurement's seconds: for the ping-pongs, and for the transfer each way."""
ROUND_TRIPS: Final = 6
"""A transfer takes at least so many: over a long way TCP needs them to get going."""
BATCHES: Final = 3
"""A transfer is so many equal batches or more, after growing ones; the best one counts, so that a CPU which is busy for a
moment doesn't."""

BLOCK: Final = 1024 * 1024
FIRST_BATCH: Final = 16 * 1024
"""About what TCP sends before the first acknowledgement."""
MAX_GROWTH: Final = 8
LARGEST_BATCH: Final = 1024**3
MAX_SERVED_SECONDS: Final = 15.0
"""A visitor that takes longer is no peer: no order leaves that much time."""

READY: Final = b"r"
FRAME: Final = struct.Struct("!cQ")
"""A command, and for a transfer a number of bytes."""
PING, TAKE, GIVE, COUNT = b"p", b"t", b"g", b"c"
COUNTS: Final = struct.Struct("!II")

RETRANS, BYTES_ACKED, DATA_SEGS_OUT, DSACK_DUPS = 100, 120, 156, 216
"""Where tcpi_total_retrans, tcpi_bytes_acked, tcpi_data_segs_out and tcpi_dsack_dups stand in the kernel's struct tcp_info
(linux/tcp.h). The last one since Linux 5.0; it counts what was sent again for nothing, as after reordering."""
TCP_INFO_SIZE: Final = 220
MIN_RESENT_SEGMENTS: Final = 3
"""Fewer segments sent again say nothing: a loss probe that came too soon is one."""


class Counts(msgspec.Struct, frozen=True):
    """The TCP segments with data that one end has sent on this connection, and how many of them had to be sent again."""

    resent: int = 0
    sent: int = 0

    @property
    def share(self) -> float:
        return min(self.resent / self.sent, 1.0) if self.sent and self.resent >= MIN_RESENT_SEGMENTS else 0.0


class Wire:
    """A connected socket on which everything is over by a deadline (time.monotonic())."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._buffer = memoryview(bytearray(BLOCK))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | memoryview) -> None:
        """Hand all of it to the kernel. It raises as receive() does."""
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Receive exactly so many bytes. It raises as `chunks` does."""
        return b"".join(map(bytes, self.chunks(size)))

    def send_bulk(self, size: int) -> None:
        """Send so many bytes that can't be compressed on the way."""
        block = _noise()
        for start in range(0, size, BLOCK):
            self.send(block[: min(BLOCK, size - start)])

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Receive exactly so many bytes, and give each part as it comes, which the next one overwrites.

        Raises:
            ConnectionResetError: cut off.
            TimeoutError: the deadline passed.
        """
        while size:
            self._socket.settimeout(self._left())
            part = self._socket.recv_into(self._buffer, min(size, BLOCK))
            if not part:
                raise ConnectionResetError("the other side hung up")
            size -= part
            yield self._buffer[:part]

    def counts(self) -> Counts:
        """Count this end's segments; nothing where the kernel doesn't say."""
        info = self._info()
        if len(info) < TCP_INFO_SIZE:
            return Counts()
        again, sent, twice = (struct.unpack_from("=I", info, at)[0] for at in (RETRANS, DATA_SEGS_OUT, DSACK_DUPS))
        return Counts(resent=max(again - twice, 0), sent=sent)

    def acknowledged(self) -> int:
        """Bytes that have arrived at the other side's kernel. 0 where ours doesn't say."""
        info = self._info()
        return int(struct.unpack_from("=Q", info, BYTES_ACKED)[0]) if len(info) >= TCP_INFO_SIZE else 0

    def _info(self) -> bytes:
        try:
            return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return b""

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is up")
        return left


@cache
def _noise() -> memoryview:
    return memoryview(os.urandom(BLOCK))


# --- the side that dialled ----------------------------------------------------------------------------------------------


def longest(seconds: float) -> float:
    """Seconds that a measurement may take over a bad link, given those that it takes over a good one."""
    return 4 * seconds + 1


async def measure(order: Measure, run: str, node: int) -> Measured:
    """Measure the link from this node to the peer. Whatever goes wrong is in the link's `error`."""
    if order.peer is None:
        return Measured(link=None)
    peer, seconds = order.peer.node, order.seconds
    deadline = time.monotonic() + longest(seconds)
    try:
        stream = await _dial(order.peer, run, node, deadline)
    except (OSError, PeerHandshakeError, asyncio.IncompleteReadError) as error:
        return Measured(link=Link(a=min(node, peer), b=max(node, peer), round_trip=0.0, error=_words(error)))
    try:
        link = await _in_thread(stream.writer, deadline, lambda wire: _lead(wire, seconds, node, peer))
    finally:
        stream.writer.transport.abort()
    return Measured(link=link)


async def _dial(peer: Peer, run: str, node: int, deadline: float) -> PeerStream:
    """Dial the peer where the job's data will go: at NCCL's address, else by the route.

    Raises:
        PeerHandshakeError: it listens nowhere that all others reach, or isn't of this run.
    """
    place = _data_place(peer)
    if place is None:
        raise PeerHandshakeError("it listens nowhere that all others reach")
    stream = await dial_peer(place.address, place.ports[0], run, node, MEASURE, deadline - time.monotonic())
    try:
        # Until it says so, the other side would take our first frame for a line of the visit.
        await within(deadline - time.monotonic(), stream.reader.readexactly(len(READY)))
    except BaseException:
        stream.writer.transport.abort()
        raise
    return stream


def _data_place(peer: Peer) -> ListenAddress | None:
    places = [place for place in peer.places if place.ports and place.kind in ("nccl", "route")]
    return min(places, key=lambda place: place.kind, default=None)


def _lead(wire: Wire, seconds: float, node: int, peer: int) -> Link:
    """Measure what the time allows: over a bad link fewer ping-pongs, and rates of less than was to be sent."""
    trips: list[float] = []
    rates = {TAKE: -1.0, GIVE: -1.0}
    others = Counts()
    error = ""
    try:
        _ping_pong(wire, seconds, trips)
        for command in rates:
            _transfer(wire, command, seconds * BULK_SHARE, min(trips), rates)
        wire.send(FRAME.pack(COUNT, 0))
        others = Counts(*COUNTS.unpack(wire.receive(COUNTS.size)))
    except OSError as stopped:
        error = "" if trips else _words(stopped)
    forth, back = (TAKE, GIVE) if node < peer else (GIVE, TAKE)
    return Link(
        a=min(node, peer),
        b=max(node, peer),
        round_trip=min(trips, default=0.0),
        forth=rates[forth],
        back=rates[back],
        resent=max(wire.counts().share, others.share),
        error=error,
    )


def _ping_pong(wire: Wire, seconds: float, trips: list[float]) -> None:
    """Add a round trip for each ping-pong; fewer of them where they are slow."""
    frame = FRAME.pack(PING, 0)
    began = now = time.perf_counter()
    while len(trips) < PINGS:
        share = PING_SHARE if len(trips) >= MIN_PINGS else 1.0
        if trips and now - began > seconds * share:
            return
        wire.send(frame)
        wire.receive(FRAME.size)
        earlier, now = now, time.perf_counter()
        trips.append(now - earlier)


def _transfer(wire: Wire, command: bytes, seconds: float, trip: float, rates: dict[bytes, float]) -> None:
    """Note the rate of one direction, in Mbit/s; where the time is up before, that of what has arrived until then.

    Raises:
        OSError: the connection failed before enough had arrived.
    """
    arrived = 0

    def batch(size: int) -> None:
        nonlocal arrived
        wire.send(FRAME.pack(command, size))
        if command == TAKE:
            wire.send_bulk(size)
            wire.receive(len(READY))
        else:
            for chunk in wire.chunks(size):
                arrived += len(chunk)

    acknowledged, began = wire.acknowledged(), time.perf_counter()
    try:
        rates[command] = _rate(batch, max(seconds, ROUND_TRIPS * trip), trip)
    except OSError:
        arrived = arrived if command == GIVE else wire.acknowledged() - acknowledged
        # Nothing is no figure: with tcp_mtu_probing the side that was dialled needs seconds to find a size that passes.
        if arrived > 0:
            rates[command] = _megabits(arrived, time.perf_counter() - began)
        raise


def _rate(batch: Callable[[int], None], seconds: float, trip: float) -> float:
    """The rate of batches that fill the seconds, in Mbit/s. `trip`: what each takes besides, for asking and answering."""
    began = time.perf_counter()
    enough = seconds / (BATCHES + 1)
    size, best, tried = FIRST_BATCH, math.inf, 0

    def goes_on() -> bool:
        spent = time.perf_counter() - began
        return tried == 0 or spent + best < seconds or (tried < BATCHES and spent < BATCHES * seconds)

    while goes_on():
        started = time.perf_counter()
        batch(size)
        best, tried = min(best, time.perf_counter() - started), tried + 1
        if best < enough / 2 and size < LARGEST_BATCH and time.perf_counter() - began < seconds:
            size = min(int(size * min(MAX_GROWTH, enough / best)), LARGEST_BATCH)
            best, tried = math.inf, 0
    return _megabits(size, max(best - trip, best / 2))


def _megabits(size: int, seconds: float) -> float:
    return size * 8 / seconds / 1e6


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncio.IncompleteReadError):
        return "the other side hung up"
    if isinstance(error, OSError) and error.errno:
        return system_words(error)
    return str(error) or type(error).__name__


# --- the side that listens ----------------------------------------------------------------------------------------------


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let a visitor measure the link to us, until it hangs up. The caller closes the writer."""
    del reader  # The visitor says nothing until we are ready.
    with suppress(OSError):
        await _in_thread(writer, time.monotonic() + MAX_SERVED_SECONDS, _follow)


def _follow(wire: Wire) -> None:
    """Do as each frame says. Return at the first that makes no sense.

    Raises:
        OSError: the other side hung up, or the time is up.
    """
    wire.send(READY)
    while True:
        frame = wire.receive(FRAME.size)
        command, size = FRAME.unpack(frame)
        if command == PING:
            wire.send(frame)
        elif command == TAKE and size <= LARGEST_BATCH:
            for _ in wire.chunks(size):
                pass
            wire.send(READY)
        elif command == GIVE and size <= LARGEST_BATCH:
            wire.send_bulk(size)
        elif command == COUNT:
            counts = wire.counts()
            wire.send(COUNTS.pack(counts.resent, counts.sent))
        else:
            return


async def _in_thread(writer: asyncio.StreamWriter, deadline: float, work: Callable[[Wire], T]) -> T:
    """Do the work on the connection's socket, which asyncio keeps its hands off meanwhile.

    Raises:
        CancelledError: it was cancelled; the work ends soon.
    """
    cast(asyncio.Transport, writer.transport).pause_reading()
    connected: socket.socket = writer.get_extra_info("socket").dup()

    def worked() -> T:
        with connected:
            return work(Wire(connected, deadline))

    try:
        return await asyncio.to_thread(worked)
    except asyncio.CancelledError:
        # Wakes the thread, which closes the socket.
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
        raise
