"""Receives what the processes of a run send: the engine and each rank have a socket for messages, and one for all that they print."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor

MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_HEADER_BYTES: Final = 4096
"""Bytes of the line in which a process says whose output it is."""

Handler = Callable[[socket.socket], Coroutine[Any, Any, None]]


class RankListener:
    """Passes on what the processes of one run send. Abstract sockets: no file is needed, and none is left."""

    def __init__(
        self, monitor: RankMonitor, on_news: Callable[[], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """Prepare, without listening yet.

        Args:
            monitor: is given each message, each piece of output, and the end of each connection.
            on_news: called whenever the monitor has got something.
            on_error: called with what a task in here raised, which is a bug.
        """
        self.channel = f"ddpdoctor-smoke-{secrets.token_hex(16)}"
        self._monitor = monitor
        self._on_news = on_news
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[int, socket.socket] = {}
        """By rank."""
        self._max_connections = 8 * len(monitor.ranks) + 32

    def open(self) -> None:
        """Accept connections from now on."""
        listeners = (
            (self.channel, socket.SOCK_SEQPACKET, self._take_messages),
            (f"{self.channel}-output", socket.SOCK_STREAM, self._take_output),
        )
        for name, kind, handle in listeners:
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind("\0" + name)
            listener.listen(1024)
            listener.setblocking(False)
            self._spawn(self._accept(listener, handle))

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ask_to_end(self) -> None:
        """Ask each rank to end what would go on for long. One that is gone needs no asking."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.send(b"e")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def _accept(self, listener: socket.socket, handle: Handler) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(0.1)  # As when there are too many open files.
                    continue
                connection.setblocking(False)
                if _credentials(connection)[1] != os.geteuid() or len(self._tasks) > self._max_connections:
                    connection.close()
                    continue
                self._spawn(handle(connection))

    async def _take_messages(self, connection: socket.socket) -> None:
        who: object = None
        pid = _credentials(connection)[0]
        latest = self._monitor.began
        with connection:
            while packet := await _received(connection, MAX_MESSAGE_BYTES):
                message = _decoded(packet)
                latest = self._moment_of(message, latest)
                if who is None:
                    who = self._identify(message.get("who"), pid)
                    if isinstance(who, int):
                        self._connections[who] = connection
                if who == "engine":
                    if "stage" in message:
                        self._monitor.engine_pid = pid
                    self._monitor.take_engine_message(message)
                elif who == "server":
                    self._monitor.server_pid = pid
                    self._monitor.take_server_message(message, latest)
                elif isinstance(who, int):
                    self._monitor.take_rank_message(who, message, latest)
                self._on_news()
                await asyncio.sleep(0)  # Whoever sends very much must not keep the others waiting.
        if isinstance(who, int):
            self._connections.pop(who, None)
            self._monitor.note_disconnect(who, time.monotonic())
        elif who == "server":
            self._monitor.note_server_end()
        self._on_news()

    def _identify(self, who: object, pid: int) -> object:
        """The sender's role from now on: a rank, "engine", "server", or "" for none of them."""
        if isinstance(who, int) and not isinstance(who, bool):
            return who if self._monitor.introduce(who, pid) else ""
        return who if isinstance(who, str) else ""

    def _moment_of(self, message: Mapping[str, Any], latest: float) -> float:
        """The moment when a message was sent: this process may be late to read it. Where the sender's moment lies before that of
        its last message, or in the future, it isn't by our clock (as in another time namespace), and ours counts."""
        now, at = time.monotonic(), message.get("at")
        return at if isinstance(at, float) and latest <= at <= now else now

    async def _take_output(self, connection: socket.socket) -> None:
        head = b""
        with connection:
            while b"\n" not in head and len(head) < MAX_HEADER_BYTES:
                text = await _received(connection, MAX_HEADER_BYTES)
                if not text:
                    return
                head += text
            line, _, rest = head.partition(b"\n")
            who = _decoded(line).get("who")
            rank = who if isinstance(who, int) else None
            self._monitor.add_output(rank, rest)
            while text := await _received(connection, 65536):
                self._monitor.add_output(rank, text)
                await asyncio.sleep(0)


async def _received(connection: socket.socket, most: int) -> bytes:
    """Receive what is there, of at most so many bytes; b"" at the end, whatever that is."""
    with suppress(OSError):
        return await asyncio.get_running_loop().sock_recv(connection, most)
    return b""


def _decoded(packet: bytes) -> Mapping[str, Any]:
    """The message; empty where it isn't a JSON object."""
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user of the other side, from the kernel."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
