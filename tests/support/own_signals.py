"""Signals that stop the tests' own process as they do a command's, for a while."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ddpdoctor.base.signals import SIGNALS


@contextmanager
def signals_restored() -> Iterator[None]:
    """Give signals back to whoever handled them before, and to Python's hook what it has to drop."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
