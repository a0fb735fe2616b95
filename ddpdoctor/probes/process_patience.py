"""Reads of /proc that may never return: of a process whose memory the kernel holds locked while it hangs, its command line and
its environment can't be read, and whoever tries hangs as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds for the first process that doesn't answer; for each further one less, since they all hang alike."""


def of_each(pids: Iterable[int], look: Callable[[int], T]) -> dict[int, T]:
    """What `look(pid)` gives, without those that didn't answer. Each of these costs a thread, which stays in the kernel."""
    return _Round(pids, look).results()


class _Round(Generic[T]):
    def __init__(self, pids: Iterable[int], look: Callable[[int], T]) -> None:
        self._pids = iter(pids)
        self._look = look
        self._found: dict[int, T] = {}
        self._left_behind = 0
        self._since = time.monotonic()
        self._failure: BaseException | None = None
        self._done = threading.Event()

    def results(self) -> dict[int, T]:
        self._start()
        while not self._done.wait(PATIENCE / 10 / (1 + self._left_behind)):
            if time.monotonic() - self._since > PATIENCE / (1 + self._left_behind):
                self._left_behind += 1
                self._start()
        if self._failure:
            raise self._failure
        return dict(self._found)

    def _start(self) -> None:
        self._since = time.monotonic()
        threading.Thread(target=self._work, args=(self._left_behind,), daemon=True).start()

    def _work(self, number: int) -> None:
        """number: how many were left behind before; another one in between means that this is one of them."""
        try:
            for pid in self._pids:
                self._since = time.monotonic()
                self._found[pid] = self._look(pid)
                if number != self._left_behind:
                    return
        except Exception as failure:
            self._failure = failure
        self._done.set()
