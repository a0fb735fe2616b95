"""Where a node listens for its peers while they find out who reaches whom."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ddpdoctor.netcheck.messages import Opened, Place
from ddpdoctor.netcheck.visits import MEASURE, REACH, VisitError, receive, resolved, within

LARGE: Final = 64 * 1024
"""Bytes of the large message: more than one packet of any MTU."""

ARRIVED: Final = b"arrived\n"
"""What the listener answers to a large message that it has whole."""

AT_ONCE: Final = 256
"""Visitors who are let in at a time; the others wait in the kernel's queue."""

QUEUE: Final = 1024
SECONDS: Final = 30.0
"""How long a visitor may take over the large message: longer than any dialler waits."""

TRIES: Final = 50
RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listeners:
    """This node's listeners. `serve_measure` talks to the visitors who measure a link."""

    def __init__(self, serve_measure: Serve) -> None:
        self._serve_measure = serve_measure
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._run = ""
        self._node = -1

    async def open(self, places: Mapping[str, str], run: str, node: int, port_range: tuple[int, int]) -> Opened:
        """Listens at each address (kind to address): for "route" on three ports, one in each third of the ephemeral
        range, so that a filter which blocks a part of it shows; else on one that the kernel chooses, as NCCL and gloo do.
        """
        self._run, self._node = run, node
        opened: list[Place] = []
        errors: list[str] = []
        for kind, address in places.items():
            ports = []
            for wanted in _thirds(port_range) if kind == "route" else (None,):
                try:
                    ports.append(self._listen(address, wanted))
                except OSError as error:
                    errors.append(f"{address}: {error.strerror or error}")
            if ports:
                opened.append(Place(kind, address, tuple(ports)))
        return Opened(places=tuple(opened), errors=tuple(dict.fromkeys(errors)))

    async def close(self) -> None:
        """Ends the listeners, and the visits that still go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def _listen(self, address: str, wanted: tuple[int, int] | None) -> int:
        """Listens on a port in that range, or one that the kernel chooses.

        Raises:
            OSError: it can't.
        """
        family, _ = resolved(address, 0)
        own = socket.socket(family, socket.SOCK_STREAM)
        try:
            _bind(own, address, wanted)
            own.listen(QUEUE)
            own.setblocking(False)
        except BaseException:
            own.close()
            raise
        self._sockets.append(own)
        self._start(self._accept(own))
        return int(own.getsockname()[1])

    def _start(self, what: Awaitable[None]) -> None:
        task = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, own: socket.socket) -> None:
        while True:
            await self._room.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(own)
            except OSError:  # A visitor that was gone already, or no file descriptors for a moment.
                self._room.release()
                await asyncio.sleep(0.05)
                continue
            self._start(self._attend(connection))

    async def _attend(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                await self._serve(reader, writer)
            finally:
                writer.transport.abort()
        except (OSError, EOFError, VisitError):
            pass  # Whoever it was, it is gone, or has no business here.
        finally:
            connection.close()
            self._room.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, purpose = await receive(reader, writer, self._run, self._node)
        if purpose == MEASURE:
            await self._serve_measure(reader, writer)
        elif purpose == REACH:
            await within(SECONDS, reader.readexactly(LARGE))
            writer.write(ARRIVED)
            await writer.drain()
            await within(SECONDS, reader.read())


def _thirds(port_range: tuple[int, int]) -> Iterator[tuple[int, int]]:
    low, high = port_range
    size = max(high - low + 1, 3)
    for part in range(3):
        yield low + size * part // 3, low + size * (part + 1) // 3 - 1


def _bind(own: socket.socket, address: str, wanted: tuple[int, int] | None) -> None:
    if wanted is None:
        own.bind(resolved(address, 0)[1])
        return
    reserved = _reserved_ports()
    free = [port for port in range(wanted[0], wanted[1] + 1) if not any(a <= port <= b for a, b in reserved)]
    candidates = random.sample(free, min(TRIES, len(free)))
    for port in candidates[:-1]:
        try:
            own.bind(resolved(address, port)[1])
        except OSError:
            continue
        return
    own.bind(resolved(address, candidates[-1] if candidates else wanted[0])[1])


def _reserved_ports() -> list[tuple[int, int]]:
    """The ranges that the administrator keeps for servers of their own."""
    try:
        parts = [one.partition("-") for one in RESERVED.read_text().strip().split(",") if one]
        return [(int(first), int(last or first)) for first, _, last in parts]
    except (OSError, ValueError):
        return []
