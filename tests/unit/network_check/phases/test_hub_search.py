"""The way to the hub, on the loopback: what answers there, and how long we wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ddpdoctor.facts.meeting import ConnectOutcome, Meeting
from ddpdoctor.network_check.phases import hub_search as arriving
from ddpdoctor.network_check.phases import port_identification as identification
from ddpdoctor.network_check.phases.hub_search import find_hub, look_at_master
from ddpdoctor.network_check.phases.port_identification import HTTP, SILENT, SSH, TLS
from ddpdoctor.network_check.protocol.messages import MAX_BYTES_BEFORE_WELCOME, PROTOCOL, Counted, Greeting, encode
from ddpdoctor.network_check.protocol.tcp_connections import Destination, system_words
from tests.support.free_ports import free_ports

HERE = "127.0.0.1"
GREETING = encode(Greeting(ddpdoctor="0.1.0", protocol=PROTOCOL, nonce="5f"))


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loopback an answer comes sooner than over a network."""
    monkeypatch.setattr(arriving, "GREETING_SECONDS", 0.6)
    monkeypatch.setattr(arriving, "STRANGER_SECONDS", 3.0)
    monkeypatch.setattr(identification, "ANSWER_SECONDS", 0.5)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def listening(port: int, serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(closing, HERE, port, ssl=context)
    try:
        yield
    finally:
        server.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GREETING)
    await reader.read()


