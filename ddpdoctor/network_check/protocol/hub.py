"""The hub on node 0: it lets nodes in, hands out orders and collects answers.

Whoever shares its event loop must not hold it for seconds, or the agents take the hub for dead.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

from ddpdoctor.base.async_work import within
from ddpdoctor.facts.fleet import MissingNode, RejectedNode
from ddpdoctor.knowledge.node_words import missing_name, names_by_rank
from ddpdoctor.network_check.protocol import messages
from ddpdoctor.network_check.protocol.bounded_lines import LineError
from ddpdoctor.network_check.protocol.handshake_server import AuthenticatedPeer, ConnectionLimits, HandshakeServer
from ddpdoctor.network_check.protocol.peer_connection import PeerConnection, PeerError, SnapshotBudget
from ddpdoctor.network_check.protocol.tcp_connections import allow_files

FAREWELL_SECONDS: Final = 5.0
"""How long a peer may take to fetch its part of the verdict, or the next piece of it."""
MAX_FAREWELL_SECONDS: Final = 60.0
"""The whole part, over a slow link: in an agent's own patience for a line."""
MISSING_SECONDS: Final = 1.0
"""At least so long apart the others are told who is waited for; many who come at once are no news each."""
MAX_MISSING_NAMED: Final = 4
"""Of them by name."""
MAX_REJECTED: Final = 64
MAX_UNPROVED_REJECTED: Final = 8
"""Of those, who did not show that they know the token, and may be anybody."""
OTHER_FILES: Final = 256
"""Descriptors that this process may need besides one for each node."""


