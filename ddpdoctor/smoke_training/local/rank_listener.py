"""The doctor's ears: the engine and each rank have a line for messages and one for all that they print."""

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

MOST_MESSAGE: Final = 64 * 1024
MOST_HEAD: Final = 4096
"""Bytes in which a process says whose output it is."""

Take = Callable[[socket.socket], Coroutine[Any, Any, None]]


class RankListener:
    """Hears what the processes of one run say, and tells the watch. Abstract sockets: no file is needed, and none is left."""

    def __init__(self, watch: RankMonitor, news: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """news: called whenever the watch has heard something. failed: with what one of us raised, which is a bug."""
        self.channel = f"ddpdoctor-smoke-{secrets.token_hex(16)}"
        self._watch = watch
        self._news = news
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._most_lines = 8 * len(watch.ranks) + 32

    def open(self) -> None:
        """From now on they can call."""
        listeners = (
            (self.channel, socket.SOCK_SEQPACKET, self._take_messages),
            (f"{self.channel}-output", socket.SOCK_STREAM, self._take_output),
        )
        for name, kind, take in listeners:
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind("\0" + name)
            listener.listen(1024)
            listener.setblocking(False)
            self._spawn(self._accept(listener, take))

    async def close(self) -> None:
        """Nothing is heard any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _accept(self, listener: socket.socket, take: Take) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    one, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(0.1)  # As when there are too many open files.
                    continue
                one.setblocking(False)
                if _credentials(one)[1] != os.geteuid() or len(self._tasks) > self._most_lines:
                    one.close()
                    continue
                self._spawn(take(one))

    async def _take_messages(self, one: socket.socket) -> None:
        who: object = None
        pid = _credentials(one)[0]
        latest = self._watch.began
        with one:
            while packet := await _received(one, MOST_MESSAGE):
                message = _decoded(packet)
                latest = self._moment(message, latest)
                if who is None:
                    who = self._introduced(message.get("who"), pid)
                if who == "engine":
                    if "stage" in message:
                        self._watch.engine_pid = pid
                    self._watch.hear_engine(message)
                elif who == "server":
                    self._watch.server_pid = pid
                    self._watch.hear_server(message, latest)
                elif isinstance(who, int):
                    self._watch.hear(who, message, latest)
                self._news()
                await asyncio.sleep(0)  # Whoever says very much must not keep the others from being heard.
        if isinstance(who, int):
            self._watch.gone(who, time.monotonic())
        elif who == "server":
            self._watch.server_gone()
        self._news()

    def _introduced(self, who: object, pid: int) -> object:
        """Who it is from now on: a rank, "engine", "server", or "" for nobody whom we know."""
        if isinstance(who, int) and not isinstance(who, bool):
            return who if self._watch.introduced(who, pid) else ""
        return who if isinstance(who, str) else ""

    def _moment(self, message: Mapping[str, Any], latest: float) -> float:
        """When it was said: we may be late to hear it. Told as before what was said before, or in the future, it isn't by our
        clock (as in another time namespace), and we have nothing but our own ears."""
        now, at = time.monotonic(), message.get("at")
        return at if isinstance(at, float) and latest <= at <= now else now

    async def _take_output(self, one: socket.socket) -> None:
        head = b""
        with one:
            while b"\n" not in head and len(head) < MOST_HEAD:
                text = await _received(one, MOST_HEAD)
                if not text:
                    return
                head += text
            line, _, rest = head.partition(b"\n")
            who = _decoded(line).get("who")
            rank = who if isinstance(who, int) else None
            self._watch.print(rank, rest)
            while text := await _received(one, 65536):
                self._watch.print(rank, text)
                await asyncio.sleep(0)


async def _received(one: socket.socket, most: int) -> bytes:
    """b"" at its end, whatever that is."""
    with suppress(OSError):
        return await asyncio.get_running_loop().sock_recv(one, most)
    return b""


def _decoded(packet: bytes) -> Mapping[str, Any]:
    """Empty where it isn't a JSON object."""
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _credentials(one: socket.socket) -> tuple[int, int]:
    """The pid and the user of the other side, from the kernel."""
    pid, uid, _ = struct.unpack("iII", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
