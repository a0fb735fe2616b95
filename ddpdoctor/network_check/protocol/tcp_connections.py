"""Names resolved and TCP connections tried: refused, silent, no route and prohibited are told apart."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddpdoctor.base.async_work import in_thread, within
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome

CONNECT_SECONDS: Final = 3.5
"""Seconds a try. The kernel gives a neighbour that doesn't answer up after three seconds, and that word is worth waiting for."""

NEIGHBOUR_SECONDS: Final = 2.5
"""Seconds. EHOSTUNREACH that comes sooner was sent by somebody; later, it is the kernel that asked for a neighbour in vain."""

SEGMENT_BYTES: Final = 1200
"""Bytes of a TCP segment, both ways: so much passes where longer packets get lost, and it is for a later phase to say so."""

LOOK_AGAIN_SECONDS: Final = 0.05
"""Seconds until a socket that is woken without a reason is looked at once more."""

THIN_LINEAR_TIMEOUTS: Final = 16
"""Linux's TCP_THIN_LINEAR_TIMEOUTS, which Python doesn't name."""

NO_WAY: Final = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN, errno.EINVAL)
FORBIDDEN: Final = (errno.EACCES, errno.EPERM)
CUT_OFF: Final = (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)


class Destination(NamedTuple):
    """An address to dial, as getaddrinfo says it: an IPv6 socket address carries the scope of a link-local one."""

    family: int
    sockaddr: tuple[Any, ...]

    @property
    def address(self) -> str:
        return str(self.sockaddr[0])

    def at_port(self, port: int) -> Destination:
        """Give the same address with another port."""
        host, _, *scope = self.sockaddr
        return Destination(self.family, (host, port, *scope))


def system_words(error: OSError) -> str:
    """The system's words for it; asyncio's own text holds the address as well. A resolver's numbers aren't the system's."""
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def numeric_name(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family and the socket's name of a numeric address ("10.0.0.1", "fe80::1%eth0").

    Raises:
        OSError: it is none.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, name = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, name


def unacknowledged_bytes(writer: asyncio.StreamWriter) -> int:
    """Bytes that the other host has not received yet: in our buffer, and in the kernel's."""
    unsent = writer.transport.get_write_buffer_size()
    with suppress(OSError, ValueError):
        queued = fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        unsent += int.from_bytes(queued, sys.byteorder)
    return unsent


def send_again_soon(connection: socket.socket) -> None:
    """Have short messages that get lost sent again at even intervals: doubled ones grow to minutes where many packets are
    lost, and that is what is looked for. What a listening socket accepts is the same."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, THIN_LINEAR_TIMEOUTS, 1)


async def connect(to: Destination, seconds: float = CONNECT_SECONDS) -> tuple[Attempt, socket.socket | None]:
    """Try to connect once. The socket, where it is connected, is the caller's to close."""  # noqa: DOC501 (caught here)
    started = time.monotonic()
    try:
        connection = socket.socket(to.family, socket.SOCK_STREAM)
    except OSError as error:
        met = ConnectOutcome.NO_ROUTE if error.errno in NO_WAY else ConnectOutcome.FAILED
        return _attempt(to, met, error, started), None
    sent = False
    try:
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
            send_again_soon(connection)
        with suppress(BlockingIOError):
            connection.connect(to.sockaddr)
        sent = True
        await within(seconds, _answered(connection))
        if connection.getsockname() == connection.getpeername():
            # An ephemeral port dialled on one's own host can be the one that this very socket was given.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except TimeoutError:
        connection.close()
        # On a busy host the kernel can take longer over its three questions than we wait.
        met = ConnectOutcome.NO_HOST if _is_unknown_neighbour(to.address) else ConnectOutcome.SILENT
        return _attempt(to, met, None, started), None
    except OSError as error:
        connection.close()
        met = _outcome_of_answer(error, to.address, time.monotonic() - started) if sent else _outcome(error)
        return _attempt(to, met, error, started), None
    except BaseException:
        connection.close()
        raise
    return _attempt(to, ConnectOutcome.CONNECTED, None, started), connection


async def _answered(connection: socket.socket) -> None:
    """Wait until the connection stands. A second connect(), as asyncio's own, could swallow the answer.

    A socket can be woken with neither an error nor a peer; that is no answer yet.

    Raises:
        OSError: the answer.
    """
    while True:
        await _writable(connection)
        if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        try:
            connection.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        else:
            return
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(connection, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(connection)


def _attempt(to: Destination, met: ConnectOutcome, error: OSError | None, started: float) -> Attempt:
    words = system_words(error) if error else ""
    return Attempt(address=to.address, met=met, words=words, seconds=round(time.monotonic() - started, 3))


def _outcome(error: OSError) -> ConnectOutcome:
    """Before a packet went out, this host's own routes and rules speak."""
    if error.errno in (*NO_WAY, errno.EHOSTUNREACH):
        return ConnectOutcome.NO_ROUTE
    if error.errno in FORBIDDEN:
        return ConnectOutcome.PROHIBITED
    return ConnectOutcome.REFUSED if error.errno == errno.ECONNREFUSED else ConnectOutcome.FAILED


def _outcome_of_answer(error: OSError, address: str, seconds: float) -> ConnectOutcome:
    """The outcome by the answer to the first packet, which came after so long."""
    if error.errno in CUT_OFF:
        return ConnectOutcome.REFUSED
    if error.errno == errno.ETIMEDOUT:
        return ConnectOutcome.SILENT
    if error.errno == errno.EHOSTUNREACH:
        nobody = seconds >= NEIGHBOUR_SECONDS or _is_unknown_neighbour(address)
        return ConnectOutcome.NO_HOST if nobody else ConnectOutcome.PROHIBITED
    return _outcome(error)


def _is_unknown_neighbour(address: str) -> bool:
    """Whether the kernel asked the network who has that IPv4 address, and got no answer."""
    try:
        rows = [line.split() for line in Path("/proc/net/arp").read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(row[0] == address and int(row[2], 16) == 0 for row in rows if len(row) > 2)


RESOLVER_SECONDS: Final = 5.0
"""Seconds. A dead DNS server keeps getaddrinfo waiting for 10 s and more."""

MAX_ADDRESSES: Final = 16
"""Addresses of one name that are looked at."""


class UnknownNameError(Exception):
    """The name has no address; the text is the resolver's reason."""


async def destinations(name: str, port: int, seconds: float = RESOLVER_SECONDS) -> tuple[Destination, ...]:
    """Give the addresses of a name in getaddrinfo's order, at least one.

    Raises:
        UnknownNameError: it has none, or the resolver doesn't answer.
    """
    try:
        found = await within(seconds, in_thread(lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)))
    except TimeoutError:
        raise UnknownNameError(f"the resolver gave no answer within {seconds:.0f} s") from None
    except (OSError, UnicodeError) as failure:
        raise UnknownNameError(getattr(failure, "strerror", None) or str(failure)) from None
    families = (socket.AF_INET, socket.AF_INET6)
    ours = [Destination(family, address) for family, *_, address in found if family in families]
    return tuple(dict.fromkeys(ours))[:MAX_ADDRESSES]


MAX_OPEN_FILES: Final = 65536


def allow_files(count: int) -> None:
    """Raise this process's own limit of open files where it is lower than that and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