class Hub:
    """Node 0's server, to which all nodes connect.

    Args:
        addresses: the master's own (numeric), at which it listens.
        port: there; 0 for any.
        nnodes: of the job.
        token: of the job, "" for none.
        hosts: the launcher's host names by node rank, or ().
        changed: called whenever somebody came, went or was rejected.
        limits: how long peers may take.
        command: what all nodes must have been started for.
        seat: what each of them is called, "node" or "rank".

    Attributes:
        own: what node 0's own agent says in its Hello, so that rank 0 is its.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        port: int,
        nnodes: int,
        token: str,
        hosts: Sequence[str] = (),
        changed: Callable[[], None] = lambda: None,
        limits: ConnectionLimits | None = None,
        command: str = "netcheck",
        seat: str = "node",
    ) -> None:
        self.nnodes = nnodes
        self.peers: dict[int, PeerConnection] = {}
        self.doubles: list[RejectedNode] = []
        """Nodes of the job that came and weren't let in, with why, at most MAX_REJECTED."""
        self.own = secrets.token_hex(16)
        self._limits = limits or ConnectionLimits()
        self._hosts = hosts
        self._command = command
        self.seat = seat
        self.changed = changed
        self._server = HandshakeServer(
            addresses, port, token, self._limits, self._admit, self._keep_rejected, self._notify
        )
        self.run = secrets.token_hex(16)
        """What the nodes of this run show each other."""
        self._phase = "join"
        self._waited_for: tuple[str, ...] = ()
        self._budget = SnapshotBudget()
        self._gathering = True
        self._over = False
        self._waits_until = 0.0
        self._news = asyncio.Event()
        self._pulse: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen, until `close_port`, `dismiss` or `stop`.

        Raises:
            OSError: the port is taken, or the address isn't this host's.
        """
        allow_files(self.nnodes + OTHER_FILES)
        await self._server.open()
        self._pulse = asyncio.create_task(self._keep_alive())

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def names(self) -> dict[int, str]:
        """Each node's name, by rank."""
        return names_by_rank({rank: peer.host for rank, peer in self.peers.items()}, self.seat)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Strangers that were rejected, a sentence each."""
        refused = {double.address for double in self.doubles if double.proved}
        return self._server.rejected.listed(refused | {peer.address for peer in self.peers.values()})

    def absent(self) -> tuple[MissingNode, ...]:
        """The nodes that didn't come."""
        gone = [rank for rank in range(self.nnodes) if rank not in self.peers]
        return tuple(MissingNode(rank=rank, host=self._hosts[rank] if rank < len(self._hosts) else "") for rank in gone)

    async def gather(self, seconds: float) -> None:
        """Wait until all nodes have joined, or the time is up. Who comes later is rejected.

        Whoever has come may still look at its host: it has its time for that, and is lost when it takes longer.
        Where all have come, but some could not be let in, nobody is left to wait for: it ends a moment after the last.
        """
        loop = asyncio.get_running_loop()
        deadline = self._waits_until = loop.time() + seconds
        announced = loop.time()
        while not self._all_joined():
            if self._all_came():
                deadline = min(deadline, loop.time() + self._limits.second_thoughts)
            left = max([deadline, *(peer.came + self._limits.facts for peer in self._late())]) - loop.time()
            if left <= 0:
                break
            self._news.clear()
            with suppress(TimeoutError):
                await within(min(left, MISSING_SECONDS), self._news.wait())
            if loop.time() - announced >= MISSING_SECONDS and self._missing() != self._waited_for:
                announced = loop.time()
                self.announce(self._phase, self._missing())
        self._gathering = False
        for peer in self._late():
            self._lose(peer, f"its facts had not come after {self._limits.facts:g} s")

    def _late(self) -> list[PeerConnection]:
        """The nodes that are there and have sent no facts yet."""
        return [peer for peer in self._present() if peer.facts is None]

    def _missing(self) -> tuple[str, ...]:
        """Words for who is waited for, as the others get them: the first few."""
        hosts = self.names
        late = tuple(f"the facts of {hosts[peer.rank]}" for peer in self._late()[:MAX_MISSING_NAMED])
        return (*self._absent(), *late)

    def _absent(self) -> tuple[str, ...]:
        absent = self.absent()
        names = [missing_name(node, self.seat) for node in absent[:MAX_MISSING_NAMED]]
        more = (f"{len(absent) - MAX_MISSING_NAMED} more",) if len(absent) > MAX_MISSING_NAMED else ()
        return (*names, *more)

    def _all_joined(self) -> bool:
        return len(self.peers) == self.nnodes and all(peer.joined for peer in self.peers.values())

    def _all_came(self) -> bool:
        """Whether nobody is left to wait for, since whoever hasn't joined was rejected."""
        there = {(peer.host, peer.address) for peer in self.peers.values() if peer.joined}
        # Anybody may say that he is a node; whoever hasn't proved it ends nobody's waiting.
        refused = {(double.host, double.address) for double in self.doubles if double.proved} - there
        return bool(refused) and len(there) + len(refused) >= self.nnodes

    async def close_port(self) -> None:
        """Listen no more: from here on torch's own store can have the port. The peers stay."""
        await self._server.close()

    def announce(self, phase: str, waited_for: tuple[str, ...] = ()) -> None:
        """Tell all nodes where the test is. The phase's name is part of the words about a node that is lost in it."""
        self._phase, self._waited_for = phase, waited_for
        line = messages.encode(self._waiting(waited_for))
        for peer in self._present():
            peer.send(line)

    def _waiting(self, waited_for: tuple[str, ...]) -> messages.Waiting:
        absent = self.absent() if waited_for else ()
        return messages.Waiting(phase=self._phase, waited_for=waited_for, first=absent[0].rank if absent else None)

    async def ask(
        self,
        orders: Mapping[int, messages.Order],
        seconds: float,
        failed: Callable[[messages.Answer], bool] | None = None,
    ) -> dict[int, messages.Answer]:
        """Hand each node its order, and give their answers, by rank.

        Args:
            orders: by rank.
            seconds: a node that hasn't answered by then, or goes before, is lost, and has no answer.
            failed: where the nodes wait for each other, whether an answer means that the rest would wait in vain. After it,
                or after the loss of a node, the rest are told to end what they do.
        """
        # Many get the same order; it is written out once.
        lines = {key: messages.encode(order) for key, order in {id(order): order for order in orders.values()}.items()}
        present = {rank: self.peers[rank] for rank in orders if rank in self.peers and not self.peers[rank].lost}
        waiting = {rank: peer.order(orders[rank], lines[id(orders[rank])]) for rank, peer in present.items()}
        if waiting:
            await self._answers(waiting, seconds, failed)
        answers = {}
        for rank, future in waiting.items():
            if not future.done():
                self._lose(self.peers[rank], f"no answer within {seconds:g} s")
            elif (answer := future.result()) is not None:
                answers[rank] = answer
        return answers

    async def _answers(
        self,
        waiting: Mapping[int, asyncio.Future[messages.Answer | None]],
        seconds: float,
        failed: Callable[[messages.Answer], bool] | None,
    ) -> None:
        """Wait until all have answered or are lost, or the time is up."""
        everything = asyncio.gather(*waiting.values())
        vain = asyncio.get_running_loop().create_future()

        def settled(future: asyncio.Future[messages.Answer | None]) -> None:
            if failed is None or vain.done() or future.cancelled():
                return
            if (answer := future.result()) is None or failed(answer):
                vain.set_result(None)

        for future in waiting.values():
            future.add_done_callback(settled)
        await asyncio.wait({everything, vain}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if everything.done() or not vain.done():
            return
        await asyncio.wait({everything}, timeout=self._limits.second_thoughts)
        for rank, future in waiting.items():
            if not future.done():
                self.peers[rank].send(messages.encode(messages.Abort()))
        await asyncio.wait({everything}, timeout=self._limits.hello)

    async def dismiss(self, parts: Mapping[int, messages.NodeVerdict]) -> None:
        """Hand each node its part of the verdict and ends. A node without a part didn't send its facts in time."""
        late = messages.NoVerdict(why="node 0 went on without this node: its facts didn't come in time", exit_code=1)
        for peer in self._present():
            peer.send_last(parts.get(peer.rank) or late)
        await self._end(FAREWELL_SECONDS, MAX_FAREWELL_SECONDS)

    async def stop(self, why: str, exit_code: Literal[1, 2] = 2) -> None:
        """Tell all nodes that there will be no verdict, and why, and ends. exit_code: as in `NoVerdict`."""
        for peer in self._present():
            peer.send_last(messages.NoVerdict(why=why, exit_code=exit_code))
        await self._end(1.0, FAREWELL_SECONDS)

    async def _end(self, seconds: float, longest: float) -> None:
        """Wait until the peers have read what they were sent and hung up. Then nothing of the hub is left."""
        self._over = True
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        await self._server.close()
        await self._server.empty(seconds, longest)

    def _present(self) -> list[PeerConnection]:
        return [peer for peer in self.peers.values() if not peer.lost]

    def _notify(self) -> None:
        self._news.set()
        self.changed()

    def _lose(self, peer: PeerConnection, why: str) -> None:
        if not peer.lost and not self._over:
            peer.lose(f"lost during {self._phase}: {why}")
            self._notify()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self._limits
        while True:
            began = loop.time()
            await asyncio.sleep(limits.ping)
            halted = loop.time() - began > limits.ping + limits.quiet / 3
            for peer in self._present():
                if halted or peer.decoding:
                    peer.lines.restart_clocks()
                if loop.time() - peer.lines.last_bytes_at > limits.quiet:
                    self._lose(peer, f"nothing was heard of it for {limits.quiet:g} s")
                elif loop.time() - peer.lines.last_line_at > limits.line:
                    self._lose(peer, f"it sent no whole line for {limits.line:g} s")
                else:
                    peer.ping()

    async def _admit(self, candidate: AuthenticatedPeer) -> None:
        """Give whoever knows the token its rank, and listen to it until it goes; or say why not."""
        rank = self._rank_for(candidate)
        if isinstance(rank, RejectedNode):
            candidate.writer.write(messages.encode(messages.Rejected(code=rank.code, text=rank.text)))
            self._keep_rejected(rank)
            self._notify()
            return
        peer = PeerConnection(rank, candidate, self.nnodes, self._budget, self.peers)
        self.peers[rank] = peer
        wait = max(0.0, self._waits_until - asyncio.get_running_loop().time())
        peer.send(
            messages.encode(
                messages.Welcome(node_rank=rank, nnodes=self.nnodes, run=self.run, proof=candidate.proof, wait=wait)
            )
        )
        # What the others were told last may name this very node.
        peer.send(messages.encode(self._waiting(self._absent() if self._gathering else self._waited_for)))
        peer.ping()
        self._notify()
        await self._listen_to(peer)

    async def _listen_to(self, peer: PeerConnection) -> None:
        try:
            while not peer.lost:
                joined = peer.joined
                line = await peer.lines.read_line(peer.max_line_bytes)
                if not peer.lost:
                    await peer.receive(line)
                if peer.joined and not joined:
                    self._notify()
        except (PeerError, LineError) as error:
            self._lose(peer, str(error))
        await peer.until_closed()

    def _rank_for(self, candidate: AuthenticatedPeer) -> int | RejectedNode:
        """Give the rank that this node gets, or why it gets none."""
        hello = candidate.hello
        taken = {rank: peer for rank, peer in self.peers.items() if not peer.lost}

        def refuse(code: str, text: str, holder: str = "") -> RejectedNode:
            rank = -1 if hello.node_rank is None else hello.node_rank
            host, address, nnodes = hello.host, candidate.address, hello.nnodes
            return RejectedNode(
                rank=rank, host=host, address=address, holder=holder, code=code, text=text, nnodes=nnodes
            )

        if hello.command != self._command:
            text = f"node 0 runs ddpdoctor {self._command}, and this node another command: run the same on all nodes"
            return refuse("command", text)
        if hello.nnodes is not None and hello.nnodes != self.nnodes:
            text = f"--nnodes is {hello.nnodes} here and {self.nnodes} on node 0: it must be the same on all nodes"
            return refuse("nnodes", text)
        if hello.nonce == self.own:
            return 0
        if hello.node_rank is not None and not 0 <= hello.node_rank < self.nnodes:
            text = f"node rank {hello.node_rank} is out of range: {self.nnodes} nodes have ranks 0 to {self.nnodes - 1}"
            return refuse("rank-out-of-range", text)
        if not self._gathering:
            return refuse("closed", "the test began without this node: start it again on all nodes")
        if hello.node_rank is None:
            free = [rank for rank in range(1, self.nnodes) if rank not in taken]
            if not free:
                return refuse("full", f"all {self.nnodes} nodes are here already; is --nnodes on node 0 too small?")
            return free[0]
        if hello.node_rank == 0:
            name = socket.gethostname()
            return refuse("rank-taken", _taken(0, f"{name} ({self._server.addresses[0]})", self.nnodes), name)
        if holder := taken.get(hello.node_rank):
            text = _taken(hello.node_rank, f"{holder.host} ({holder.address})", self.nnodes)
            return refuse("rank-taken", text, holder.host)
        return hello.node_rank

    def _keep_rejected(self, node: RejectedNode) -> None:
        """Keep it once, however often it comes."""
        alike = sum(double.proved == node.proved for double in self.doubles)
        if node not in self.doubles and alike < (MAX_REJECTED if node.proved else MAX_UNPROVED_REJECTED):
            self.doubles.append(node)


def _taken(rank: int, by: str, nnodes: int) -> str:
    return f"node rank {rank} is taken by {by}: give every node a --node-rank of its own, 0 to {nnodes - 1}"
