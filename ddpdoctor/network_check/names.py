"""The addresses of a name, asked of a resolver that may not answer."""

from __future__ import annotations

import socket
from typing import Final

from ddpdoctor.base.deadlines import within
from ddpdoctor.network_check.connecting import Destination
from ddpdoctor.network_check.threads import in_thread

LIMIT: Final = 5.0
"""Seconds. A dead DNS server keeps getaddrinfo waiting for 10 s and more."""

MOST: Final = 16
"""Addresses of one name that are looked at."""


class UnknownNameError(Exception):
    """The name has no address; the text is the resolver's reason."""


async def destinations(name: str, port: int, seconds: float = LIMIT) -> tuple[Destination, ...]:
    """Its addresses in getaddrinfo's order, at least one, or UnknownNameError."""
    try:
        found = await within(seconds, in_thread(lambda: _look_up(name, port)))
    except TimeoutError:
        raise UnknownNameError(f"the resolver gave no answer within {seconds:.0f} s") from None
    except (OSError, UnicodeError) as failure:
        raise UnknownNameError(getattr(failure, "strerror", None) or str(failure)) from None
    return tuple(dict.fromkeys(found))[:MOST]


def _look_up(name: str, port: int) -> list[Destination]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    ours = (socket.AF_INET, socket.AF_INET6)
    return [Destination(family, address) for family, *_, address in found if family in ours]
