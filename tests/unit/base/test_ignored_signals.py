"""A signal that whoever started us had ignored stays ignored, in all commands: nohup's SIGHUP, a script's SIGINT for what it starts with `&`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals
from tests.support.own_signals import signals_restored


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with signals_restored():
        yield


def test_it_ends_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop_on_signals()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(StoppedBySignal):
        os.kill(os.getpid(), signal.SIGHUP)


def test_it_ends_nothing_that_is_waited_for() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(until_stopped(work(), lambda: "stopped")) == "done"
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
