"""Limits of what a node does at node 0's word. Pure.

Where there is no token, whoever takes the master's port first speaks as node 0. So a node goes by what it knows itself: its
command line, its own addresses, and where it met node 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.fleet import Cell
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.interface_choice import as_address
from ddpdoctor.network_check.analysis.fault_location import COUNTED_DIALS
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.claimed_addresses import (
    addresses_of,
    near_network,
    networks_of,
    plain_address,
    why_no_listen_address,
)
from ddpdoctor.network_check.protocol.tokens import is_private_address

MIN_PORTS_PER_PEER, MAX_DIALLED_PORTS = 3, 320
"""A node of a large fleet dials about MAX_DIALLED_PORTS ports in all, but MIN_PORTS_PER_PEER of each peer."""

MAX_ORDERS: Final[Mapping[type[messages.Order], int]] = {
    messages.Open: 1,
    messages.Dial: 2 * (1 + COUNTED_DIALS),
    messages.Count: 2 * COUNTED_DIALS,
    messages.Measure: 256,
    messages.Collect: 2,
    messages.Train: 1,
}
"""Orders of each kind in one run: what a test takes, and some more where a repetition does no harm."""

MEASURING_SECONDS: Final = 60.0
"""In which one node may measure links, and in which it may be measured: a tournament takes some ten."""


class RefusedOrderError(Exception):
    """No node 0 of ours orders that; the text says what."""


class Master(msgspec.Struct, frozen=True, kw_only=True):
    """Node 0 as this node was told of it by its own user or launcher, and met it.

    address: of the other end of the connection to it; own_address: of ours. host, port: where the job's own store is. proved:
    it has shown that it knows the job's token.
    """

    address: str
    own_address: str
    host: str
    port: int
    proved: bool = False


class PortOutcome(msgspec.Struct, frozen=True):
    """Outcome of one port: its cell, and why, in the system's words, where it failed. One that isn't dialled has one, too."""

    cell: Cell
    words: str = ""


class OrderLimits:
    """The limits of one run on one node, which take up what it was ordered so far."""

    def __init__(self, snapshot: Snapshot, master: Master, welcome: messages.Welcome) -> None:
        self._node = welcome.node_rank
        self._nnodes = welcome.nnodes
        self._own = addresses_of(snapshot) | {plain_address(master.own_address)}
        self._networks = networks_of(snapshot)
        self._master = master
        self._times: Counter[type[messages.Order]] = Counter()
        self._backends: set[str] = set()
        self._places: dict[tuple[int, str], messages.ListenAddress] | None = None
        """By node and kind, as the first order to dial had them."""
        self.refused: dict[tuple[int, str], PortOutcome] = {}
        """Of these, those that are not dialled."""
        self.measured_seconds = 0.0

    def check(self, order: messages.Order) -> None:
        """Take up one more order.

        Raises:
            RefusedOrderError: it isn't to be carried out.
        """
        kind = type(order)
        self._times[kind] += 1
        if self._times[kind] > MAX_ORDERS[kind]:
            raise RefusedOrderError(f"{kind.__name__.lower()} was ordered more than {MAX_ORDERS[kind]} times")
        if isinstance(order, messages.Dial):
            self._check_peers(order.peers)
        elif isinstance(order, messages.Measure) and order.peer is not None:
            self._check_told(order.peer)
            if self.measured_seconds >= MEASURING_SECONDS:
                raise RefusedOrderError(f"links were to be measured for more than {MEASURING_SECONDS:.0f} s")
        elif isinstance(order, messages.Collect):
            self._check_collective(order)

    def dialled(self, peer: messages.Peer) -> messages.Peer:
        """The peer with those of its places that are dialled."""
        places = tuple(place for place in peer.places if (peer.node, place.kind) not in self.refused)
        return msgspec.structs.replace(peer, places=places)

    # --- whom it dials ----------------------------------------------------------------------------------------------------

    def _check_peers(self, peers: Sequence[messages.Peer]) -> None:
        """Check that the first order names all addresses of all peers, and the later ones no others.

        Raises:
            RefusedOrderError: it names others, or no peers.
        """
        found: dict[tuple[int, str], messages.ListenAddress] = {}
        for peer in peers:
            if peer.node >= self._nnodes or peer.node == self._node:
                raise RefusedOrderError(f"node {peer.node} is no peer of node {self._node} of {self._nnodes}")
            for place in peer.places:
                if (peer.node, place.kind) in found:
                    raise RefusedOrderError(f"node {peer.node} was named twice")
                found[peer.node, place.kind] = place
        if self._places is None:
            self._take(found)
        for peer in peers:
            self._check_told(peer)

    def _check_told(self, peer: messages.Peer) -> None:
        told = self._places or {}
        if not all(_is_part(place, told.get((peer.node, place.kind))) for place in peer.places):
            raise RefusedOrderError(f"node {peer.node} is said to listen elsewhere than before")

    def _take(self, places: Mapping[tuple[int, str], messages.ListenAddress]) -> None:
        ports = sum(len(place.ports) for (_, kind), place in places.items() if kind == "route")
        most = max(MAX_DIALLED_PORTS, MIN_PORTS_PER_PEER * self._nnodes)
        if ports > most or any(len(place.ports) > 1 for (_, kind), place in places.items() if kind != "route"):
            raise RefusedOrderError(f"more ports of the peers were to be dialled than {most}")
        self._places = dict(places)
        for (node, kind), place in places.items():
            if refused := self._refused(place, here=self._is_here(places.get((node, "route")))):
                self.refused[node, kind] = refused

    def _is_here(self, route: messages.ListenAddress | None) -> bool:
        """Whether that peer is said to be on this host; it can be where node 0 is here as well."""
        far, near = plain_address(self._master.address), plain_address(self._master.own_address)
        if route is None or not self._is_own(far) or why_no_listen_address(route):
            return False
        address = plain_address(route.address)
        return address in (far, near) or (as_address(address).is_loopback and as_address(far).is_loopback)

    def _is_own(self, address: str) -> bool:
        return address in self._own or as_address(address).is_loopback

    def _refused(self, place: messages.ListenAddress, *, here: bool) -> PortOutcome | None:
        if why := why_no_listen_address(place):
            return PortOutcome(Cell.NOT_TRIED, why)
        address = plain_address(place.address)
        if self._is_own(address):
            # An address of a host's own, as docker0's, leads nowhere else from here.
            return None if here else PortOutcome(Cell.OTHER, "it is this node itself")
        number = as_address(address)
        if number.version == 6 and number.is_link_local:
            met = as_address(self._master.address).is_link_local
            return None if met else PortOutcome(Cell.NOT_TRIED, f"{place.address} is a link-local address")
        ends = (self._master.address, self._master.own_address)
        networks = self._networks if number.is_link_local else (*self._networks, *map(near_network, ends))
        if any(number.version == net.version and number in net for net in networks):
            return None
        if not number.is_link_local and (self._master.proved or is_private_address(address)):
            return None
        return PortOutcome(Cell.NOT_TRIED, f"{place.address} is in none of the job's networks")

    # --- collectives ------------------------------------------------------------------------------------------------------

    def _check_collective(self, order: messages.Collect) -> None:
        # Rank 0 listens for the others, for which it is node 0's place alone.
        fits = order.rank < order.world_size <= self._nnodes and (order.rank == 0) == (self._node == 0)
        if not fits:
            raise RefusedOrderError(
                f"node {self._node} of {self._nnodes} was to be rank {order.rank} of {order.world_size}"
            )
        if order.backend in self._backends:
            raise RefusedOrderError(f"{order.backend} was ordered twice")
        self._backends.add(order.backend)


def _is_part(place: messages.ListenAddress, of: messages.ListenAddress | None) -> bool:
    return of is not None and place.address == of.address and set(place.ports) <= set(of.ports)
