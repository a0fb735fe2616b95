"""The relay: carries the command's output to where it goes, and keeps a copy of it.

Once the command has ended and its own words are through, what others still write waits until the supervisor has said its last
word and ended: it would come into the midst of the report.

It holds no more than one chunk of each stream, in shared memory, so that another relay can go on if this one is killed. A reader
that is slow slows the command, as it would without us; where nobody reads any more, the command is told so, too.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ddpdoctor.run.output_copy import WholeLines
from ddpdoctor.run.output_streams import CarriedStream
from ddpdoctor.run.shared_output import SharedOutput

IDLE_SECONDS: Final = 0.2
"""After which a stream that is still open at the command's end, and silent, belongs to a process that stays."""
LATE_SECONDS: Final = 1.0
"""For a process that stays and goes on printing, and beyond that until what the command may have printed is through."""
BUFFERED_BYTES: Final = 1 << 16
"""Bytes in a terminal of ours; a pipe tells."""
COMMAND_ENDED: Final = b"E"
"""The supervisor's word once the command has ended."""

Write = Callable[[memoryview], int]


class Relay:
    """The relay's work, in its process."""

    def __init__(
        self,
        streams: Sequence[CarriedStream],
        shared: SharedOutput,
        control: int,
        wake: Callable[[], None],
        *,
        copies: bool = True,
    ) -> None:
        """Begin, or go on where another relay was ended.

        Args:
            streams: to be carried.
            shared: the memory that survives this process.
            control: brings the supervisor's word that the command has ended, and the supervisor's own end.
            wake: tells the supervisor to look.
            copies: whether a copy is kept.
        """
        self._shared = shared
        self._control = control
        self._wake = wake
        self._copies = copies
        self._ended = self._alone = False
        self._late = math.inf
        self._lines = WholeLines(len(streams)) if len(streams) > 1 else None
        self._flows = {
            number: _Flow(number, stream, shared)
            for number, stream in enumerate(streams)
            if stream.source >= 0 and not shared.is_broken(number)
        }

    def carry(self) -> None:
        """Carry until all streams have ended, and the command, or the supervisor, too."""
        while self._flows or not (self._ended or self._alone):
            poll = select.poll()
            if not self._alone:
                poll.register(self._control, select.POLLIN)
            held = self._shared.is_drained and not self._alone
            for flow in () if held else self._flows.values():
                flow.register(poll)
            idle = (
                self._ended and not self._shared.is_drained and not any(flow.pending for flow in self._flows.values())
            )
            ready = dict(poll.poll(1000 * self._patience() if idle else None))
            if idle and (not ready or self._is_all_said(ready)):
                self._set_drained()
                continue
            if self._control in ready:
                self._take_word()
            for number, flow in () if held else list(self._flows.items()):
                self._serve(number, flow, ready)

    def _patience(self) -> float:
        """Seconds for which a silence must last, until a process that stays and goes on printing was carried for long enough."""
        return min(IDLE_SECONDS, max(0.0, self._late - time.monotonic()))

    def _is_all_said(self, ready: dict[int, int]) -> bool:
        """Whether nothing of the command itself can be left, though others never cease to print."""
        talking = [flow for flow in self._flows.values() if flow.source in ready]
        return not self._patience() and all(flow.since_the_end >= flow.capacity for flow in talking)

    def _set_drained(self) -> None:
        for number in self._flows if self._lines else ():
            # A line that the command has begun last.
            self._keep(self._lines.rest(number) if self._lines else b"")
        self._shared.set_drained()
        self._wake()

    def _take_word(self) -> None:
        self._alone = not os.read(self._control, 16)
        if not self._ended:
            self._late = time.monotonic() + LATE_SECONDS
            for flow in self._flows.values():
                flow.since_the_end = 0
        self._ended = True

    def _serve(self, number: int, flow: _Flow, ready: dict[int, int]) -> None:
        if ready.get(flow.destination, 0) & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self._give_up(number, flow)
            return
        try:
            if flow.pending:
                if flow.destination in ready:
                    flow.write()
                return
            if flow.source not in ready:
                return
            data = flow.read()
        except OSError:
            self._give_up(number, flow)
            return
        if data is None:
            return
        if not data:
            del self._flows[number]
            self._keep(self._lines.rest(number) if self._lines else b"")
            flow.close()
            return
        self._shared.note_output()
        self._keep(self._lines.add(number, data) if self._lines and self._copies else data)
        try:
            if flow.at_once:
                flow.write()
        except OSError:
            self._give_up(number, flow)

    def _keep(self, data: bytes | memoryview) -> None:
        if self._copies:
            self._shared.keep(data)

    def _give_up(self, number: int, flow: _Flow) -> None:
        """Close a stream that nobody reads any more: the next process that writes to it gets the error that it would get without us."""
        self._shared.set_broken(number)
        del self._flows[number]
        flow.close()
        self._wake()


class _Flow:
    """One stream: pending, whether a chunk is read and not wholly written; at_once, whether a write never waits; capacity, the bytes that
    may wait to be read; since_the_end, those that were read since the command ended."""

    def __init__(self, number: int, stream: CarriedStream, shared: SharedOutput) -> None:
        self.source = stream.source
        self._original = stream.destination
        self._number = number
        self._shared = shared
        self._buffer = shared.buffer(number)
        self._write, self.destination, self.at_once = _writer(stream.destination)
        begin, end = shared.under_way(number)
        self.pending = begin < end
        self.since_the_end = 0
        try:
            self.capacity = fcntl.fcntl(self.source, fcntl.F_GETPIPE_SZ)
        except OSError:
            self.capacity = BUFFERED_BYTES

    def register(self, poll: select.poll) -> None:
        """Wait for what it needs next; for the end of its reader always."""
        poll.register(self.destination, select.POLLOUT if self.pending else 0)
        if not self.pending:
            poll.register(self.source, select.POLLIN)

    def close(self) -> None:
        """Close all, so that a reader at the destination sees its end as soon as there is one."""
        for descriptor in {self.source, self.destination, self._original}:
            os.close(descriptor)

    def read(self) -> memoryview | None:
        """Read the next chunk; empty at the end, None where there is none yet.

        Raises:
            OSError: it can't be read.
        """
        try:
            count = os.readv(self.source, [self._buffer])
        except BlockingIOError:
            return None
        except OSError as error:
            # So a terminal tells that nobody has its other side open any more.
            if error.errno != errno.EIO:
                raise
            count = 0
        self._shared.set_under_way(self._number, 0, count)
        self.pending = count > 0
        self.since_the_end += count
        return self._buffer[:count]

    def write(self) -> None:
        """Write as much of the chunk as can be written without waiting."""
        begin, end = self._shared.under_way(self._number)
        try:
            while begin < end:
                most = end if self.at_once else begin + select.PIPE_BUF
                begin += self._write(self._buffer[begin : min(end, most)])
                self._shared.set_under_way(self._number, begin, end)
                if not self.at_once:
                    break
        except BlockingIOError:
            pass
        self.pending = begin < end


def _writer(descriptor: int) -> tuple[Write, int, bool]:
    """The function to write there, the descriptor to poll, and whether a write never waits.

    The descriptor's own flags stay as they are: others share them.
    """
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        # Here and not above: it takes milliseconds to load.
        import socket

        connection = socket.socket(fileno=os.dup(descriptor))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL), descriptor, True
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        own = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        # Not ours to open, as a terminal after su: a write may wait, but not for the few bytes that a poll has promised room for.
        return partial(os.write, descriptor), descriptor, False
    return partial(os.write, own), own, True
