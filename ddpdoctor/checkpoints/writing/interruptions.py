"""Signals put off for the milliseconds in which a file is being changed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# All that a terminal, a scheduler or a person sends to end or stop a program, but the two that can't be put off.
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


@contextmanager
def put_off() -> Iterator[list[int]]:
    """Signals that come meanwhile are listed in what this gives, and delivered at the end, as they would have been."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {}
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, note)
    except ValueError:
        # Not in the main thread: no handler would run here anyway.
        before = {}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for arrived in came:
            signal.raise_signal(arrived)
