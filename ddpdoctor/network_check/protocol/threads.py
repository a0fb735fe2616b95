"""Waiting for something that blocks, in a thread that can't keep us from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


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
