"""Waiting for other runs on the same file: that eight ranks begin with the same command is no reason to refuse seven of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from ddpdoctor.checkpoints.errors import Busy, system_errors_refused

_T = TypeVar("_T")

_MAX_WAIT_SECONDS = 10.0
"""A run takes some thousandths of one; who is in the way for longer has stopped, or is no run of ours."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5


def retry_while_busy(path: Path, work: Callable[[], _T], *, alone: bool) -> _T:
    """Do the work, and do it again while another run is in the way. CheckpointError is raised, and no other.

    alone: no other run works in the file's folder meanwhile. Who only reads, and for long, is nobody's turn.

    Raises:
        Busy: one still is when time is up.
    """
    pauses = _pauses()
    while True:
        try:
            with system_errors_refused(path), _locked_folder(path, pauses) if alone else nullcontext():
                return work()
        except Busy:
            if not next(pauses, False):
                raise


def _pauses() -> Iterator[bool]:
    """Wait a moment, each time a longer one, by chance more or less than others wait, until time is up."""
    end = time.monotonic() + _MAX_WAIT_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while (left := end - time.monotonic()) > 0:
        chance = int.from_bytes(os.urandom(2), "big") / 0xFFFF
        time.sleep(min(left, pause * chance))
        pause = min(_MAX_PAUSE_SECONDS, 1.5 * pause)
        yield True


@contextmanager
def _locked_folder(path: Path, pauses: Iterator[bool]) -> Iterator[None]:
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
        while not _locked(folder) and next(pauses, False):
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
