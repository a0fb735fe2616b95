"""The listeners of a node for its peers, while they find out who reaches whom."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ddpdoctor.base.async_work import within
from ddpdoctor.network_check.protocol.connection_gate import ConnectionGate, GateLimits
from ddpdoctor.network_check.protocol.messages import ListenAddress, Opened
from ddpdoctor.network_check.protocol.order_limits import MEASURING_SECONDS
from ddpdoctor.network_check.protocol.peer_handshake import MEASURE, REACH, PeerHandshakeError, accept_peer
from ddpdoctor.network_check.protocol.tcp_connections import numeric_name

LARGE_MESSAGE_BYTES: Final = 64 * 1024
"""Bytes of the large message: more than one packet of any MTU."""

ARRIVED: Final = b"arrived\n"
"""What the listener answers to a large message that it has whole."""

MAX_PENDING: Final = 256
"""Visitors who have yet to show that they are of this run; the others wait in the kernel's queue."""

MAX_PENDING_PER_ADDRESS: Final = 64
"""Of these, from one address, more than any node sends at a time. The rest are turned away, so that nobody fills the room."""

MAX_STRANGERS_PER_ADDRESS: Final = 512
"""From one address, who showed nothing, in all: several times what a node may dial in vain. After those nobody from there is
listened to."""

EVICTION_SECONDS: Final = 1.0
"""Seconds after which the one who has been silent for longest has to go, where there is no room for others."""

MAX_MEASUREMENTS: Final = 4
"""Of those who measure a link, at a time: no two nodes are to, but one whom we don't hear of any more may still be here."""

BACKLOG: Final = 1024
LARGE_MESSAGE_SECONDS: Final = 30.0
"""How long a visitor may take over the large message: longer than any dialler waits."""

MAX_PORT_TRIES: Final = 50
RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


TROUBLES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Of this host itself, for which nobody's filter is to blame."""


class Listeners:
    """This node's listeners. `serve_measure` talks to the visitors who measure a link.

    measuring: whether such visits are expected; not before this node has dialled the others.
    """

    def __init__(self, serve_measure: Serve) -> None:
        self.measuring = False
        self._serve_measure = serve_measure
        limits = GateLimits(
            pending=MAX_PENDING,
            pending_per_address=MAX_PENDING_PER_ADDRESS,
            grace=EVICTION_SECONDS,
            burst=MAX_STRANGERS_PER_ADDRESS,
        )
        self._gate = ConnectionGate(limits, self._attend, note_error=self._note_error)
        self._errors: dict[str, None] = {}
        self._visits = 0
        self._measured = 0.0
        """Visits of those who measure a link: how many there are, and the seconds of all."""
        self._run = ""
        self._node = -1

    @property
    def errors(self) -> tuple[str, ...]:
        """Why visitors could not be let in, in the system's words."""
        return tuple(self._errors)

    async def open(
        self, places: Mapping[str, str], run: str, node: int, port_range: tuple[int, int], number: int
    ) -> Opened:
        """Listen at each address (kind to address): for "route" on `number` ports, spread over the ephemeral range, so that
        a filter which blocks a part of it shows; else on one that the kernel chooses, as NCCL and gloo do.
        """
        self._run, self._node = run, node
        opened: list[ListenAddress] = []
        errors: list[str] = []
        for kind, address in places.items():
            ports = []
            for wanted in _parts(port_range, number) if kind == "route" else (None,):
                try:
                    ports.append(self._listen(address, wanted))
                except OSError as error:
                    # NCCL and gloo would fail there as well; that is no trouble of the way to the others.
                    if kind == "route":
                        errors.append(f"{address}: {error.strerror or error}")
            if ports:
                opened.append(ListenAddress(kind, address, tuple(ports)))
        return Opened(places=tuple(opened), errors=tuple(dict.fromkeys(errors)))

    async def close(self) -> None:
        """End the listeners, and the visits that still go on."""
        await self._gate.close_all()

    def _listen(self, address: str, wanted: tuple[int, int] | None) -> int:
        """Listen on a port in that range, or one that the kernel chooses.

        Raises:
            OSError: it can't.
        """
        family, _ = numeric_name(address, 0)
        own = socket.socket(family, socket.SOCK_STREAM)
        try:
            _bind(own, address, wanted)
            own.listen(BACKLOG)
            own.setblocking(False)
        except BaseException:
            own.close()
            raise
        self._gate.watch(own)
        return int(own.getsockname()[1])

    def _note_error(self, error: OSError) -> None:
        if error.errno in TROUBLES:
            self._errors[os.strerror(error.errno)] = None

    async def _attend(self, connection: socket.socket, address: str) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                await self._serve(reader, writer)
            finally:
                writer.transport.abort()
        except (OSError, EOFError, PeerHandshakeError):
            pass  # Whoever it was, it is gone, or has no business here.
        finally:
            connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, purpose = await accept_peer(reader, writer, self._run, self._node)
        self._gate.admit()
        if purpose == MEASURE and self.measuring and self._measured < MEASURING_SECONDS:
            await self._serve_measured(reader, writer)
        elif purpose == REACH:
            await within(LARGE_MESSAGE_SECONDS, reader.readexactly(LARGE_MESSAGE_BYTES))
            writer.write(ARRIVED)
            await writer.drain()
            # It hangs up; what it says instead is kept nowhere.
            await within(LARGE_MESSAGE_SECONDS, reader.read(1))

    async def _serve_measured(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._visits >= MAX_MEASUREMENTS:
            return
        self._visits += 1
        began = time.monotonic()
        try:
            await self._serve_measure(reader, writer)
        finally:
            self._visits -= 1
            self._measured += time.monotonic() - began


def _parts(port_range: tuple[int, int], number: int) -> Iterator[tuple[int, int]]:
    low, high = port_range
    size = max(high - low + 1, number)
    for part in range(number):
        yield low + size * part // number, low + size * (part + 1) // number - 1


def _bind(own: socket.socket, address: str, wanted: tuple[int, int] | None) -> None:
    if wanted is None:
        own.bind(numeric_name(address, 0)[1])
        return
    reserved = _reserved_ports()
    free = [port for port in range(wanted[0], wanted[1] + 1) if not any(a <= port <= b for a, b in reserved)]
    candidates = random.sample(free, min(MAX_PORT_TRIES, len(free)))
    for port in candidates[:-1]:
        try:
            own.bind(numeric_name(address, port)[1])
        except OSError:
            continue
        return
    own.bind(numeric_name(address, candidates[-1] if candidates else wanted[0])[1])


def _reserved_ports() -> list[tuple[int, int]]:
    """The ranges that the administrator keeps for servers of their own."""
    try:
        parts = [span.partition("-") for span in RESERVED.read_text().strip().split(",") if span]
        return [(int(first), int(last or first)) for first, _, last in parts]
    except (OSError, ValueError):
        return []