def saying(words: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await reader.read()

    return serve


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes at once."""


async def met(port: int, seconds: float = 0.8) -> Meeting:
    found, connection = await find_hub(HERE, (port,), seconds, lambda _: None)
    assert connection is None
    return found


def test_the_hub_is_met_at_once_and_the_connection_can_be_used() -> None:
    (port,) = free_ports()
    heard: list[Meeting] = []

    async def go() -> None:
        async with listening(port, greet):
            found, connection = await find_hub(HERE, (port,), 5.0, heard.append)
        assert connection
        assert (connection.greeting.nonce, connection.own_address, connection.port) == ("5f", HERE, port)
        assert found.answered_by == "ddpdoctor"
        assert found.attempts[0].met is ConnectOutcome.CONNECTED
        connection.writer.close()

    asyncio.run(go())
    assert [one.answered_by for one in heard] == ["ddpdoctor"]


def test_a_hub_that_comes_later_is_met_soon() -> None:
    (port,) = free_ports()
    heard: list[Meeting] = []

    async def go() -> float:
        coming = asyncio.ensure_future(find_hub(HERE, (port,), 10.0, heard.append))
        await asyncio.sleep(0.7)
        began = time.monotonic()
        async with listening(port, greet):
            _, connection = await coming
            assert connection
            connection.writer.close()
            return time.monotonic() - began

    assert asyncio.run(go()) < 0.5
    assert [one.attempts[0].met for one in heard] == [ConnectOutcome.REFUSED, ConnectOutcome.CONNECTED]


def test_refused_until_the_time_is_up() -> None:
    (port,) = free_ports()
    began = time.monotonic()
    found = asyncio.run(met(port))
    assert time.monotonic() - began < 2
    (attempt,) = found.attempts
    assert (attempt.met, attempt.words) == (ConnectOutcome.REFUSED, "Connection refused")
    assert attempt.tries >= 3
    assert 0.7 < found.waited < 2


def test_cut_off_before_a_word() -> None:
    (port,) = free_ports()

    async def go() -> Meeting:
        async with listening(port, cut_off):
            return await met(port)

    found = asyncio.run(go())
    assert found.attempts[0].met is ConnectOutcome.RESET
    assert found.attempts[0].words
    assert found.answered_by == ""


@pytest.mark.parametrize(
    ("said", "who", "banner"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", SSH, "SSH-2.0-OpenSSH_9.2p1 Debian-2"),
        (b"220 mail.example.org ESMTP\r\n", "something else", "220 mail.example.org ESMTP"),
        (b"HTTP/1.1 408 Request Timeout\r\n\r\n", HTTP, "HTTP/1.1 408 Request Timeout"),
        (b'{"type": "welcome"}\n', "something else", '{"type": "welcome"}'),
        (b"\x00\xff\x1b[31m\n", "something else", "...[31m"),
        (b"x" * 3 * MAX_BYTES_BEFORE_WELCOME, "something else", "x" * 80),
    ],
)
def test_who_speaks_first_is_known_by_it(said: bytes, who: str, banner: str) -> None:
    (port,) = free_ports()

    async def go() -> Meeting:
        async with listening(port, saying(said)):
            return await met(port)

    found = asyncio.run(go())
    assert (found.answered_by, found.banner) == (who, banner)
    assert found.attempts[0].met is ConnectOutcome.CONNECTED


def test_a_greeting_in_pieces_is_one() -> None:
    (port,) = free_ports()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (GREETING[:7], GREETING[7:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.2)
        await reader.read()

    async def go() -> None:
        async with listening(port, serve):
            _, connection = await find_hub(HERE, (port,), 5.0, lambda _: None)
            assert connection
            connection.writer.close()

    asyncio.run(go())


def test_who_says_nothing_is_waited_for_until_the_time_is_up() -> None:
    """It may be one of ours on a busy host."""
    (port,) = free_ports()
    heard: list[Meeting] = []

    async def go() -> Meeting:
        async with listening(port, say_nothing):
            found, connection = await find_hub(HERE, (port,), 4.0, heard.append)
            assert connection is None
            return found

    found = asyncio.run(go())
    assert found.answered_by == SILENT
    assert found.waited > 3.9
    assert [one.answered_by for one in heard] == [SILENT]


def test_a_web_server_is_known_and_not_waited_for() -> None:
    (port,) = free_ports()
    heard: list[tuple[str, float]] = []
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", HERE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found, connection = asyncio.run(
            find_hub(HERE, (port,), 60.0, lambda one: heard.append((one.answered_by, one.waited)))
        )
    finally:
        server.kill()
        server.wait()
    assert connection is None
    assert found.answered_by == HTTP
    assert found.banner.startswith("HTTP/1.0 200 OK, Server: SimpleHTTP/")
    assert found.waited < 10
    assert [who for who, _ in heard if who] == [HTTP]


@pytest.mark.tool("openssl")
def test_a_tls_server_is_known(tmp_path: Path) -> None:
    (port,) = free_ports()
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=n1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def go() -> Meeting:
        async with listening(port, say_nothing, context):
            return await look_at_master(HERE, port)

    assert asyncio.run(go()).answered_by == TLS


def test_once_the_squatter_goes_the_hub_is_met() -> None:
    (port,) = free_ports()
    heard: list[Meeting] = []

    async def go() -> None:
        coming = asyncio.ensure_future(find_hub(HERE, (port,), 20.0, heard.append))
        async with listening(port, saying(b"SSH-2.0-x\r\n")):
            await asyncio.sleep(1.0)
        async with listening(port, greet):
            _, connection = await coming
            assert connection
            connection.writer.close()

    asyncio.run(go())
    assert [one.answered_by for one in heard if one.answered_by] == [SSH, "ddpdoctor"]


def test_the_hub_is_found_at_any_of_its_ports_and_a_squatter_beside_it_is_nobodys_business() -> None:
    ports = free_ports(3)

    async def go() -> None:
        async with listening(ports[0], saying(b"SSH-2.0-x\r\n")), listening(ports[1], greet):
            found, connection = await find_hub(HERE, ports, 5.0, lambda _: None)
        assert connection
        assert connection.port == found.port == ports[1]
        assert found.answered_by == "ddpdoctor"
        connection.writer.close()

    asyncio.run(go())


def test_a_silent_address_of_the_name_doesnt_hold_up_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address accepts nothing: its queue is full."""
    (port,) = free_ports()
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*entry, ("127.0.0.9", port)), (*entry, (HERE, port))])

    async def go() -> Meeting:
        with socket.socket() as full, socket.socket() as first:
            full.bind(("127.0.0.9", port))
            full.listen(0)
            first.connect(("127.0.0.9", port))
            async with listening(port, greet):
                found, connection = await find_hub("n1", (port,), 5.0, lambda _: None)
                assert connection
                assert connection.own_address == HERE
                connection.writer.close()
                return found

    assert asyncio.run(go()).waited < 2


