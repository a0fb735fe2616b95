"""Asks the person at the terminal."""

from __future__ import annotations

import os
import select
import signal
import sys


def ask(question: str) -> str:
    """The line that was typed, with its end; "" if there is none. A signal's exception comes out, whenever it arrives.

    A signal between the question and the read that waits for the answer would else be heard only after the answer.
    """
    print(question, end="", file=sys.stderr, flush=True)
    heard, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    try:
        # What woke us without ending us, as a window that was resized, is no answer.
        while sys.stdin not in select.select([sys.stdin, heard], [], [])[0]:
            os.read(heard, 4096)
        return sys.stdin.readline()
    finally:
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(tell)
