"""Asynchronous work that ends when its time is up or when a signal comes, and that doesn't wait for a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ddpdoctor.base.signals import StoppedBySignal, ignore_signals, signals_taken_over, stop_on_signals

T = TypeVar("T")

LAUNCHER_SECONDS = 1.0
"""Between two looks whether the launcher lives."""
IMPATIENT_SECONDS = 5.0
"""A second signal that comes so soon behind one for which the work is ending anyway is but impatience."""


async def within(seconds: float, what: Awaitable[T]) -> T:
    """Return or raise what the awaitable does, and cancel it when the time is up.

    Not asyncio.wait_for: before Python 3.12 that loses a cancellation which comes just as `what` ends, and the task that was
    to end goes on for ever.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(what)
    try:
        done, _ = await asyncio.wait((task,), timeout=max(seconds, 0.0))
        if not done:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        with suppress(asyncio.CancelledError):
            # Nobody else may ask for it, and asyncio complains of an exception that nobody saw.
            task.exception()


async def until_stopped(
    work: Coroutine[Any, Any, T],
    describe_end: Callable[[], str],
    launcher: int = 0,
    ends_early: Callable[[int], bool] = lambda number: False,
) -> T:
    """Return the result of the work, which a signal ends cleanly: an exception out of a signal's handler would hit whatever task runs.

    On a signal the work is cancelled (the message says by whom), and what it then does to end is awaited; an impatient second
    signal doesn't break into that. In a program that calls us signals are its own.

    Args:
        work: ends soon after it is cancelled.
        describe_end: gives the sentence for the user, which is true once the work has ended.
        launcher: the pid of this process's parent, if its end is to be taken for a SIGTERM: one that is killed may leave its
            ranks behind.
        ends_early: is told the number of the first signal before anything is cancelled; True where the work will come to its end soon for it,
            with a result. The next signal cancels, unless it comes within IMPATIENT_SECONDS.

    It raises `StoppedBySignal` where a signal has come before the work was done.

    Raises:
        asyncio.CancelledError: somebody else has cancelled it.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []
    orphaned = False
    ending_since: float | None = None

    def stop(number: int, by: str = "") -> None:
        nonlocal ending_since
        now = time.monotonic()
        if not by and not received and ending_since is None and ends_early(number):
            ending_since = now
        if ending_since is not None and now - ending_since < IMPATIENT_SECONDS and not by:
            return
        received.append(number)
        if len(received) == 1:
            task.cancel(by or ("its user: Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name))

    def watch_launcher() -> None:
        nonlocal orphaned
        if os.getppid() == launcher:
            loop.call_later(LAUNCHER_SECONDS, watch_launcher)
        elif not received and not task.done():
            orphaned = True
            stop(signal.SIGTERM, "the end of its launcher")

    if launcher:
        watch_launcher()
    handled = signals_taken_over()
    for number in handled:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        stopped = StoppedBySignal(128 + received[0])
        stopped.text = f"The launcher (pid {launcher}) is gone; the ranks were ended." if orphaned else describe_end()
        raise stopped from None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        if handled:
            (ignore_signals if received or ending_since is not None else stop_on_signals)()


async def in_thread(call: Callable[[], T]) -> T:
    """Return or raise what `call()` does. The thread is a daemon: asyncio's own would be waited for at the end, and a dead name
    server or a hung driver keeps its caller for many seconds."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # The loop has been closed meanwhile.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await future
