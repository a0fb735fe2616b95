"""The worker of a node: it carries out what the hub orders for netcheck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ddpdoctor.base.unknown import Unknown, known_or
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.interface_choice import as_address
from ddpdoctor.network_check.phases import ip_counters, link_measurement, run_collective
from ddpdoctor.network_check.phases.dial_peers import dial
from ddpdoctor.network_check.phases.peer_listeners import Listeners
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.order_limits import Master, OrderLimits, RefusedOrderError
from ddpdoctor.network_check.protocol.tcp_connections import MAX_OPEN_FILES, allow_files

DEFAULT_PORT_RANGE = (32768, 60999)


class NetcheckWorker:
    """The orders of netcheck on one node, within the limits of a test.

    Args:
        snapshot: this node's own facts.
        address: gives the address by which the others meet this node; asked when it is to listen, since node 0 knows its own
            only when the others have come.
        master: where this node met node 0.
        python: the target Python.
        environ: the settings that a rank started now would inherit.
        quick: no collectives were wanted here.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        address: Callable[[], str],
        master: Master,
        python: str,
        environ: Mapping[str, str],
        *,
        quick: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._address = address
        self._master = master
        self._python = python
        self._environ = environ
        self._listeners = Listeners(link_measurement.serve)
        # Every peer costs some, and a soft limit is no firewall.
        allow_files(MAX_OPEN_FILES)
        self._quick = quick
        self._collected = False
        self._run = ""
        self._node = -1
        self._refused = ""

    def welcome(self, welcome: messages.Welcome) -> None:
        self._run, self._node = welcome.run, welcome.node_rank
        self._limits = OrderLimits(self._snapshot, self._master, welcome)

    async def carry_out(self, order: messages.Order) -> messages.Answer:
        try:
            self._limits.check(order)
        except RefusedOrderError as error:
            self._refused = str(error)
            return messages.OrderFailed(why=f"it was ordered what no node 0 of ours orders: {error}")
        if isinstance(order, messages.Open):
            return await self._listeners.open(
                listening_places(self._snapshot, self._address()),
                self._run,
                self._node,
                self._port_range(),
                order.ports,
            )
        if isinstance(order, messages.Dial):
            try:
                return await dial(order, self._run, self._node, self._limits.refused)
            finally:
                self._listeners.measuring = True
        if isinstance(order, messages.Count):
            return msgspec.structs.replace(ip_counters.count(self._address()), errors=self._listeners.errors)
        if isinstance(order, messages.Measure):
            return await self._measure(order)
        if isinstance(order, messages.Collect):
            self._collected = True
            # Whatever is ordered, torch goes to the master that was named here.
            order = msgspec.structs.replace(order, master=self._master.host, port=self._master.port)
            return await run_collective.collect(order, python=self._python, environ=self._environ)
        return messages.OrderFailed(why="this node was started for netcheck")

    async def _measure(self, order: messages.Measure) -> messages.Measured:
        peer = self._limits.dialled(order.peer) if order.peer else None
        began = time.monotonic()
        try:
            return await link_measurement.measure(msgspec.structs.replace(order, peer=peer), self._run, self._node)
        finally:
            self._limits.measured_seconds += time.monotonic() - began

    def add_facts(self, snapshot: Snapshot) -> Snapshot:
        # What it found out concerns all nodes, and node 0 has it.
        return snapshot

    def ignored_options(self) -> Iterator[str]:
        if self._quick and self._collected:
            yield "--quick has no effect here: node 0 runs without it"
        if self._refused:
            yield f"node 0 ordered what none of ours does, and it was not done: {self._refused}"

    async def close(self) -> None:
        await self._listeners.close()

    def _port_range(self) -> tuple[int, int]:
        network = self._snapshot.network
        if isinstance(network, Unknown) or isinstance(network.ephemeral_range, Unknown):
            return DEFAULT_PORT_RANGE
        return network.ephemeral_range


def listening_places(snapshot: Snapshot, address: str) -> dict[str, str]:
    """Give the address to listen at by kind: "route" meets the hub; "nccl" and "gloo" where they'd take another one."""
    places = {"route": address}
    nccl = snapshot.nccl
    if isinstance(nccl, Nccl):
        for kind, offered in (
            ("nccl", nccl.answer_address or nccl.predicted_address),
            ("gloo", known_or(nccl.gloo_address, None)),
        ):
            # A link-local address means nothing without the name of an interface, which the others may call otherwise.
            if offered and offered != address and not (":" in offered and as_address(offered).is_link_local):
                places[kind] = offered
    return places
