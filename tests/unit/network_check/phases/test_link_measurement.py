"""Measuring one link, over loopback: a good one, and ones that stall, hang up or say nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from ddpdoctor.facts.fleet import Link
from ddpdoctor.network_check.phases import link_measurement as measuring
from ddpdoctor.network_check.phases.link_measurement import FRAME, GIVE, PING, READY, TAKE, Counts, Wire
from ddpdoctor.network_check.phases.peer_listeners import Listeners
from ddpdoctor.network_check.protocol.messages import ListenAddress, Measure, Peer

RUN = "00ff" * 8
SECONDS = 0.25
AMPLE = 10.0
"""For what takes a fraction of it; only a hang takes longer."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "longest", lambda seconds: 0.5)


def measured(serve: Handler, *, own: int = 0, peer: int = 1, seconds: float = SECONDS) -> Link:
    """The link that node `own` measures to one that serves visitors that way."""

    async def both() -> Link:
        listeners = Listeners(serve)
        listeners.measuring = True
        opened = await listeners.open({"route": "127.0.0.1"}, RUN, peer, (32768, 60999), 3)
        try:
            order = Measure(peer=Peer(peer, "there", opened.places), seconds=seconds)
            found = await asyncio.wait_for(measuring.measure(order, RUN, own), AMPLE)
            assert found.link is not None
            return found.link
        finally:
            await listeners.close()

    return asyncio.run(both())


def test_a_good_link() -> None:
    link = measured(measuring.serve)
    assert not link.error
    assert (link.a, link.b) == (0, 1)
    assert 0 < link.round_trip < 0.1
    assert link.forth > 100
    assert link.back > 100
    assert 0 <= link.resent <= 1


def test_whoever_dials_the_link_goes_from_the_lower_to_the_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {TAKE: 10.0, GIVE: 20.0}
    monkeypatch.setattr(measuring, "_rate", lambda batch, seconds, trip: rates.popitem()[1])
    # popitem() gives the last first: 20 is measured there, 10 back.
    link = measured(measuring.serve, own=5, peer=2)
    assert (link.a, link.b, link.forth, link.back) == (2, 5, 10.0, 20.0)


def test_whoever_is_measured_or_sits_out_measures_nothing() -> None:
    assert asyncio.run(measuring.measure(Measure(peer=None, seconds=SECONDS), RUN, 0)).link is None


def served_by(follow: Callable[[Wire], None]) -> Handler:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def started(wire: Wire) -> None:
            wire.send(READY)
            follow(wire)

        await measuring._in_thread(writer, time.monotonic() + AMPLE, started)

    return serve


def hung_up(wire: Wire) -> None:
    wire.receive(FRAME.size)


def silent(wire: Wire) -> None:
    while True:
        wire.receive(1)


def test_a_peer_that_hangs_up() -> None:
    link = measured(served_by(hung_up))
    assert "hung up" in link.error or "reset" in link.error.lower() or "Broken pipe" in link.error
    assert (link.forth, link.back) == (-1, -1)


@pytest.mark.usefixtures("_little_time")
def test_a_peer_that_says_nothing_ends_in_time() -> None:
    began = time.monotonic()
    link = measured(served_by(silent))
    assert link.error == "no answer in time"
    assert time.monotonic() - began < AMPLE


@pytest.mark.usefixtures("_little_time")
def test_a_peer_that_is_never_ready() -> None:
    async def sleepy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert measured(sleepy).error == "no answer in time"


@pytest.mark.usefixtures("_little_time")
def test_transfers_that_stall_leave_the_round_trip_and_what_arrived() -> None:
    """Ping-pong works, the bulk reaches the other side's kernel and nobody there takes it."""

    def follow(wire: Wire) -> None:
        while True:
            frame = wire.receive(FRAME.size)
            if frame[:1] == PING:
                wire.send(frame)
            else:
                threading.Event().wait(0.6)
                return

    link = measured(served_by(follow))
    assert not link.error
    assert link.round_trip > 0
    assert 0 < link.forth < 10
    assert link.back == -1


def test_a_refused_connection() -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = ListenAddress("route", "127.0.0.1", (nobody.getsockname()[1],))
        order = Measure(peer=Peer(1, "there", (place,)), seconds=SECONDS)
        link = asyncio.run(measuring.measure(order, RUN, 0)).link
    assert link is not None
    assert link.error == "Connection refused"


