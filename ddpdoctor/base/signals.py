"""Turns a signal that asks us to end into one exception, which carries the sentence that is then true."""

from __future__ import annotations

import os
import signal
import sys
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs

RETRY_SECONDS = 0.01
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedBySignal(BaseException):
    """Raised by a signal that asks us to end. No KeyboardInterrupt, since typer would end on that without a word.

    A command that changes things catches it, sets `text` to what was changed by then, and raises it again.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        self.text = "Stopped. Nothing was changed."


def signals_taken_over() -> list[int]:
    """List those signals that stop this process by an exception. None in a program that calls us: they are its own."""
    return [number for number in SIGNALS if signal.getsignal(number) is _stop]


def stop_on_signals() -> None:
    """Let a signal raise `StoppedBySignal` in the main thread from now on.

    One that is ignored stays so: by nohup, or by a script for what it starts in the background.
    """
    if not isinstance(sys.unraisablehook, _StopAfterAll):
        sys.unraisablehook = _StopAfterAll(sys.unraisablehook)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def ignore_signals() -> None:
    """Ignore signals from now on: an impatient second Ctrl-C must not break into the clean end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: object) -> None:
    ignore_signals()
    raise StoppedBySignal(128 + number)


class _StopAfterAll:
    """Stop a moment later where Python had to drop what the signal raised: in a finalizer, or in a callback of the import system.

    replaced: the hook that hears of anything else.
    """

    def __init__(self, replaced: Callable[[UnraisableHookArgs], object]) -> None:
        self._replaced = replaced

    def __call__(self, dropped: UnraisableHookArgs) -> None:
        error = dropped.exc_value
        if not isinstance(error, StoppedBySignal):
            self._replaced(dropped)
            return
        number = error.code - 128
        signal.signal(number, _stop)
        Timer(RETRY_SECONDS, os.kill, (os.getpid(), number)).start()
