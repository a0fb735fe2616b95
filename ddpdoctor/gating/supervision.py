"""Ends a gate in time whatever hangs: the work is done by a child, and its parent answers without a verdict where that doesn't.

The parent asks the host for nothing but its own age, so nothing that a sick node does can hold it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from ddpdoctor.base.text import signal_name

END_SECONDS: Final = 2.0
"""Time for the child to end what it has started, before it is killed."""
ALARM_SECONDS: Final = END_SECONDS + 2.0
"""After the time is up: for the child's end, and for the answer to be written."""


class LostChildError(Exception):
    """The child has ended without an answer; the text says how."""


def seconds_since_start() -> float:
    """Seconds for which this process has run, loading its modules included; 0.0 where the kernel doesn't say."""
    try:
        start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


@contextmanager
def last_resort(until: float, code: int) -> Iterator[None]:
    """End this process with that code if it hasn't left by then (monotonic clock), as where nobody reads what it writes."""

    def end(number: int, frame: object) -> NoReturn:
        os._exit(code)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, until - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def do_in_child(work: Callable[[], bytes], end: Callable[[], None], until: float) -> bytes | None:
    """Do the work in a child process, which is ended if it takes too long.

    Args:
        work: gives the answer.
        end: ends whatever the work has started.
        until: by the monotonic clock.
    Returns:
        The answer; None where there is none in time.
    Raises:
        LostChildError: the child ended before it could answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, end, writing)
    os.close(writing)
    try:
        answer = _read(reading, until)
    finally:
        os.close(reading)
        code = _end(child)
    if answer == b"":
        raise LostChildError(_describe_end(code))
    return answer


def _work(work: Callable[[], bytes], end: Callable[[], None], writing: int) -> NoReturn:
    """In the child: hand the answer over, and never come back."""
    # What a library prints is no part of the answer.
    os.dup2(2, 1)
    code = 1
    try:
        answer = memoryview(work())
        while answer:
            answer = answer[os.write(writing, answer) :]
        code = 0
    finally:
        # Also when a signal has raised something: a traceback helps nobody, and the parent's code must not run twice.
        with suppress(BaseException):
            end()
        os._exit(code)


def _read(reading: int, until: float) -> bytes | None:
    """All that the child writes; None where that takes too long."""
    chunks: list[bytes] = []
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        if not (chunk := os.read(reading, 65536)):
            return b"".join(chunks)
        chunks.append(chunk)
    return None


def _end(child: int) -> int | None:
    """Let it end what it has started, then kill it. One that hangs in the kernel isn't waited for.

    Returns:
        Its exit code, negative for a signal; None where it hasn't ended.
    """
    code = _wait(child, 0.0)
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, 0.2)):
        if code is None:
            with suppress(ProcessLookupError):
                os.kill(child, number)
            code = _wait(child, seconds)
    return code


def _wait(child: int, seconds: float) -> int | None:
    until, pause = time.monotonic() + seconds, 0.002
    while True:
        try:
            ended, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            # Who started this ignores SIGCHLD: nobody is told how it ended.
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(pause)
        # Hundreds that are started at once wait at once, too.
        pause = min(2 * pause, 0.1)


def _describe_end(code: int | None) -> str:
    if not code:
        return "gave no answer"
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
