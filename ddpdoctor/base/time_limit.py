"""A limit for a whole command: it ends in time whatever hangs, and says what it waited for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType

LOOK_SECONDS = 50.0
"""For all that is asked of the host: what hasn't answered by then is unknown. Slurm kills a health check after 60."""
END_SECONDS = 53.0
"""After which a command that hangs in a call of its own is ended: without a verdict, but with a sentence."""
KILL_SECONDS = 55
"""After which the kernel ends it, should not even the sentence get through."""


class TimeLimit:
    """Ends this process, unless it is left in time; one that isn't entered only says until when to look. `stage` says what goes on now."""

    def __init__(self, stage: str, look_seconds: float = LOOK_SECONDS) -> None:
        self.stage = stage
        self.look_until = time.monotonic() + look_seconds
        self._left = threading.Event()

    def __enter__(self) -> TimeLimit:
        # Its own thread can't run where a library hangs with Python's lock in its hands.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(KILL_SECONDS)
        threading.Thread(target=self._watch, name="time limit", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        signal.alarm(0)

    def _watch(self) -> None:
        if self._left.wait(END_SECONDS):
            return
        with suppress(OSError):
            text = f"ddpdoctor gave up after {END_SECONDS:.0f} s, without a verdict: {self.stage} did not end.\n"
            os.write(sys.stderr.fileno(), text.encode("utf-8", "replace"))
        if "ddpdoctor.probes.subprocesses" in sys.modules:
            sys.modules["ddpdoctor.probes.subprocesses"].end_all()
        os._exit(2)
