"""Asking the person at the terminal: a signal is heard at once, whatever the main thread is doing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ddpdoctor.base.signals import stop_on_signals
from tests.support.own_signals import signals_restored

ASKS = """
import signal, threading, time
from ddpdoctor.cli.asking import ask
from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals
stop_on_signals()
signal.signal(signal.SIGWINCH, lambda number, frame: None)
def send():
    # Handled in this thread, it interrupts no read of the main one: so it goes with one that comes right before the read.
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), {number})
threading.Thread(target=send, daemon=True).start()
try:
    print("answer", repr(ask("Really? ")))
except StoppedBySignal as stopped:
    print("stopped", stopped.code)
"""


def asked(number: signal.Signals) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASKS.format(number=int(number))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_interrupts_no_read_is_heard(number: signal.Signals) -> None:
    with asked(number) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.wait(60) == 0
            assert process.stdout.read() == f"stopped {128 + number}\n"
        finally:
            process.kill()


@pytest.mark.parametrize(("typed", "answer"), [("yes\n", "yes\n"), ("", "")])
def test_a_signal_that_ends_nothing_is_no_answer(typed: str, answer: str) -> None:
    with asked(signal.SIGWINCH) as process:
        assert process.stderr
        assert process.stdin
        assert process.stderr.read(8) == "Really? "
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert process.communicate(typed, timeout=60)[0] == f"answer {answer!r}\n"


DROPS = """
import os, time
from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(0.1)
stop_on_signals()
try:
    Finalized()
    time.sleep(20)
    print("went on")
except StoppedBySignal as stopped:
    print("stopped", stopped.code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_though_python_drops_what_a_finalizer_raises(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROPS.format(number=int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"stopped {128 + number}\n", "", 0)


def test_what_python_drops_else_goes_to_the_hook_that_was_there() -> None:
    dropped: list[object] = []

    class Finalized:
        def __del__(self) -> None:
            raise ValueError("not a signal")

    with signals_restored():
        sys.unraisablehook = lambda of: dropped.append(str(of.exc_value))
        for _ in range(2):
            stop_on_signals()
        Finalized()
    assert dropped == ["not a signal"]
