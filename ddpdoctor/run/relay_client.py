"""The supervisor's side of the relay: starts it, and another where one is killed or fails."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from ddpdoctor.run.command_start import let_go_of_inherited
from ddpdoctor.run.output_streams import CarriedStream
from ddpdoctor.run.relay import ENDED, Relay, relay_process
from ddpdoctor.run.shared_output import SharedOutput
from ddpdoctor.run.signal_forwarding import PASSED_ON

PAUSE: Final = 0.5
"""Seconds until the next try to start a relay where one could not be started, or failed of itself."""


class Carrier:
    """The relay that carries these streams, whichever process it is. pid: that one, 0 where there is none just now. done: all
    streams have ended."""

    def __init__(self, streams: Sequence[CarriedStream], shared: SharedOutput) -> None:
        self._streams = streams
        self._shared = shared
        self._control = -1
        self._copies = True
        self._given = True
        self._told = False
        self._next_try = math.inf
        self._let_go: set[int] = set()
        self.pid = 0
        self.done = False

    def start(self) -> None:
        """Raises OSError: there are no more processes or descriptors."""
        heard, control = os.pipe()
        supervisor = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(heard)
            os.close(control)
            raise
        if not pid:
            self._be_relay(heard, control, supervisor)
        os.close(heard)
        if self._control >= 0:
            os.close(self._control)
        self._control = control
        self.pid = pid
        self._next_try = math.inf
        if self._told:
            self.tell_end()

    def _be_relay(self, heard: int, control: int, supervisor: int) -> NoReturn:
        code = 1
        try:
            os.close(control)
            self._close_given()
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            let_go_of_inherited()

            def wake() -> None:
                # The signal that is taken for "look what your children do".
                if os.getppid() == supervisor:
                    os.kill(supervisor, signal.SIGCHLD)

            relay = partial(Relay, self._streams, self._shared, heard, wake, copies=self._copies)
            relay_process(relay, self._shared, tuple(PASSED_ON))
            code = 0
        finally:
            os._exit(code)

    def command_has_begun(self) -> None:
        """It has its ends of the streams, and nobody else shall."""
        self._close_given()

    def _close_given(self) -> None:
        for stream in self._streams if self._given else ():
            os.close(stream.given)
        self._given = False

    def tell_end(self) -> None:
        """The command has ended."""
        self._told = True
        with suppress(OSError):
            os.write(self._control, ENDED)

    def ended(self, status: int) -> None:
        """This relay has."""
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        self.done = code == 0
        # One that failed of itself did so while it copied, most likely.
        self._copies = self._copies and code <= 0
        self._next_try = time.monotonic() + (PAUSE if code > 0 else 0)

    @property
    def due(self) -> float:
        """When `see_to_it` has something to do; infinite for never."""
        return math.inf if self.pid or self.done else self._next_try

    def see_to_it(self) -> None:
        """Starts another where there should be one."""
        if time.monotonic() >= self.due:
            try:
                self.start()
            except OSError:
                self._next_try = time.monotonic() + PAUSE

    def let_go_of_broken(self) -> None:
        """What nobody reads any more: the command is told so once all of us have closed it."""
        for number, one in enumerate(self._streams):
            if self._shared.broken(number) and number not in self._let_go:
                self._let_go.add(number)
                os.close(one.source)

    def let_go_of_all(self) -> None:
        """In a process that has no part in it."""
        for number, one in enumerate(self._streams):
            if number not in self._let_go:
                os.close(one.source)
        os.close(self._control)
