"""The supervisor's side of the relay: starts it, and another where one is killed or fails."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from ddpdoctor.run.command_start import close_inherited
from ddpdoctor.run.output_streams import CarriedStream
from ddpdoctor.run.relay import COMMAND_ENDED, Relay
from ddpdoctor.run.shared_output import SharedOutput
from ddpdoctor.run.signal_forwarding import FORWARDED_SIGNALS

PAUSE_SECONDS: Final = 0.5
"""Until the next try to start a relay where one could not be started, or failed of itself."""


class RelayClient:
    """The relay that carries these streams, whichever process it is: pid, 0 where there is none just now; done, whether all streams have
    ended."""

    def __init__(self, streams: Sequence[CarriedStream], shared: SharedOutput) -> None:
        self._streams = streams
        self._shared = shared
        self._control = -1
        self._copies = True
        self._given = True
        self._is_command_over = False
        self._next_try = math.inf
        self._closed: set[int] = set()
        self.pid = 0
        self.done = False

    def start(self) -> None:
        """Start a relay.

        Raises:
            OSError: there are no more processes or descriptors.
        """
        word, control = os.pipe()
        supervisor = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(word)
            os.close(control)
            raise
        if not pid:
            self._be_relay(word, control, supervisor)
        os.close(word)
        if self._control >= 0:
            os.close(self._control)
        self._control = control
        self.pid = pid
        self._next_try = math.inf
        if self._is_command_over:
            self.tell_end()

    def _be_relay(self, word: int, control: int, supervisor: int) -> NoReturn:
        code = 1
        try:
            os.close(control)
            self.close_given()
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            close_inherited()

            def wake() -> None:
                # The signal that is taken for "look what your children do".
                if os.getppid() == supervisor:
                    os.kill(supervisor, signal.SIGCHLD)

            for number in FORWARDED_SIGNALS:
                # The supervisor passes on those that the relay hasn't received, too.
                signal.signal(number, lambda number, frame: self._shared.count_signal(number))
            for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            Relay(self._streams, self._shared, word, wake, copies=self._copies).carry()
            code = 0
        finally:
            os._exit(code)

    def close_given(self) -> None:
        """Close the command's ends of the streams, once the command has them."""
        for stream in self._streams if self._given else ():
            os.close(stream.given)
        self._given = False

    def tell_end(self) -> None:
        """Tell the relay that the command has ended."""
        self._is_command_over = True
        with suppress(OSError):
            os.write(self._control, COMMAND_ENDED)

    def note_end(self, status: int) -> None:
        """Take in the status with which the relay has ended."""
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        self.done = code == 0
        # One that failed of itself did so while it copied, most likely.
        self._copies = self._copies and code <= 0
        self._next_try = time.monotonic() + (PAUSE_SECONDS if code > 0 else 0)

    @property
    def due(self) -> float:
        """The moment when `restart_if_due` has something to do; infinite for never."""
        return math.inf if self.pid or self.done else self._next_try

    def restart_if_due(self) -> None:
        """Start another relay where there should be one."""
        if time.monotonic() >= self.due:
            try:
                self.start()
            except OSError:
                self._next_try = time.monotonic() + PAUSE_SECONDS

    def close_broken(self) -> None:
        """Close the streams that nobody reads any more: the command learns it once all of us have closed them."""
        for number, stream in enumerate(self._streams):
            if self._shared.is_broken(number) and number not in self._closed:
                self._closed.add(number)
                os.close(stream.source)

    def close_all(self) -> None:
        """Close all, in a process that has no part in it."""
        for number, stream in enumerate(self._streams):
            if number not in self._closed:
                os.close(stream.source)
        os.close(self._control)
