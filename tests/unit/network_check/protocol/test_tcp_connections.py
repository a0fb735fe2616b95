"""One connection's answer: what the kernel doesn't say in so many words is not read into it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ddpdoctor.facts.meeting import ConnectOutcome
from ddpdoctor.network_check.protocol import tcp_connections as connecting
from ddpdoctor.network_check.protocol.tcp_connections import Destination, connect

THERE = Destination(socket.AF_INET, ("127.0.0.1", 9))


class Unconnected(socket.socket):
    """A socket that never dials: poll() wakes it at once, with neither an error nor a peer, as Linux does now and then
    to one that does."""

    def connect(self, address: object) -> None:
        raise BlockingIOError


@pytest.fixture(autouse=True)
def _never_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting.socket, "socket", Unconnected)


def test_woken_without_an_answer_it_is_waited_for() -> None:
    attempt, one = asyncio.run(connect(THERE, 0.3))
    assert (attempt.met, attempt.words, one) == (ConnectOutcome.SILENT, "", None)
    assert attempt.seconds >= 0.3


def test_nobody_has_the_address_though_the_kernel_is_still_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_is_unknown_neighbour", lambda address: address == "127.0.0.1")
    attempt, _ = asyncio.run(connect(THERE, 0.3))
    assert attempt.met is ConnectOutcome.NO_HOST