def test_an_unknown_name() -> None:
    heard: list[Meeting] = []
    found, connection = asyncio.run(find_hub("no-such-host.invalid", (29500,), 1.5, heard.append))
    assert connection is None
    assert found.unresolved
    assert found.attempts == ()
    assert [one.unresolved for one in heard] == [found.unresolved]


def test_a_resolver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(30))
    began = time.monotonic()
    found, connection = asyncio.run(find_hub("n1", (29500,), 2.0, lambda _: None))
    assert connection is None
    assert "no answer" in found.unresolved
    assert time.monotonic() - began < 6


def test_one_side_alone_looks_twice_where_nobody_answers() -> None:
    (port,) = free_ports()
    found = asyncio.run(look_at_master(HERE, port))
    assert [(attempt.met, attempt.tries) for attempt in found.attempts] == [(ConnectOutcome.REFUSED, 2)]
    assert found.waited < 5


def test_one_side_alone_knows_a_hub() -> None:
    (port,) = free_ports()

    async def go() -> Meeting:
        async with listening(port, greet):
            return await look_at_master(HERE, port)

    assert asyncio.run(go()).answered_by == "ddpdoctor"


@pytest.mark.parametrize("libuv", [True, False])
def test_torchs_own_store_is_known_and_none_the_worse_for_it(libuv: bool) -> None:
    import torch.distributed

    (port,) = free_ports()
    store = torch.distributed.TCPStore(HERE, port, 2, True, wait_for_workers=False, use_libuv=libuv)
    found = asyncio.run(look_at_master(HERE, port))
    assert found.answered_by == "torch's TCPStore"
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_resolver_that_fails_is_quoted_in_its_own_words() -> None:
    """Its numbers aren't the system's: -8 is no error of the kernel's, 8 would be ENOEXEC."""
    for number in (socket.EAI_SERVICE, 8):
        assert system_words(socket.gaierror(number, "Servname not supported")) == "Servname not supported"
    assert (
        system_words(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"))
        == "Connection refused"
    )
    assert system_words(OSError("the other side hung up")) == "the other side hung up"


@pytest.mark.parametrize(
    ("looks", "kept"),
    [
        ((7, 7, 7 + arriving.PROBE_PACKETS), arriving.PROBE_PACKETS),
        ((7, 7, 7), 0),
        # Something else is taken away all the time, as many or more.
        ((7, 11, 7 + 2 * arriving.PROBE_PACKETS), 0),
        ((7, 7, 7 + 3 * arriving.PROBE_PACKETS), 0),
        ((7, 7, 8), 0),
        ((None, None, None), None),
    ],
)
def test_only_what_was_just_sent_tells_of_ones_own_filter(
    looks: tuple[int | None, ...], kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = iter(looks)
    monkeypatch.setattr(arriving, "count", lambda address: Counted(undelivered=0, untransmitted=next(counted)))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = Destination(socket.AF_INET, nobody.getsockname())
        assert asyncio.run(arriving.count_filtered(there, "untransmitted")) == kept


@pytest.mark.parametrize(
    ("looks", "taken"),
    [
        ((7, 7, 7 + arriving.PROBE_PACKETS), arriving.PROBE_PACKETS),
        # Some are answered again meanwhile.
        ((7, 7, 7 + 2 * arriving.PROBE_PACKETS), 2 * arriving.PROBE_PACKETS),
        ((7, 7, 7), 0),
        # Something else is taken away all the time.
        ((7, 8, 8 + arriving.PROBE_PACKETS), 0),
        ((7, 7, 8), 0),
        ((None, None, None), None),
    ],
)
def test_only_answers_to_what_was_just_sent_tell_of_ones_own_filter(
    looks: tuple[int | None, ...], taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = iter(looks)
    monkeypatch.setattr(arriving, "count", lambda address: Counted(undelivered=next(counted), untransmitted=None))
    monkeypatch.setattr(arriving, "ANSWER_SECONDS", 0.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = Destination(socket.AF_INET, nobody.getsockname())
        assert asyncio.run(arriving.count_filtered(there, "undelivered")) == taken
