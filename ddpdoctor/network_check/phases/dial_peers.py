"""Dialling the peers: who answers at their addresses, and whether a large message arrives there."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from typing import Final, NamedTuple

from ddpdoctor.base.async_work import within
from ddpdoctor.facts.fleet import Cell
from ddpdoctor.network_check.phases.peer_listeners import ARRIVED, LARGE_MESSAGE_BYTES
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.order_limits import PortOutcome
from ddpdoctor.network_check.protocol.peer_handshake import REACH, CutOffError, NotAPeerError, PeerStream, dial_peer
from ddpdoctor.network_check.protocol.tcp_connections import system_words, unacknowledged_bytes

MIN_PROGRESS_BYTES: Final = 2048
"""Bytes of the large message: where no more than these are acknowledged, it makes no progress."""

SECOND_TRIES: Final = 2
"""Connections of the second try: their first packets are sent again at once and after 1 s, so that a link which loses
every third packet isn't taken for a filter."""

NO_WAY = (
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EACCES,
    errno.EPERM,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EINVAL,
)
"""What the system says where there is no route, an ICMP message forbade it, or it hasn't got such addresses at all."""


async def dial(
    order: messages.Dial,
    run: str,
    node: int,
    refused: Mapping[tuple[int, str], PortOutcome] = {},
) -> messages.Dialled:
    """Dial every place of all peers but ourselves, those apart that are refused (by node and kind). `order.at_once` places at
    a time, each on all its ports, the first one with a large message.

    Every node begins with the one after itself, so that they don't all come to the first one at once.
    """
    room = asyncio.Semaphore(order.at_once)
    # False, for those behind ourselves, comes first.
    others = sorted((peer for peer in order.peers if peer.node != node), key=lambda peer: (peer.node < node, peer.node))
    own: dict[str, None] = {}

    async def one_place(peer: messages.Peer, place: messages.ListenAddress) -> messages.DialOutcome:
        if not_dialled := refused.get((peer.node, place.kind)):
            outcomes = [not_dialled] * len(place.ports)
        else:
            async with room:
                ports = [_Port(place.address, port, peer.node, run, node, order.seconds) for port in place.ports]
                outcomes = await asyncio.gather(
                    *(port.dial(large=not nth, again=order.again) for nth, port in enumerate(ports))
                )
        # Of an address that NCCL or gloo would take, it says nothing of the way to the others.
        if place.kind == "route":
            own.update(
                (plain(outcome.words, messages.MAX_WORDS_LENGTH), None)
                for outcome in outcomes
                if outcome.cell is Cell.NOT_TRIED
            )
        words = plain(next((outcome.words for outcome in outcomes if outcome.words), ""), messages.MAX_WORDS_LENGTH)
        return messages.DialOutcome(peer.node, place.kind, "".join(outcome.cell.value for outcome in outcomes), words)

    met = await asyncio.gather(*(one_place(peer, place) for peer in others for place in peer.places))
    return messages.Dialled(met=tuple(met), errors=tuple(own)[: messages.MAX_PORTS])


class _Port(NamedTuple):
    """A port at which the node `wanted` is said to listen, as node `node` of the run dials it."""

    address: str
    port: int
    wanted: int
    run: str
    node: int
    seconds: float

    async def dial(self, *, large: bool, again: bool) -> PortOutcome:
        """Dial once, and where that met silence, a second time if that is wanted."""
        first = await self._try(large=large)
        if not again or first.cell not in (Cell.SILENT, Cell.STALLED):
            return first
        tries = [asyncio.ensure_future(self._try(large=large)) for _ in range(SECOND_TRIES)]
        try:
            for attempt in asyncio.as_completed(tries):
                found = await attempt
                if found.cell is Cell.OK:
                    break
            return found
        finally:
            for attempt in tries:
                attempt.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    async def _try(self, *, large: bool) -> PortOutcome:
        try:
            found = await dial_peer(self.address, self.port, self.run, self.node, REACH, self.seconds)
        except NotAPeerError as error:
            return PortOutcome(Cell.OTHER, str(error))
        except CutOffError as error:
            return PortOutcome(Cell.RESET, str(error))
        except TimeoutError as error:
            return PortOutcome(Cell.SILENT, str(error))
        except OSError as error:
            return PortOutcome(_cell_of(error), system_words(error))
        except ValueError:
            # Of an address that is none; the peer that offers it mustn't keep this node from the others.
            return PortOutcome(Cell.NOT_TRIED, "no address")
        try:
            if found.node != self.wanted:
                who = f"node {found.node} answered" if found.node != self.node else "it is this node itself"
                return PortOutcome(Cell.OTHER, who)
            return await _send_large(found, self.seconds) if large else PortOutcome(Cell.OK)
        finally:
            found.writer.transport.abort()


def _cell_of(error: OSError) -> Cell:
    if error.errno == errno.ECONNREFUSED:
        return Cell.REFUSED
    if error.errno == errno.ECONNRESET:
        return Cell.RESET
    # The rest is trouble of our own, such as too many open files, and says nothing of the peer.
    return Cell.PROHIBITED if error.errno in NO_WAY else Cell.NOT_TRIED


async def _send_large(found: PeerStream, seconds: float) -> PortOutcome:
    """Send the large message. A slow link isn't stalled: as long as it takes bytes, it has a second period."""
    found.writer.write(bytes(LARGE_MESSAGE_BYTES))
    left = LARGE_MESSAGE_BYTES
    for _ in range(2):
        try:
            answer = await within(seconds, found.reader.readexactly(len(ARRIVED)))
        except TimeoutError:
            before, left = left, unacknowledged_bytes(found.writer)
            if before - left <= MIN_PROGRESS_BYTES:
                taken = f"{LARGE_MESSAGE_BYTES - left} of {LARGE_MESSAGE_BYTES} bytes acknowledged in {seconds:.0f} s"
                return PortOutcome(Cell.STALLED, taken)
        except EOFError:
            return PortOutcome(Cell.RESET, "cut off while it was sending")
        except OSError as error:
            return PortOutcome(Cell.RESET, str(error))
        else:
            return PortOutcome(Cell.OK) if answer == ARRIVED else PortOutcome(Cell.OTHER, "it answered something else")
    return PortOutcome(Cell.OK)  # So slow that it still goes on; how slow the link is is measured later.
