"""Resolves a name and tries a TCP connection; refused, silent, no route and prohibited are told apart."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddpdoctor.base.async_work import within
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome
from ddpdoctor.network_check.protocol.threads import in_thread

CONNECT_SECONDS: Final = 3.5
"""Seconds a try. The kernel gives a neighbour that doesn't answer up after three seconds, and that word is worth waiting for."""

NEIGHBOUR_GIVEN_UP: Final = 2.5
"""Seconds. EHOSTUNREACH that comes sooner was sent by somebody; later, it is the kernel that asked for a neighbour in vain."""

SEGMENT: Final = 1200
"""Bytes of a TCP segment, both ways: so much passes where longer packets get lost, and it is for a later phase to say so."""

LOOK_AGAIN: Final = 0.05
"""Seconds until a socket that is woken without a reason is looked at once more."""

THIN_LINEAR_TIMEOUTS: Final = 16
"""Linux's TCP_THIN_LINEAR_TIMEOUTS, which Python doesn't name."""

NO_WAY: Final = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN, errno.EINVAL)
FORBIDDEN: Final = (errno.EACCES, errno.EPERM)
CUT_OFF: Final = (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)


class Destination(NamedTuple):
    """Where to dial, as getaddrinfo says it: an IPv6 socket address carries the scope of a link-local one."""

    family: int
    sockaddr: tuple[Any, ...]

    @property
    def address(self) -> str:
        return str(self.sockaddr[0])


def system_words(error: OSError) -> str:
    """What the system calls it; asyncio's own text holds the address as well. A resolver's numbers aren't the system's."""
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def send_again_soon(one: socket.socket) -> None:
    """Short messages that get lost are sent again at even intervals: doubled ones grow to minutes where many packets are
    lost, and that is what is looked for. What a listening socket accepts is the same."""
    with suppress(OSError):
        one.setsockopt(socket.IPPROTO_TCP, THIN_LINEAR_TIMEOUTS, 1)


async def connect(to: Destination, seconds: float = CONNECT_SECONDS) -> tuple[Attempt, socket.socket | None]:
    """Try to connect once. The socket, where it is connected, is the caller's to close."""  # noqa: DOC501 (caught here)
    started = time.monotonic()
    try:
        one = socket.socket(to.family, socket.SOCK_STREAM)
    except OSError as error:
        return _attempt(
            to, ConnectOutcome.NO_ROUTE if error.errno in NO_WAY else ConnectOutcome.FAILED, error, started
        ), None
    try:
        one.setblocking(False)
        with suppress(OSError):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
            send_again_soon(one)
        try:
            with suppress(BlockingIOError):
                one.connect(to.sockaddr)
        except OSError as error:
            one.close()
            return _attempt(to, _met_at_once(error), error, started), None
        await within(seconds, _answered(one))
        if one.getsockname() == one.getpeername():
            # An ephemeral port dialled on one's own host can be the one that this very socket was given.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except TimeoutError:
        one.close()
        # On a busy host the kernel can take longer over its three questions than we wait.
        return _attempt(
            to, ConnectOutcome.NO_HOST if _is_unknown_neighbour(to.address) else ConnectOutcome.SILENT, None, started
        ), None
    except OSError as error:
        one.close()
        return _attempt(to, _met(error, to.address, time.monotonic() - started), error, started), None
    except BaseException:
        one.close()
        raise
    return _attempt(to, ConnectOutcome.CONNECTED, None, started), one


async def _answered(one: socket.socket) -> None:
    """Until the connection stands. Raises the answer's OSError; a second connect(), as asyncio's own, could swallow it.

    A socket can be woken with neither an error nor a peer; that is no answer yet.
    """
    await _writable(one)
    while not _stands(one):
        await asyncio.sleep(LOOK_AGAIN)
        await _writable(one)


async def _writable(one: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(one, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(one)


def _stands(one: socket.socket) -> bool:
    if code := one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
    try:
        one.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return False
        raise
    return True


def _attempt(to: Destination, met: ConnectOutcome, error: OSError | None, started: float) -> Attempt:
    words = system_words(error) if error else ""
    return Attempt(address=to.address, met=met, words=words, seconds=round(time.monotonic() - started, 3))


def _met_at_once(error: OSError) -> ConnectOutcome:
    """Of connect() itself, before a packet went out: this host's own routes and rules speak."""
    if error.errno in (*NO_WAY, errno.EHOSTUNREACH):
        return ConnectOutcome.NO_ROUTE
    if error.errno in FORBIDDEN:
        return ConnectOutcome.PROHIBITED
    return ConnectOutcome.REFUSED if error.errno == errno.ECONNREFUSED else ConnectOutcome.FAILED


def _met(error: OSError, address: str, seconds: float) -> ConnectOutcome:
    """Of the answer to the first packet."""
    if error.errno in (errno.ECONNREFUSED, *CUT_OFF):
        return ConnectOutcome.REFUSED
    if error.errno == errno.ETIMEDOUT:
        return ConnectOutcome.SILENT
    if error.errno == errno.EHOSTUNREACH:
        nobody = seconds >= NEIGHBOUR_GIVEN_UP or _is_unknown_neighbour(address)
        return ConnectOutcome.NO_HOST if nobody else ConnectOutcome.PROHIBITED
    if error.errno in FORBIDDEN:
        return ConnectOutcome.PROHIBITED
    return ConnectOutcome.NO_ROUTE if error.errno in NO_WAY else ConnectOutcome.FAILED


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
        found = await within(seconds, in_thread(lambda: _look_up(name, port)))
    except TimeoutError:
        raise UnknownNameError(f"the resolver gave no answer within {seconds:.0f} s") from None
    except (OSError, UnicodeError) as failure:
        raise UnknownNameError(getattr(failure, "strerror", None) or str(failure)) from None
    return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]


def _look_up(name: str, port: int) -> list[Destination]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    ours = (socket.AF_INET, socket.AF_INET6)
    return [Destination(family, address) for family, *_, address in found if family in ours]


MAX_OPEN_FILES: Final = 65536


def allow_files(count: int) -> None:
    """Raises this process's own limit of open files where it is lower than that and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
