"""Bounds what reading /proc costs: by user, so that whoever starts thousands of processes, or fills their environments and tables of
open files, hides his own facts alone; and by process, since of one that hangs in the kernel the command line can't be read, and whoever
tries hangs as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Spared
from ddpdoctor.probes.proc import Proc

T = TypeVar("T")
D = TypeVar("D")

MAX_SECONDS_OF_A_USER = 6.0
"""For reading what /proc tells of his processes, in all."""
MAX_BYTES_OF_A_USER = 32 << 20
"""Of their environments, in all: a rank's has some KiB."""
MAX_PROCESSES_OF_A_USER = 2000
"""That are looked into closely: a rank has some dozens of workers at most, a host a dozen GPUs."""
PATIENCE = 0.5
"""Seconds for the first process that doesn't answer; for each further one less, since they all hang alike."""
SPARED = Unknown("it is one of more processes of its user than are looked into")


class Shares:
    """What each user's processes have taken so far."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._owners: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._bytes: dict[int, int] = {}
        self._spared: dict[int, set[int]] = {}

    def owner(self, pid: int) -> int:
        """The user id; -1 of a process that is gone."""
        if pid not in self._owners:
            self._owners[pid] = self._proc.owner(pid)
        return self._owners[pid]

    def look(self, pid: int, look: Callable[[], T], otherwise: D) -> T | D:
        """What `look()` gives, as long as the time of the process's user lasts."""
        uid = self.owner(pid)
        if self._seconds.get(uid, 0.0) > MAX_SECONDS_OF_A_USER:
            self._spare(pid)
            return otherwise
        start = time.monotonic()
        try:
            return look()
        finally:
            self._seconds[uid] = self._seconds.get(uid, 0.0) + time.monotonic() - start

    def kept(self, pid: int, content: bytes | Unknown) -> bytes | Unknown:
        """The same, as long as there is room for what is kept of its user's processes."""
        if isinstance(content, Unknown):
            return content
        uid = self.owner(pid)
        self._bytes[uid] = self._bytes.get(uid, 0) + len(content)
        if self._bytes[uid] > MAX_BYTES_OF_A_USER:
            self._spare(pid)
            return SPARED
        return content

    def first_of_each(self, pids: Iterable[int]) -> Collection[int]:
        """So many of each user's as may be looked into closely, the first of them."""
        count: dict[int, int] = {}
        chosen: dict[int, None] = {}
        for pid in pids:
            uid = self.owner(pid)
            count[uid] = count.get(uid, 0) + 1
            if count[uid] <= MAX_PROCESSES_OF_A_USER:
                chosen[pid] = None
            else:
                self._spare(pid)
        return chosen.keys()

    def _spare(self, pid: int) -> None:
        self._spared.setdefault(self.owner(pid), set()).add(pid)

    def spared(self, name_of: Callable[[int], str]) -> tuple[Spared, ...]:
        """Of whose processes not all were looked into."""
        return tuple(
            Spared(uid=uid, user=name_of(uid), count=len(pids))
            for uid, pids in sorted(self._spared.items())
            if uid >= 0
        )


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
