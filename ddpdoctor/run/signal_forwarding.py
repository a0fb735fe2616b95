"""Decides which signals are passed on to the command, and stops and ends this process as the command did."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from typing import Final

from ddpdoctor.run.shared_output import SharedOutput

NOT_FORWARDED: Final = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGPIPE,
    }
)
"""Can't be caught, or speak of this process itself."""
TERMINAL_SIGNALS: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""For processes that read or write in the background: the command gets its own."""
STOP_SIGNALS: Final = frozenset({signal.SIGTSTP, *TERMINAL_SIGNALS})
AWAITED_SIGNALS: Final = frozenset(signal.valid_signals()) - NOT_FORWARDED
"""Blocked all the time, and taken one by one."""
FORWARDED_SIGNALS: Final = AWAITED_SIGNALS - TERMINAL_SIGNALS - {signal.SIGCHLD, signal.SIGWINCH}

WITNESS_SECONDS: Final = 0.1
"""Between the first and the last process of a group, or of a job, that somebody sends a signal to."""
PENDING_SECONDS: Final = 2.0
SI_KERNEL: Final = 0x80
"""si_code of what a terminal sends."""
TYPED_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
"""Signals of the kernel's that a terminal alone sends, and always to the whole group."""


class GroupSignalDetector:
    """Tells signals that this process alone has received from those that the whole group, or job, was sent: by a terminal, by
    `kill -- -PGID`, by Slurm. The relay is in our group as the command is: if it has received a signal, too, so has the command."""

    def __init__(self, shared: SharedOutput) -> None:
        self._shared = shared
        self._known: dict[int, int] = {}
        self.relay = 0

    def command_has(self, number: int, code: int) -> bool:
        """Whether the command has received this signal without us."""
        if not self.relay:
            return code == SI_KERNEL
        began = time.monotonic()
        typed = code == SI_KERNEL and number in TYPED_SIGNALS
        while True:
            seen = self._shared.signal_count(number)
            if seen > self._known.get(number, 0):
                self._known[number] = seen
                return True
            passed = time.monotonic() - began
            # On a host that is very busy the relay may be slow to say so: the kernel knows before, until the relay has taken it.
            if passed > (PENDING_SECONDS if typed or _pending(self.relay, number) else WITNESS_SECONDS):
                return typed
            time.sleep(0.002)


def _pending(pid: int, number: int) -> bool:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped still: its waitpid status may be old."""
    with suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] == "T"
    return False


def stop_as_it_did(number: int) -> None:
    """Stop this process as the terminal has stopped the command, so that the shell sees it stopped. Returns when it goes on."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def end_as_it_did(status: int) -> int:
    """End this process by the signal that ended the command; without one, return the command's exit code."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    number = -code
    with suppress(OSError, ValueError):
        # One core dump is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    # The first process of a container isn't ended so.
    return 128 + number
