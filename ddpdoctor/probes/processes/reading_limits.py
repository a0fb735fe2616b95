"""Limits what reading /proc costs: for each user, so that whoever starts thousands of processes, or fills their environments and tables
of open files, hides his own facts alone; and for each process, since of one that hangs in the kernel the command line can't be read, and
whoever tries hangs as well."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Spared
from ddpdoctor.probes.proc import Proc, user_name

T = TypeVar("T")
D = TypeVar("D")

MAX_SECONDS_OF_A_USER = 6.0
"""For reading what /proc tells of his processes, in all."""
MAX_BYTES_OF_A_USER = 32 << 20
"""Of their environments, in all: a rank's has some KiB."""
MAX_PROCESSES_OF_A_USER = 2000
"""That are looked into closely: a rank has some dozens of workers at most, a host a dozen GPUs."""
ANSWER_SECONDS = 0.5
"""For the first process that doesn't answer; for each further one less, since they all hang alike."""
OVER_LIMIT = Unknown("it is one of more processes of its user than are looked into")


class UserLimits:
    """Account of what each user's processes have taken so far."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._owners: dict[int, int] = {}
        self._seconds: dict[int, float] = defaultdict(float)
        self._bytes: Counter[int] = Counter()
        self._spared: dict[int, set[int]] = defaultdict(set)

    def _owner(self, pid: int) -> int:
        """The user id; -1 of a process that is gone."""
        if pid not in self._owners:
            self._owners[pid] = self._proc.owner(pid)
        return self._owners[pid]

    def read(self, pid: int, read: Callable[[], T], otherwise: D) -> T | D:
        """Return what `read()` gives, as long as the time of the process's user lasts."""
        uid = self._owner(pid)
        if self._seconds[uid] > MAX_SECONDS_OF_A_USER:
            self._spared[uid].add(pid)
            return otherwise
        start = time.monotonic()
        try:
            return read()
        finally:
            self._seconds[uid] += time.monotonic() - start

    def keep(self, pid: int, content: bytes | Unknown) -> bytes | Unknown:
        """Return the same, as long as there is room for what is kept of its user's processes."""
        if isinstance(content, Unknown):
            return content
        uid = self._owner(pid)
        self._bytes[uid] += len(content)
        if self._bytes[uid] > MAX_BYTES_OF_A_USER:
            self._spared[uid].add(pid)
            return OVER_LIMIT
        return content

    def first_of_each_user(self, pids: Iterable[int]) -> Collection[int]:
        """Choose so many of each user's as may be looked into closely, the first of them."""
        count: Counter[int] = Counter()
        chosen: dict[int, None] = {}
        for pid in pids:
            uid = self._owner(pid)
            count[uid] += 1
            if count[uid] <= MAX_PROCESSES_OF_A_USER:
                chosen[pid] = None
            else:
                self._spared[uid].add(pid)
        return chosen.keys()

    def spared(self) -> tuple[Spared, ...]:
        """List the users of whose processes not all were looked into."""
        return tuple(
            Spared(uid=uid, user=user_name(uid), count=len(pids))
            for uid, pids in sorted(self._spared.items())
            if uid >= 0
        )


def read_each(pids: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
    """Return what `read(pid)` gives, without those that didn't answer. Each of these costs a thread, which stays in the kernel."""
    return _Round(pids, read).results()


class _Round(Generic[T]):
    def __init__(self, pids: Iterable[int], read: Callable[[int], T]) -> None:
        self._pids = iter(pids)
        self._read = read
        self._found: dict[int, T] = {}
        self._left_behind = 0
        self._since = time.monotonic()
        self._failure: BaseException | None = None
        self._done = threading.Event()

    def results(self) -> dict[int, T]:
        self._start()
        while not self._done.wait(ANSWER_SECONDS / 10 / (1 + self._left_behind)):
            if time.monotonic() - self._since > ANSWER_SECONDS / (1 + self._left_behind):
                self._left_behind += 1
                self._start()
        if self._failure:
            raise self._failure
        return dict(self._found)

    def _start(self) -> None:
        self._since = time.monotonic()
        threading.Thread(target=self._work, args=(self._left_behind,), daemon=True).start()

    def _work(self, left_behind: int) -> None:
        """left_behind: the count when this thread was started; a greater one means that this is one of them."""
        try:
            for pid in self._pids:
                self._since = time.monotonic()
                self._found[pid] = self._read(pid)
                if left_behind != self._left_behind:
                    return
        except Exception as failure:
            self._failure = failure
        self._done.set()
