"""Waiting for other runs on the same file: that eight ranks begin with the same command is no reason to refuse seven of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_WAIT_SECONDS = 10.0
"""A run takes some thousandths of one; who is in the way for longer has stopped, or is no run of ours."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5


class RetryTimer:
    """The time for which one run still waits for others."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _MAX_WAIT_SECONDS
        self._pause = _FIRST_PAUSE_SECONDS

    def wait(self) -> bool:
        """Wait a moment, each time a longer one, by chance more or less than others wait; False, and no wait, when time is up."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        chance = int.from_bytes(os.urandom(2), "big") / 0xFFFF
        time.sleep(min(left, self._pause * chance))
        self._pause = min(_MAX_PAUSE_SECONDS, 1.5 * self._pause)
        return True


@contextmanager
def locked_folder(path: Path, timer: RetryTimer) -> Iterator[None]:
    """Let no other run work in the file's folder, from looking at it until it is changed and read back.

    Only a courtesy: nobody waits at the file itself, where its being open would be in the way. Without locks on this file
    system, or with a lock that is never given back, the run goes on, and what must not be is refused by `open_exclusively`.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        while not _locked(folder) and timer.wait():
            pass
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    """Lock the folder; False if another run has it. Without locks (on NFS folders have none) there is nothing to wait for."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True
