"""Whom the doctor hears, and when something counts as said."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Coroutine

import pytest
from ddpdoctor_smoke.report_channel import ReportChannel

from ddpdoctor.smoke_training.local.rank_listener import RankListener
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.training_order import TrainingOrder

NOBODY = 65534
HOUR = 3600.0


class Run:
    """Ears that are open, and who has been heard."""

    def __init__(self) -> None:
        self.watch = RankMonitor(TrainingOrder(nproc=2, world_size=2), time.monotonic())
        self.ears = RankListener(self.watch, lambda: None, self._failed)

    def _failed(self, error: BaseException) -> None:
        raise error

    def hears(self, speak: Callable[[Run], Coroutine[None, None, None]]) -> None:
        async def go() -> None:
            self.ears.open()
            await asyncio.sleep(0)
            try:
                await speak(self)
            finally:
                await self.ears.close()

        asyncio.run(asyncio.wait_for(go(), 30))

    async def until(self, heard: Callable[[], bool]) -> None:
        while not heard():
            await asyncio.sleep(0.005)

    def call(self, kind: socket.SocketKind = socket.SOCK_SEQPACKET, line: str = "") -> socket.socket:
        one = socket.socket(socket.AF_UNIX, kind)
        one.connect(f"\0{self.ears.channel}{line}")
        return one


def packet(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_a_clock_that_is_set_back_makes_no_rank_late(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = time.time

    async def speak(run: Run) -> None:
        rank = run.watch.ranks[0]
        doctor = ReportChannel(run.ears.channel, 0)
        doctor.say(stage="import", state="begun")
        await run.until(lambda: rank.stage == "import")
        monkeypatch.setattr(time, "time", lambda: usual() - HOUR)
        before = time.monotonic()
        doctor.say(stage="device", state="begun")
        said = time.monotonic()
        time.sleep(0.1)  # We are late to hear it.
        await run.until(lambda: rank.stage == "device")
        assert before <= rank.since <= said
        doctor.messages.close()

    Run().hears(speak)


@pytest.mark.parametrize("offset", [-HOUR, HOUR, float("nan"), float("inf")])
def test_by_another_clock_a_message_counts_when_it_is_heard(offset: float) -> None:
    """As in a time namespace, or from a target Python that is broken."""

    async def speak(run: Run) -> None:
        rank = run.watch.ranks[0]
        with run.call() as one:
            one.send(packet(who=0))
            for stage in ("import", "device", "barrier"):
                before = time.monotonic()
                one.send(packet(stage=stage, state="begun", at=before + offset))
                await run.until(lambda stage=stage: rank.stage == stage)  # type: ignore[misc]
                assert before <= rank.since <= time.monotonic()

    Run().hears(speak)


@pytest.mark.root
def test_another_user_is_not_heard() -> None:
    async def speak(run: Run) -> None:
        os.seteuid(NOBODY)  # The kernel tells who we were when we called.
        try:
            words, output = run.call(), run.call(socket.SOCK_STREAM, "-output")
        finally:
            os.seteuid(0)
        with words, output:
            words.send(packet(who=0, stage="import", state="begun"))
            output.send(packet(who=0) + b"a stranger's words\n")
            for one in (words, output):
                one.settimeout(10)
                assert await asyncio.to_thread(hung_up, one)
        assert (run.watch.ranks[0].pid, run.watch.ranks[0].stage, run.watch.ranks[0].output) == (0, "", b"")
        with run.call() as own, run.call(socket.SOCK_STREAM, "-output") as printed:
            own.send(packet(who=0, stage="import", state="begun"))
            printed.send(packet(who=0) + b"its own words\n")
            await run.until(lambda: bool(run.watch.ranks[0].pid and run.watch.ranks[0].output))
        assert (run.watch.ranks[0].pid, run.watch.ranks[0].output) == (os.getpid(), b"its own words\n")

    Run().hears(speak)


def hung_up(one: socket.socket) -> bool:
    """Whether the other side has."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True
