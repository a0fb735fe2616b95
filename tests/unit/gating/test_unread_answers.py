"""An answer that nobody could read is never "ok", and a failure's exit code stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ddpdoctor.cli.gate import leave
from ddpdoctor.gating.dialects import DIALECTS
from ddpdoctor.gating.outcome import GateOutcome
from tests.unit.gating.test_dialects import BLIND, SICK, WARNED, WELL


def full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def without_a_reader() -> None:
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(reading)


def closed() -> None:
    os.close(1)
    # As cli/main.py does.
    assert os.open(os.devnull, os.O_RDWR) == 1


def blocked() -> None:
    """A pipe that is full, and that nobody reads: the last resort, which was set before, ends that."""
    _, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.dup2(writing, 1)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def code_of(caller: str, outcome: GateOutcome, stdout: Callable[[], None]) -> tuple[int, str]:
    """The exit code with which a gate leaves, and what it has said on standard error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 2)
            stdout()
            leave(DIALECTS[caller], DIALECTS[caller].answer(outcome, {}))
        finally:
            os._exit(99)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@pytest.mark.parametrize("stdout", [full, without_a_reader, closed, blocked])
@pytest.mark.parametrize("caller", DIALECTS)
def test_no_verdict_where_ok_could_not_be_told(caller: str, stdout: Callable[[], None]) -> None:
    ok, warning, failure, unknown = DIALECTS[caller].codes
    says_nothing = caller == "slurm-prolog"
    for outcome, wanted in (
        (WELL, ok if says_nothing else unknown),
        (WARNED, ok if says_nothing else warning or unknown),
        (SICK, failure or unknown),
        (BLIND, unknown),
    ):
        code, said = code_of(caller, outcome, stdout)
        assert code == wanted
        if stdout is not blocked and not (says_nothing and outcome is not SICK):
            assert "ddpdoctor: the answer could not be written to standard output: " in said
