"""A gate that accepts the connections of listening sockets, and bounds those that haven't shown yet that they belong here."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

import msgspec

MAX_ADDRESSES: Final = 1024
"""Addresses of strangers that are remembered."""

POLL_SECONDS: Final = 0.05


class GateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of pending connections, and of the strangers of one address that are listened to."""

    pending: int
    """At a time; the others wait in the kernel's queue."""
    grace: float
    """Seconds that each has before it must make room for another."""
    burst: int
    """Strangers of one address, before it isn't listened to any more."""
    refill: float = 0.0
    """As many more each second."""
    pending_per_address: int | None = None
    """More of one address are turned away, so that nobody fills the room; None: they wait like all others."""


class _Pending(NamedTuple):
    address: str
    since: float
    """By the event loop's clock."""


class StrangerAllowance:
    """The strangers of each address, counted against the limits."""

    def __init__(self, limits: GateLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """Address to what it had left, and when; the latest address last."""

    def spend(self, address: str) -> None:
        left = self._left_of(address)
        self._left.pop(address, None)
        if len(self._left) >= MAX_ADDRESSES:
            del self._left[next(iter(self._left))]
        self._left[address] = (max(0.0, left - 1), self._clock())

    def is_spent(self, address: str) -> bool:
        return address in self._left and self._left_of(address) < 1

    def _left_of(self, address: str) -> float:
        left, when = self._left.get(address, (float(self._limits.burst), self._clock()))
        return min(float(self._limits.burst), left + (self._clock() - when) * self._limits.refill)


class ConnectionGate:
    """The connections of one or several listening sockets, each in a task of its own, until they end.

    Args:
        limits: of number and time.
        attend: serves one connection from that address to its end, and closes it. It calls `admit` as soon as the other end
            has shown that it belongs here; one that ends before was a stranger.
        note_eviction: takes the address of a connection that has to make room for another.
        note_error: takes why none could be accepted.
    """

    def __init__(
        self,
        limits: GateLimits,
        attend: Callable[[socket.socket, str], Coroutine[Any, Any, None]],
        note_eviction: Callable[[str], None] = lambda address: None,
        note_error: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.allowance = StrangerAllowance(limits)
        self._limits = limits
        self._attend = attend
        self._note_eviction = note_eviction
        self._note_error = note_error
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._pending: dict[asyncio.Task[None], _Pending] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, listening: socket.socket) -> None:
        """Accept what comes at that socket, which is ours from now on."""
        self._sockets.append(listening)
        self._accepting.append(asyncio.create_task(self._accept(listening)))

    def admit(self) -> None:
        """The connection of the current task belongs here."""
        task = asyncio.current_task()
        assert task is not None
        self._pending.pop(task, None)

    async def close(self) -> None:
        """Listen no more, and end the connections that are pending. Those that were admitted stay."""
        await _end(self._accepting)
        for listening in self._sockets:
            listening.close()
        self._accepting, self._sockets = [], []
        await _end(self._pending)

    async def close_all(self) -> None:
        """Listen no more, and end all connections."""
        await self.close()
        await _end(self._tasks)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, name = await loop.sock_accept(listening)
            except OSError as error:
                # It went away again before we got to it, or this process has no descriptor left.
                self._note_error(error)
                await asyncio.sleep(POLL_SECONDS)
                continue
            address = str(name[0])
            if self._is_refused(address):
                connection.close()
            else:
                try:
                    await self._make_room()
                except asyncio.CancelledError:
                    connection.close()
                    raise
                task = asyncio.create_task(self._attend(connection, address))
                self._pending[task] = _Pending(address, loop.time())
                self._tasks.add(task)
                task.add_done_callback(self._end_of)
            # Where others wait already, accepting gives way to nobody: a flood would keep the loop here.
            await asyncio.sleep(0)

    def _is_refused(self, address: str) -> bool:
        """Whether so many from there have shown nothing, or have yet to, that one more isn't listened to."""
        waiting = sum(pending.address == address for pending in self._pending.values())
        limit = self._limits.pending_per_address
        return (limit is not None and waiting >= limit) or self.allowance.is_spent(address)

    async def _make_room(self) -> None:
        """Wait until one more may be pending. Of the address that has most of them here, the oldest must go; while that is too
        young, the oldest of another that has half as many at the least."""
        while len(self._pending) >= self._limits.pending:
            if (evicted := self._oldest_of_a_crowd()) is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            address = self._pending[evicted].address
            self._forget(evicted)
            evicted.cancel()
            self._note_eviction(address)

    def _oldest_of_a_crowd(self) -> asyncio.Task[None] | None:
        now = asyncio.get_running_loop().time()
        crowds = Counter(pending.address for pending in self._pending.values()).most_common()
        for crowd, count in crowds:
            if 2 * count < crowds[0][1]:
                return None
            task, oldest = next(item for item in self._pending.items() if item[1].address == crowd)
            if now - oldest.since >= self._limits.grace:
                return task
        return None

    def _end_of(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._forget(task)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Count the connection as a stranger's, unless it was admitted."""
        if stranger := self._pending.pop(task, None):
            self.allowance.spend(stranger.address)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
