"""Waiting for something for so long and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, what: Awaitable[T]) -> T:
    """What it gives or raises. It is cancelled when the time is up.

    Not asyncio.wait_for: before Python 3.12 that loses a cancellation which comes just as `what` ends, and who was to end
    goes on for ever.

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
