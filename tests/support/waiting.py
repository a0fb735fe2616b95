"""Waits of tests that end as soon as they can, and bounds in seconds for what a busy machine keeps from a core."""

from __future__ import annotations

import time
from collections.abc import Callable


def slowdown() -> float:
    """How many times as long work takes just now as on a core of its own."""
    began, spent = time.monotonic(), time.thread_time()
    while time.thread_time() - spent < 0.05:
        pass
    return max(1.0, (time.monotonic() - began) / (time.thread_time() - spent))


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    """Wait until that is so. seconds: after which it should have been, on a core of its own."""
    began, slow = time.monotonic(), slowdown()
    while not what():
        if time.monotonic() - began > seconds * slow:
            slow = max(slow, slowdown())
            assert time.monotonic() - began < seconds * slow, "it didn't come"
        time.sleep(0.02)
