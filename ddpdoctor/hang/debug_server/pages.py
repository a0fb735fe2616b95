"""Asks torch's debug server for a page, and takes it apart rank by rank as it comes.

Each page is HTML with the same frame: for every rank a heading, `<h2>Rank 3: http://node1:40123/handler/dump_traceback?</h2>`, a
paragraph `Failed to fetch: status=408` if the rank gave none, and its answer in `<pre>`. The first releases escape that answer, later
ones don't. A rank's answer is handed on as soon as it is whole, so that no page is ever held in memory.
"""

from __future__ import annotations

import asyncio
import html
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ddpdoctor.base.async_work import in_thread, within
from ddpdoctor.base.text import clip, human, masked
from ddpdoctor.hang.debug_server.budget import Budget, OverBudgetError

DEFAULT_PORT: Final = 25999
"""torch's own."""
MAX_HEAD_BYTES: Final = 16 << 10
MAX_RANK_BYTES: Final = 4 << 20
"""A full flight recorder of gloo has 1.5 MiB as JSON."""
MAX_RANKS: Final = 16_384
CONNECT_SECONDS: Final = 10.0
FIRST_WORD_SECONDS: Final = 10.0
"""For a page that needs no rank."""
PIECE_BYTES: Final = 1 << 16

OK: Final = 200
TIMED_OUT: Final = 408
NO_CONNECTION: Final = 503
"""The debug server's own numbers for a rank that gave no answer in time, or to which it had no connection."""
TOO_LONG: Final = 413
UNREADABLE: Final = 0
"""Ours, for a rank whose answer has no beginning or no end."""
REDIRECTS: Final = (301, 302, 303, 307, 308)

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::(?P<port>\d{1,5}))?"
)
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]{0,200}))?")
_FAILED: Final = re.compile(rb"<p>Failed to fetch: status=(\d{1,3})</p>")
_HOST_OF_RANK: Final = re.compile(rb"https?://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:\d{1,5})?(?:/|$)")
_TITLE: Final = b"Torch Distributed Debug Server"

T = TypeVar("T")


class ServerAddress(NamedTuple):
    """Where a debug server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NotServedError(Exception):
    """Why a page didn't come, as the end of a sentence."""


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says of one rank. status: 200, or why it gave no answer. listens: "node1:40123", "" where that can't be read."""

    rank: int
    host: str
    listens: str
    status: int
    body: bytes


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page. by_rank: what was made of each rank's answer. asked_at: when it came, by the clock of the server's host in seconds since
    the epoch, else by ours. cut: why it isn't whole, or ""."""

    by_rank: Mapping[int, T]
    asked_at: float
    seconds: float
    cut: str = ""


def parse_address(text: str) -> ServerAddress | None:
    """Parse HOST:PORT, HOST, [IPV6]:PORT; None for anything else."""
    found = _ADDRESS.fullmatch(text.strip())
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    return ServerAddress(found["ipv6"] or found["host"], port) if found and 0 < port < 1 << 16 else None


