"""Runs on the same file take turns: that eight ranks begin with the same command is no reason to refuse seven of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 10.0
"""Seconds. A run takes some thousandths of one; who is in the way for longer has stopped, or is no run of ours."""
_SHORTEST, _LONGEST = 0.01, 0.5


class Patience:
    """How long one run still waits for others."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _PATIENCE
        self._pause = _SHORTEST

    def wait(self) -> bool:
        """A moment, each time a longer one, by chance more or less than others wait; False, and no wait, when it's over."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        chance = int.from_bytes(os.urandom(2), "big") / 0xFFFF
        time.sleep(min(left, self._pause * chance))
        self._pause = min(_LONGEST, 1.5 * self._pause)
        return True


@contextmanager
def turn(path: Path, patience: Patience) -> Iterator[None]:
    """From looking at a file until it is changed and read back, no other run works in its folder.

    Only a courtesy: nobody waits at the file itself, where its being open would be in the way. Without locks on this file
    system, or with a lock that is never given back, the run goes on, and what must not be is refused by `held`.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        while not _locked(folder) and patience.wait():
            pass
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    """False if another run has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # No locks, or none on folders (NFS): there is nothing to wait for.
        return True
    return True
