"""Asynchronous work that a signal ends cleanly: an exception out of a signal's handler would hit whatever task runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ddpdoctor.base.signals import StoppedBySignal, ignore_signals, stop_on_signals, taken_over

T = TypeVar("T")

LOOK_SECONDS = 1.0


async def until_stopped(work: Coroutine[Any, Any, T], said: Callable[[], str], launcher: int = 0) -> T:
    """Its result. On a signal it is cancelled (the message says by whom), and what it then does to end is awaited; an
    impatient second signal doesn't break into that. In a program that calls us signals are its own.

    said: the sentence for the user, which is true once the work has ended. launcher: the pid of this process's parent, if
    its end is to be taken for a SIGTERM: one that is killed may leave its ranks behind.

    Raises:
        Stopped: a signal has come before the work was done.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []
    orphaned = False

    def stop(number: int, by: str = "") -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel(by or ("its user: Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name))

    def look() -> None:
        nonlocal orphaned
        if os.getppid() == launcher:
            loop.call_later(LOOK_SECONDS, look)
        elif not received and not task.done():
            orphaned = True
            stop(signal.SIGTERM, "the end of its launcher")

    if launcher:
        look()
    awaited = taken_over()
    for number in awaited:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        stopped = StoppedBySignal(128 + received[0])
        stopped.text = f"The launcher (pid {launcher}) is gone; the ranks were ended." if orphaned else said()
        raise stopped from None
    finally:
        for number in awaited:
            loop.remove_signal_handler(number)
        if awaited:
            (ignore_signals if received else stop_on_signals)()