@pytest.mark.parametrize(
    "places", [(), (ListenAddress("gloo", "127.0.0.1", (9,)),), (ListenAddress("nccl", "127.0.0.1", ()),)]
)
def test_a_peer_without_a_place_for_data(places: tuple[ListenAddress, ...]) -> None:
    link = asyncio.run(measuring.measure(Measure(peer=Peer(1, "there", places), seconds=SECONDS), RUN, 0)).link
    assert link is not None
    assert "listens nowhere" in link.error


def test_the_data_goes_to_the_address_of_nccl() -> None:
    route, nccl, gloo = (ListenAddress(kind, "10.0.0.1", (1,)) for kind in ("route", "nccl", "gloo"))
    assert measuring._data_place(Peer(1, "there", (gloo, route, nccl))) == nccl
    assert measuring._data_place(Peer(1, "there", (gloo, route))) == route


def test_measuring_ends_when_it_is_cancelled() -> None:
    """Else a stopped netcheck would wait for its thread."""

    async def cancelled() -> None:
        listeners = Listeners(served_by(silent))
        listeners.measuring = True
        opened = await listeners.open({"route": "127.0.0.1"}, RUN, 1, (32768, 60999), 3)
        order = Measure(peer=Peer(1, "there", opened.places), seconds=100.0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(measuring.measure(order, RUN, 0), 0.3)
        await listeners.close()

    began = time.monotonic()
    asyncio.run(cancelled())
    assert time.monotonic() - began < AMPLE


@contextmanager
def connected() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire, and the bare socket at its other end."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    with closing(far), closing(near):
        yield Wire(near, time.monotonic() + 0.5), far


@pytest.mark.parametrize("frame", [b"x" + bytes(8), FRAME.pack(TAKE, 1 << 62), FRAME.pack(GIVE, 1 << 62), b"GET / HT"])
def test_frames_without_sense_end_the_visit(frame: bytes) -> None:
    with connected() as (wire, far):
        far.sendall(frame)
        far.shutdown(socket.SHUT_WR)
        try:
            measuring._follow(wire)
        except ConnectionResetError:
            assert len(frame) < FRAME.size


def test_a_visitor_that_sends_half_a_frame_has_its_time() -> None:
    with connected() as (wire, far):
        far.sendall(PING)
        with pytest.raises(TimeoutError):
            measuring._follow(wire)


def test_counts_of_a_real_connection() -> None:
    with connected() as (wire, far):
        for _ in range(5):
            wire.send(b"one segment")
            far.recv(100)
        counts = wire.counts()
        assert counts.sent == 5
        assert counts.resent == 0
        wire.send_bulk(100_000)
        taken = 0
        while taken < 100_000:
            taken += len(far.recv(1 << 16))
        assert wire.acknowledged() >= 100_000


def test_a_kernel_that_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.0 the structure was shorter."""
    with connected() as (wire, _):
        monkeypatch.setattr(wire, "_info", lambda: bytes(104))
        assert wire.counts() == Counts()
        assert wire.acknowledged() == 0


def test_what_was_sent_again_for_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    info = bytearray(232)
    struct.pack_into("=I", info, measuring.RETRANS, 50)
    struct.pack_into("=I", info, measuring.DATA_SEGS_OUT, 1000)
    struct.pack_into("=I", info, measuring.DSACK_DUPS, 40)
    with connected() as (wire, _):
        monkeypatch.setattr(wire, "_info", lambda: bytes(info))
        assert wire.counts().share == 0.01


@pytest.mark.parametrize(("counts", "share"), [((0, 0), 0), ((2, 20), 0), ((30, 100), 0.3), ((120, 100), 1)])
def test_share_of_segments(counts: tuple[int, int], share: float) -> None:
    assert Counts(*counts).share == share


@pytest.mark.parametrize("rate", [0.3e6, 10e6, 1.25e9, 12.5e9])
def test_batches_fit_the_time_and_the_rate(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: bytes a second, and 0.1 ms for asking."""
    now = 0.0

    def batch(size: int) -> None:
        nonlocal now
        now += 0.0001 + size / rate

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    found = measuring._rate(batch, 0.1, 0.0001)
    assert found == pytest.approx(rate * 8 / 1e6, rel=0.02)
    assert now < 0.1 * measuring.BATCHES


def test_a_moment_without_a_cpu_is_no_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 ms of the first batch went to somebody else."""
    now, stolen = 0.0, [0.06]

    def batch(size: int) -> None:
        nonlocal now
        now += 0.0001 + size / 1.25e9 + (stolen.pop() if stolen else 0)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert measuring._rate(batch, 0.1, 0.0001) == pytest.approx(10_000, rel=0.05)
