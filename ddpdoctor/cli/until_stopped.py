"""Asynchronous work that a signal ends cleanly: an exception out of a signal's handler would hit whatever task runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ddpdoctor.cli.stopping import SIGNALS, Stopped, ignore_signals, stop_on_signals

T = TypeVar("T")


async def until_stopped(work: Coroutine[Any, Any, T], said: Callable[[], str]) -> T:
    """Its result. On a signal it is cancelled (the message says by whom), and what it then does to end is awaited; an
    impatient second signal doesn't break into that.

    said: the sentence for the user, which is true once the work has ended.

    Raises:
        Stopped: a signal has come before the work was done.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel("its user: Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        stopped = Stopped(128 + received[0])
        stopped.text = said()
        raise stopped from None
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        (ignore_signals if received else stop_on_signals)()
