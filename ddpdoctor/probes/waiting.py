"""Waits for what may hang in the kernel, as a dead file system or a resolver does. The thread that asked is then left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ddpdoctor.base.unknown import Unknown

T = TypeVar("T")
D = TypeVar("D")


class ThreadedCall(Generic[T]):
    """A call in a thread of its own, which may never come back."""

    def __init__(self, call: Callable[[], T], seconds: float) -> None:
        self._call = call
        self._results: list[T] = []
        self._failure: Exception | None = None
        self._until = time.monotonic() + seconds
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as failure:
            self._failure = failure

    def result(self, otherwise: D) -> T | D:
        """Return or raise what the call does; `otherwise` where that takes longer than it may."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._failure:
            raise self._failure
        return self._results[0] if self._results else otherwise


def within(seconds: float, make: Callable[[], T]) -> T | Unknown:
    """Return what `make()` reads from files, unless their file system takes too long, or forbids it."""
    try:
        return ThreadedCall(make, seconds).result(Unknown(f"the file system did not answer within {seconds:.0f} s"))
    except OSError as error:
        return Unknown(error.strerror or str(error))
