"""The hub's side of the connection to one node: its facts, its clock, and the order that it carries out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.async_work import in_thread
from ddpdoctor.engine.snapshots import SnapshotError, decode_snapshot, encode_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.bounded_lines import LineError, plain, unpack
from ddpdoctor.network_check.protocol.claimed_addresses import (
    addresses_of,
    networks_of,
    plain_address,
    why_not_its_address,
)
from ddpdoctor.network_check.protocol.handshake_server import AuthenticatedPeer
from ddpdoctor.network_check.protocol.rejected_connections import describe_first_bytes

CLOCK_EXCHANGES: Final = 8
"""Comparisons of clocks at the beginning, one after the other."""

LINGER_SECONDS: Final = 1.0
"""How long a peer that was given up may take to read that."""

_ANSWERS: Final[dict[type[messages.Order], type[messages.Answer]]] = {
    messages.Open: messages.Opened,
    messages.Dial: messages.Dialled,
    messages.Count: messages.Counted,
    messages.Measure: messages.Measured,
    messages.Collect: messages.Collected,
    messages.Train: messages.TrainingDone,
}
_DECODER = msgspec.json.Decoder(messages.Pong | messages.Goodbye | messages.HostFacts | messages.Answer)
_MAX_UNANSWERED: Final = 64
"""Pings that are remembered. A peer that leaves so many unanswered has been lost long before."""


OWN_FACTS_BYTES: Final = 128 * 1024
"""Bytes of its facts as JSON that every peer may have, whatever the others send: 512 of them come to 64 MiB."""
SHARED_FACTS_BYTES: Final = 64 * 1024 * 1024
"""Bytes of facts that all peers together may have beyond these."""


class PeerError(Exception):
    """The peer goes, or has to go; the text says why."""


class SnapshotBudget:
    """Limits the memory that the facts of all peers of a hub may take."""

    def __init__(self) -> None:
        self._left = SHARED_FACTS_BYTES
        self._turn = asyncio.Lock()
        # msgspec learns a type when it first meets it, and dies where two threads do that at once.
        decode_snapshot(encode_snapshot(Snapshot()), "nothing")

    async def unpack(self, packed: bytes) -> Snapshot:
        """Unpack a node's facts outside of the event loop's thread.

        Raises:
            PeerError: it is no snapshot, or there is no room for one so large.
        """
        async with self._turn:
            try:
                return await in_thread(lambda: self._decoded(packed))
            except (ValueError, SnapshotError) as error:
                raise PeerError(plain(str(error), 200)) from error

    def _decoded(self, packed: bytes) -> Snapshot:
        content = unpack(packed)
        beyond = max(0, len(content) - OWN_FACTS_BYTES)
        if beyond > self._left:
            raise PeerError(f"its facts have {len(content) >> 10} KiB, and those of the others leave no room for that")
        self._left -= beyond
        return decode_snapshot(content, "its facts")


class PeerConnection:
    """The connection to one node that the hub has let in.

    Args:
        rank: of the node.
        candidate: the connection, as it came in.
        nnodes: of the job.
        budget: the hub's.
        peers: all that the hub has let in, by rank.

    Attributes:
        facts: what it said of its host; None before that came.
        offset: seconds that its clock is ahead of ours, right within `error` seconds.
        lost: why it is no longer there; "" while it is.
        came: when, by the event loop's clock.
        decoding: we are at its facts, and don't read what it says meanwhile.
    """

    def __init__(
        self,
        rank: int,
        candidate: AuthenticatedPeer,
        nnodes: int,
        budget: SnapshotBudget,
        peers: Mapping[int, PeerConnection],
    ) -> None:
        self.rank = rank
        self.host = candidate.hello.host
        self.address = candidate.address
        self.lines = candidate.lines
        self.facts: Snapshot | None = None
        self.offset = 0.0
        self.error = 0.0
        self.lost = ""
        self.came = asyncio.get_running_loop().time()
        self.decoding = False
        self._nnodes = nnodes
        self._budget = budget
        self._peers = peers
        self._writer = candidate.writer
        self._round_trip = math.inf
        self._pings = 0
        self._compared = 0
        self._unanswered: dict[int, float] = {}
        self._said_last = False
        self._asked: tuple[messages.Order, asyncio.Future[messages.Answer | None]] | None = None

    @property
    def _unfinished(self) -> tuple[messages.Order, asyncio.Future[messages.Answer | None]] | None:
        """The order that it has yet to answer."""
        return None if self._asked is None or self._asked[1].done() else self._asked

    @property
    def joined(self) -> bool:
        """Whether it is there, with its facts and its clock."""
        return self.facts is not None and not self.lost and self._compared >= CLOCK_EXCHANGES

    @property
    def dialled_address(self) -> str:
        """Our address that it dialled."""
        return str(self._writer.get_extra_info("sockname")[0])

    def send(self, line: bytes) -> None:
        """Hand it a line, which goes out when the peer reads; one that doesn't is lost to silence."""
        if not self._said_last and not self._writer.is_closing():
            self._writer.write(line)

    def ping(self) -> None:
        """Ask for a sign of life, which also compares the clocks."""
        self._pings += 1
        if len(self._unanswered) < _MAX_UNANSWERED:
            self._unanswered[self._pings] = time.time()
            self.send(messages.encode(messages.Ping(number=self._pings, sent=self._unanswered[self._pings])))

    def order(self, order: messages.Order, line: bytes) -> asyncio.Future[messages.Answer | None]:
        """Send the order as this line. The future gives the answer, or None where the peer is lost before."""
        assert self._unfinished is None, "one order at a time"
        future: asyncio.Future[messages.Answer | None] = asyncio.get_running_loop().create_future()
        self._asked = order, future
        self.send(line)
        return future

    def max_line_bytes(self) -> int:
        """Bytes that its next line may have: no more than what it is to say takes."""
        if self.facts is None:
            return messages.MAX_FACTS_BYTES
        order = self._unfinished[0] if self._unfinished else None
        if isinstance(order, messages.Train):
            watch = messages.MAX_WATCH_BYTES if order.duration else 0
            return messages.MAX_ANSWER_BYTES + messages.MAX_RANK_RUN_BYTES * order.nproc + watch
        return messages.MAX_ANSWER_BYTES + (
            messages.MAX_OUTCOME_BYTES * self._nnodes if isinstance(order, messages.Dial) else 0
        )

    async def receive(self, line: bytes) -> None:
        """Take one line of the peer.

        Raises:
            PeerError: it says goodbye, or what it says makes no sense.
        """
        came = time.time()
        try:
            message = _DECODER.decode(line)
        except messages.UNDECODABLE as error:
            raise PeerError(f"it sent {describe_first_bytes(line)}") from error
        if isinstance(message, messages.Pong):
            self._compare(message, came)
        elif isinstance(message, messages.HostFacts):
            await self._take_facts(message)
        elif isinstance(message, messages.Goodbye):
            raise PeerError(plain(message.why) or "it left")
        else:
            self._answered(message)

    def lose(self, why: str) -> None:
        """Give it up, and tell it so; it may still hear us."""
        self.lost = why
        if self._unfinished:
            self._unfinished[1].set_result(None)
        self.send_last(messages.NoVerdict(why=f"node 0 went on without this node: {why}", exit_code=1))
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._writer.transport.abort)

    def send_last(self, message: messages.Message) -> None:
        """Send the last line. The connection stays open for the peer's end of it: were it closed while the peer says
        something, the reset would take the line away again."""
        self.send(messages.encode(message))
        self._said_last = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def until_closed(self) -> None:
        """Wait until the peer, too, has nothing more to say. Nothing of it is kept."""
        with contextlib.suppress(LineError):
            while True:
                await self.lines.read_line(messages.MAX_ANSWER_BYTES)

    def _compare(self, pong: messages.Pong, came: float) -> None:
        sent = self._unanswered.pop(pong.number, None)
        if sent is None:
            raise PeerError("it answered a ping that was never sent")
        self._compared += 1
        round_trip = (came - sent) - (pong.went - pong.came)
        offset = ((pong.came - sent) + (pong.went - came)) / 2
        # Less than nothing, or more than it took by our clock: one of the clocks was set meanwhile.
        if 0 <= round_trip <= came - sent and round_trip < self._round_trip and math.isfinite(offset):
            self._round_trip, self.offset, self.error = round_trip, offset, round_trip / 2
        if self._compared < CLOCK_EXCHANGES:
            self.ping()

    async def _take_facts(self, message: messages.HostFacts) -> None:
        if self.facts is not None:
            raise PeerError("it sent its facts twice")
        self.decoding = True
        try:
            self.facts = await self._budget.unpack(message.snapshot)
        finally:
            self.decoding = False
            self.lines.restart_clocks()

    def _answered(self, answer: messages.Answer) -> None:
        if self._unfinished is None:
            raise PeerError(f"it answered {type(answer).__name__} where nothing was asked")
        order, future = self._unfinished
        kind = _ANSWERS[type(order)]
        if not isinstance(answer, (kind, messages.OrderFailed)):
            raise PeerError(f"it answered {type(answer).__name__} where {kind.__name__} was expected")
        if isinstance(answer, messages.Opened) and isinstance(order, messages.Open):
            self._check_places(answer.places, order.ports)
        future.set_result(answer)

    def _check_places(self, places: Sequence[messages.ListenAddress], ports: int) -> None:
        """Check where the node says that it listens, on so many ports of its route: the others are to dial there, so the addresses
        must be its own. Node 0 knows its own ones.

        Raises:
            PeerError: another node's, nobody's, or more than it was to.
        """
        seen, claimed = plain_address(self.address), addresses_of(self.facts)
        zero = self._peers.get(0)
        others = {peer_connection.address for peer_connection in self._peers.values()} - {self.address}
        networks = networks_of(zero.facts if zero else None)
        for place in places:
            why = why_not_its_address(place, seen, claimed, others, networks)
            if why and not (self.rank == 0 and plain_address(place.address) in claimed):
                raise PeerError(why)
            if len(place.ports) > (ports if place.kind == "route" else 1):
                raise PeerError(f"it listens on {len(place.ports)} ports, more than it was to")
        if len({place.kind for place in places}) < len(places):
            raise PeerError("it says twice where it listens")
