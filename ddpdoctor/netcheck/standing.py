"""Where the hub shall stand: which of the master's addresses are this host's own."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.network import Network
from ddpdoctor.knowledge.interface_choice import as_address
from ddpdoctor.knowledge.job_intent import address_of, way_to_the_others
from ddpdoctor.netcheck.hub import Hub


def is_own(address: str) -> bool:
    """Whether this host could listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


def hub_addresses(master: str, addresses: Sequence[str], network: Network) -> tuple[str, ...]:
    """The addresses to listen on, of those that the master's name has here; none, if the master is another host.

    Where the name leads to the loopback on its own host (Debian's 127.0.1.1) it leads elsewhere on the others: then the
    address by which this host reaches them. Asked for by number, or as localhost, the loopback is meant.
    """
    # IPv4 first: hosts that have IPv6 as well mostly have both, and others come without it.
    own = tuple(sorted((one for one in addresses if is_own(one)), key=lambda one: ":" in one))
    asked_for = master in ("localhost", *addresses)
    if asked_for or not own or not all(as_address(one).is_loopback for one in own):
        return own
    way = way_to_the_others(network)
    outer = (address_of(way, network) if way else None) or next(_outer(network), None)
    return (outer,) if outer else own


def met_at(hub: Hub, otherwise: str) -> str:
    """The address of node 0 at which most of the others came; `otherwise` where nobody has."""
    came = Counter(guest.came_to for rank, guest in hub.guests.items() if rank and not guest.lost)
    return came.most_common(1)[0][0] if came else otherwise


def _outer(network: Network) -> Iterator[str]:
    """Addresses that are neither the loopback's nor link-local."""
    for one in network.interfaces:
        for text in one.addresses:
            address = text.partition("/")[0]
            if not one.loopback and not as_address(address).is_link_local:
                yield address