async def resolve(address: ServerAddress) -> Sequence[tuple[socket.AddressFamily, Any]]:
    """Look up where a server is to be found: (family, address for a socket), the first choice first.

    Raises:
        NotServedError: nowhere.
    """
    try:
        call = in_thread(lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        found = await within(CONNECT_SECONDS, call)
    except TimeoutError:
        raise NotServedError(f"the name {address.host} was not resolved within {CONNECT_SECONDS:.0f} s") from None
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise NotServedError(f"the name {address.host} can't be resolved: {why}") from None
    return [(family, place) for family, _, _, _, place in found]


async def await_first_word(address: ServerAddress, places: Sequence[tuple[socket.AddressFamily, Any]]) -> None:
    """Ask for the page that a debug server has ready, and wait for a first byte; what it says is for the other pages to judge.

    Raises:
        NotServedError: nothing takes the connection, or not a byte came in time.
    """
    with closing(await _connect(address, places)) as connection:
        try:
            await within(FIRST_WORD_SECONDS, _first_word(connection, address))
        except TimeoutError:
            raise NotServedError(
                f"what listens there took the connection and said nothing within {FIRST_WORD_SECONDS:.0f} s. Perhaps it is "
                "another port, such as the job's MASTER_PORT, or the server's process is stopped"
            ) from None
        except OSError:
            return


async def _first_word(connection: socket.socket, address: ServerAddress) -> None:
    await _request(connection, address, "/")
    await asyncio.get_running_loop().sock_recv(connection, PIECE_BYTES)


async def fetch_page(
    address: ServerAddress,
    places: Sequence[tuple[socket.AddressFamily, Any]],
    path: str,
    take: Callable[[RankAnswer], T],
    seconds: float,
    most: int,
    budget: Budget,
) -> Page[T]:
    """Ask for a page, and make something of each rank's answer.

    Args:
        address: the server.
        places: of it, as `resolve` found them.
        path: of the page.
        take: what is made of an answer. It may raise `OverBudgetError`: the page ends there.
        seconds: for all of it.
        most: bytes that are taken of the page.
        budget: of all pages together.

    Raises:
        NotServedError: it didn't come, or is none of a debug server's.
    """
    began = time.monotonic()
    reading = _Reading(path, take, most, budget)
    connection = await _connect(address, places)
    with closing(connection):
        try:
            await within(seconds, _talk(connection, address, path, reading))
        except TimeoutError:
            reading.cut = f"it did not come within {seconds:.0f} s (it waits until every rank has started its part)"
        except OSError as error:
            reading.cut = f"the connection broke: {error.strerror or error}"
    return reading.page(time.monotonic() - began)


async def _connect(address: ServerAddress, places: Sequence[tuple[socket.AddressFamily, Any]]) -> socket.socket:
    why = "it has no address"
    for family, place in places:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await within(CONNECT_SECONDS, asyncio.get_running_loop().sock_connect(connection, place))
        except TimeoutError:
            why = f"it did not accept a connection within {CONNECT_SECONDS:.0f} s"
        except OSError as error:
            why = "nothing listens there" if isinstance(error, ConnectionRefusedError) else str(error.strerror or error)
        else:
            return connection
        connection.close()
    raise NotServedError(why)


async def _request(connection: socket.socket, address: ServerAddress, path: str) -> None:
    # HTTP/1.0: the answer ends with the connection, and comes in one piece.
    request = f"GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: */*\r\n\r\n".encode()
    await asyncio.get_running_loop().sock_sendall(connection, request)


async def _talk(connection: socket.socket, address: ServerAddress, path: str, reading: _Reading[Any]) -> None:
    loop = asyncio.get_running_loop()
    await _request(connection, address, path)
    while not reading.cut and (piece := await loop.sock_recv(connection, PIECE_BYTES)):
        reading.feed(piece)
    reading.end()


class _Reading(Generic[T]):
    """A page as it comes: its head, then rank after rank."""

    def __init__(self, path: str, take: Callable[[RankAnswer], T], most: int, budget: Budget) -> None:
        self._path = path
        self._take = take
        self._most = most
        self._budget = budget
        self._head: bytes | None = None
        self._buffer = bytearray()
        self._searched = 0
        """So much of the buffer holds no heading of the next rank."""
        self._start = b""
        """What stands in front of the first rank."""
        self._heading: bytes | None = None
        """Of the rank whose answer is in the buffer."""
        self._too_long = False
        self._size = 0
        self._by_rank: dict[int, T] = {}
        self._rank = -1
        self.cut = ""

    def page(self, seconds: float) -> Page[T]:
        """Return what has come.

        Raises:
            NotServedError: that is no page of a debug server's.
        """
        if self._head is None:
            begun = bytes(self._buffer[:MAX_HEAD_BYTES])
            if self.cut:
                raise NotServedError(self.cut)
            raise NotServedError(
                f"what listens there speaks no HTTP: {_quoted(begun)}" if begun else "it answered nothing"
            )
        if self._rank < 0 and _TITLE not in self._start:
            raise NotServedError(
                self.cut or f"what answers there is no debug server of torch's: {_quoted(self._start)}"
            )
        if self._rank < 0:
            raise NotServedError(self.cut or "it tells of no rank")
        return Page(by_rank=self._by_rank, asked_at=self._date() or time.time(), seconds=seconds, cut=self.cut)

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._size += len(piece)
        try:
            self._budget.take(len(piece))
        except OverBudgetError as error:
            self.cut = str(error)
            return
        self._buffer += piece
        if self._head is None and not self._take_head():
            return
        while self._take_rank():
            pass
        if self._size > self._most:
            self.cut = f"it sent more than {human(self._most)}"
        elif len(self._buffer) > MAX_RANK_BYTES:
            self._too_long = self._too_long or self._heading is not None
            if self._heading is None and self._rank < 0:
                self.cut = f"it sent {human(MAX_RANK_BYTES)} and told of no rank"
            # A heading may be half there.
            del self._buffer[:-4096]
            self._searched = 0

    def end(self) -> None:
        """Take the end of the page."""
        if self._head is None:
            return
        whole = b"</section>" in self._buffer
        self._finish(bytes(self._buffer))
        if not whole and not self.cut and self._rank >= 0:
            self.cut = "it breaks off"

    def _take_head(self) -> bool:
        head, separator, rest = bytes(self._buffer[: 2 * MAX_HEAD_BYTES]).partition(b"\r\n\r\n")
        begins = b"HTTP/1."
        if not begins.startswith(head[: len(begins)]) or (not separator and len(self._buffer) > MAX_HEAD_BYTES):
            raise NotServedError(f"what listens there speaks no HTTP: {_quoted(head)}")
        if not separator:
            return False
        self._head = head
        del self._buffer[: len(head) + 4]
        self._refuse_other_answers(head, rest)
        return True

    def _refuse_other_answers(self, head: bytes, begun: bytes) -> None:
        found = _STATUS.match(head)
        if found is None:
            raise NotServedError(f"what listens there speaks no HTTP: {_quoted(head)}")
        status = int(found[1])
        if status in REDIRECTS:
            raise NotServedError(f"it sends one on to {_quoted(self._header(b'location'))}, where nobody is followed")
        if status != OK:
            raise NotServedError(f"it answered {self._path} with HTTP {status}: {_quoted(found[2] or b'')}")
        if b"chunked" in self._header(b"transfer-encoding").lower():
            raise NotServedError("something between here and there sends its pages in chunks; ask it directly")

    def _header(self, name: bytes) -> bytes:
        for line in (self._head or b"").split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return b""

    def _date(self) -> float:
        try:
            return parsedate_to_datetime(self._header(b"date").decode("latin-1")[:60]).timestamp()
        except (ValueError, TypeError, OverflowError, OSError, IndexError):
            return 0.0

    def _take_rank(self) -> bool:
        """Finish the rank before the next heading, if that is there."""
        mark = b"<h2>Rank %d: " % (self._rank + 1)
        at = self._buffer.find(mark, max(0, self._searched - len(mark)))
        if at < 0:
            self._searched = len(self._buffer)
            return False
        end = self._buffer.find(b"</h2>", at, at + 4096)
        if end < 0 and len(self._buffer) < at + 4096:
            self._searched = at
            return False
        before = bytes(self._buffer[:at])
        heading = bytes(self._buffer[at + len(mark) : end if end >= 0 else at + 4096])
        del self._buffer[: at + len(mark) + len(heading)]
        self._finish(before)
        if self._rank + 1 >= MAX_RANKS:
            self.cut = f"it tells of more than {MAX_RANKS} ranks"
        if self.cut:
            return False
        self._rank += 1
        self._heading, self._searched, self._too_long = heading, 0, False
        return True

    def _finish(self, section: bytes) -> None:
        """Hand on the answer of the rank that has just come to its end."""
        if self._heading is None:
            self._start = self._start or section[: 16 << 10]
            return
        heading, self._heading = self._heading, None
        before, opened, after = section.partition(b"<pre>")
        body, closed, _ = after.rpartition(b"</pre>")
        failed = _FAILED.search(before)
        status = int(failed[1]) if failed else OK
        if self._too_long or not (opened and closed):
            status, body = (TOO_LONG if self._too_long else UNREADABLE), b""
        place = _HOST_OF_RANK.match(heading)
        host = place[1].decode().strip("[]") if place else ""
        listens = (place[1] + (place[2] or b"")).decode() if place else ""
        if b'"' not in body and b"&#34;" in body:
            body = html.unescape(body.decode("utf-8", "replace")).encode()
        answer = RankAnswer(rank=self._rank, host=host, listens=listens, status=status, body=body)
        try:
            self._by_rank[self._rank] = self._take(answer)
        except OverBudgetError as error:
            self.cut = str(error)


def _quoted(text: bytes) -> str:
    words = clip(masked(text.strip().decode("utf-8", "replace")), 80)
    return f'"{words}"' if words else "nothing"
