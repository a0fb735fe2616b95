"""One run of netcheck, or of what else needs all nodes, on one node: from its own facts to its end."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.base.findings import Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Verdict, overall
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.network import Network
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.launchers import NNODES_FLAG
from ddpdoctor.knowledge.netcheck_command import netcheck_command, with_token
from ddpdoctor.network_check.analysis.admission_errors import ENDED_BY_FAULT
from ddpdoctor.network_check.analysis.verdicts import (
    examination_of,
    judged_phases,
    not_met,
    one_sided,
    overall_verdict,
    verdicts_by_rank,
    with_fleet,
)
from ddpdoctor.network_check.coordinator import Conductor
from ddpdoctor.network_check.job import RANK_FLAG, allocated_nodes
from ddpdoctor.network_check.listen_address import hub_addresses, master_warning, node_0_address
from ddpdoctor.network_check.node_session import ImpossibleError, NodeSession
from ddpdoctor.network_check.phases.hub_search import Connection, find_hub, look_at_master
from ddpdoctor.network_check.protocol import tokens
from ddpdoctor.network_check.protocol.agent import AgentError, LeftBehindError, RejectedError, take_part
from ddpdoctor.network_check.protocol.handshake_server import ConnectionLimits
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import Answer, NodeVerdict, Order, Welcome
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.network_check.protocol.tcp_connections import UnknownNameError, destinations
from ddpdoctor.network_check.protocol.threads import in_thread
from ddpdoctor.network_check.render_words import part_lines
from ddpdoctor.network_check.results import NetcheckOptions, ProgressListener, RunResult
from ddpdoctor.network_check.task import Worker
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot

PORTS_BESIDE_A_STORE = 4
"""Where torchrun's own store holds the job's port, the hub takes the first free one of so many behind it."""

STRAYED_SECONDS = 5.0
"""So long does a node 0 whose own the master's address isn't look for another one there."""


def run(options: NetcheckOptions, audience: ProgressListener) -> RunResult:
    """Takes part until there is a verdict, or it is clear that there will be none.

    Raises:
        Stopped: by a signal, or the end of the launcher that started this rank; the others have been told, if there still
            was something to tell.
    """
    launcher = os.getppid() if options.job.launched else 0
    node = _Node(options, audience)
    return asyncio.run(_until_stopped(node.go(), lambda: node.in_touch(), launcher))


async def _until_stopped(
    work: Coroutine[Any, Any, RunResult], in_touch: Callable[[], bool], launcher: int = 0
) -> RunResult:
    def said() -> str:
        # Their verdict may have been on its way already.
        told = "; if the test was still going on, the other nodes were told" if in_touch() else ""
        return f"Stopped. There is no verdict here{told}."

    return await until_stopped(work, said, launcher)


class _Node:
    """This node, through one run."""

    def __init__(self, options: NetcheckOptions, audience: ProgressListener) -> None:
        self._wishes = options
        self._job = options.job
        self._purpose = options.task
        self._audience = audience
        self._began = time.monotonic()
        self._token = tokens.token_of(options.job, options.token)
        self._workers: list[Worker] = []
        self._misled = False
        """The master's name can't lead all nodes to node 0."""
        self.in_touch: Callable[[], bool] = lambda: False
        """Whether there are other nodes that hear of it when this one ends."""
        self._meeting = self._purpose.meeting(
            Meeting(
                master=self._job.master,
                port=self._job.port,
                nnodes=self._job.nnodes,
                node_rank=self._job.node_rank,
                launcher=self._job.launcher,
                allocated=allocated_nodes(os.environ),
                conflicts=self._job.conflicts,
                command=self._purpose.command,
                launched=self._job.launched,
                options=options.options,
                token=bool(self._token),
            )
        )
        self._environ = dict(os.environ) | {"MASTER_ADDR": self._job.master, "MASTER_PORT": str(self._job.port)}

    async def go(self) -> RunResult:
        """Every way to an end."""
        self._loop = asyncio.get_running_loop()
        self._network: asyncio.Future[Network | Unknown] = self._loop.create_future()
        looking = asyncio.ensure_future(in_thread(self._look))
        if self._job.nnodes is None:
            return await self._look_there(looking)
        self._network.add_done_callback(self._warn)
        standing = await self._standing(looking)
        if not standing and self._is_the_only_one:
            return await self._look_there(looking)
        if not standing:
            return await self._as_guest(looking, self._job.master, self._ports())
        return await self._as_node_0(looking, standing)

    def _warn(self, network: asyncio.Future[Network | Unknown]) -> None:
        known = None if network.cancelled() else network.result()
        if isinstance(known, Network) and (text := master_warning(self._job, known, self._meeting.command)):
            self._misled = True
            self._audience.say(text)

    @property
    def _is_the_only_one(self) -> bool:
        """A launcher started this process on one node: whoever typed the command didn't say that there are no others."""
        return self._job.nnodes == 1 and self._job.counted_by != NNODES_FLAG

    async def _look_there(self, looking: asyncio.Future[Snapshot]) -> RunResult:
        """What this side alone can see."""
        if self._is_the_only_one:
            self._audience.say(
                f"{self._job.counted_by} says that this is a job of one node, and {self._job.master} isn't here: only the way "
                f"there is tested. To meet other nodes, start it on all of them, or give {NNODES_FLAG} and {RANK_FLAG}."
            )
            self._job = msgspec.structs.replace(self._job, nnodes=None, node_rank=None)
            self._meeting = msgspec.structs.replace(self._meeting, nnodes=None, node_rank=None)
        self._met(await look_at_master(self._job.master, self._job.port))
        return self._alone(await looking)

    def _ports(self) -> tuple[int, ...]:
        port = self._job.port
        if not self._job.store_running:
            return (port,)
        return tuple(one for one in range(port + 1, port + 1 + PORTS_BESIDE_A_STORE) if one < 65536)

    def _look(self) -> Snapshot:
        options = self._wishes
        context = Context(options.python, options.chosen_by, quick=True, environ=self._environ)

        def done(group: str) -> None:
            if group == "network":
                with suppress(RuntimeError):  # The loop has been closed meanwhile.
                    self._loop.call_soon_threadsafe(self._network.set_result, context.facts(Network))

        snapshot = take_snapshot(context, self._purpose.groups, done)
        hosts = self._job.machines or self._job.nnodes
        if not isinstance(snapshot.environment, Environment) or hosts is None:
            return snapshot
        told = Setting(NNODES_FLAG, str(hosts), f"{self._purpose.command}'s command line")
        environment = msgspec.structs.replace(snapshot.environment, settings=(told, *snapshot.environment.settings))
        return msgspec.structs.replace(snapshot, environment=environment)

    async def _standing(self, looking: asyncio.Future[Snapshot]) -> tuple[str, ...]:
        """Where the hub shall listen; empty where this isn't node 0."""
        if self._job.node_rank not in (None, 0):
            return ()
        addresses = await self._own_name()
        # The rest of its facts may take half a minute where a driver hangs, and the others are at the door already.
        either: set[asyncio.Future[Any]] = {self._network, looking}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        network = self._network.result() if self._network.done() else (await looking).network
        if not isinstance(network, Network):
            return addresses[:1]
        return hub_addresses(self._job.master, addresses, network)

    async def _own_name(self) -> tuple[str, ...]:
        """The master's addresses. Node 0 waits for them: the name of a pod may be known only a while after its start."""
        while True:
            try:
                found = await destinations(self._job.master, self._job.port)
            except UnknownNameError as error:
                self._met(Meeting(port=self._job.port, unresolved=str(error)))
                if self._job.node_rank is None or self._left() <= 1:
                    return ()
                await asyncio.sleep(1)
            else:
                return tuple(destination.address for destination in found)

    def _left(self) -> float:
        """Seconds until this node waits no longer to meet the others."""
        return max(0.0, self._began + self._wishes.wait - time.monotonic())

    def _met(self, found: Meeting) -> None:
        """What the way to the master came to, added to what the job says."""
        self._meeting = msgspec.structs.replace(
            self._meeting,
            port=found.port,
            unresolved=found.unresolved,
            attempts=found.attempts,
            untransmitted=found.untransmitted,
            undelivered=found.undelivered,
            answered_by=found.answered_by,
            banner=found.banner,
            waited=found.waited,
        )
        self._audience.meeting(self._meeting)

    def _alone(self, snapshot: Snapshot, problems: Sequence[str] = ()) -> RunResult:
        examinations = self._purpose.judge([msgspec.structs.replace(snapshot, meeting=self._meeting)])
        verdict = overall(examinations)
        if verdict is not Verdict.FAIL and not problems:
            problems = not_met(self._meeting)
        if self._job.nnodes is None:
            examinations = [one_sided(examination) for examination in examinations]
        return RunResult(
            exit_code=2 if problems and verdict is not Verdict.FAIL else verdict.exit_code(strict=self._wishes.strict),
            meeting=self._meeting,
            examinations=tuple(examinations),
            problems=tuple(problems),
            # The dots then stand for node 0's token, not for the one that it doesn't take.
            token="" if self._meeting.refusal == "token" else self._token,
        )

    async def _as_guest(self, looking: asyncio.Future[Snapshot], master: str, ports: Sequence[int]) -> RunResult:
        # Node 0 elsewhere than at its own address only looks whether another one says that it is node 0, too.
        left = min(self._left(), STRAYED_SECONDS) if self._job.node_rank == 0 else self._left()
        found, connection = await find_hub(master, ports, left, self._met)
        self._met(found)
        if connection is None:
            if self._job.node_rank == 0 and found.attempts:
                # It was to listen there, isn't where that address is, and nobody else listens there either.
                words = os.strerror(errno.EADDRNOTAVAIL)
                self._meeting = msgspec.structs.replace(self._meeting, hosts_the_store=True, listen_error=words)
            return self._alone(await looking)
        self.in_touch = lambda: True
        try:
            part, snapshot = await self._attend(connection, looking)
        except RejectedError as error:
            self._meeting = msgspec.structs.replace(
                self._meeting, turned_away=str(error), refusal=error.code, own_python=sys.executable
            )
            return self._alone(await looking, [error.shown])
        except LeftBehindError as error:
            self._meeting = msgspec.structs.replace(self._meeting, left_behind=str(error))
            return self._alone(await looking, [str(error)])
        except AgentError as error:
            # Without node 0 there is no verdict on any node, whatever this one found out about itself.
            return msgspec.structs.replace(self._alone(await looking, [str(error)]), exit_code=2)
        return RunResult(
            exit_code=part.exit_code,
            meeting=self._meeting,
            examinations=(examination_of(part, snapshot, self._purpose.catalogue, proved=bool(self._token)),),
            part=part,
            token=self._token,
            notes=tuple(self._in_vain(part)),
        )

    def _in_vain(self, part: NodeVerdict) -> Iterator[str]:
        """What was asked for here, and node 0 decided otherwise."""
        if self._wishes.strict and part.exit_code == 0 and Verdict(part.verdict) is Verdict.WARN:
            yield "--strict has no effect here: node 0 runs without it, and the exit code is the same on all nodes"
        for worker in self._workers:
            yield from worker.in_vain()

    async def _attend(
        self,
        connection: Connection,
        looking: asyncio.Future[Snapshot],
        own: str = "",
        address: Callable[[], str] | None = None,
    ) -> tuple[NodeVerdict, Snapshot]:
        """own, address: of node 0, which alone knows them from its hub."""
        workers = self._workers

        async def manifest(welcome: Welcome) -> bytes:
            self._meeting = msgspec.structs.replace(self._meeting, joined=True, node_rank=welcome.node_rank)
            snapshot = await looking
            own_address = address or (lambda: connection.own_address)
            master = self._master(connection)
            one = self._purpose.worker(snapshot, own_address, master, self._wishes.python, self._environ)
            one.welcome(welcome)
            workers.append(one)
            return zlib.compress(msgspec.json.encode(msgspec.structs.replace(snapshot, meeting=self._meeting)))

        async def carry_out(order: Order) -> Answer:
            return await workers[0].carry_out(order)

        try:
            part = await take_part(
                connection,
                job=self._job,
                token=self._token,
                manifest=manifest,
                carry_out=carry_out,
                heard=lambda waiting: self._audience.waiting(waiting, self._useful_command),
                own=own,
                limits=ConnectionLimits(
                    wait=max(ConnectionLimits().wait, self._wishes.wait), test=self._purpose.seconds
                ),
                command=self._purpose.command,
            )
        finally:
            for one in workers:
                await one.close()
        snapshot = msgspec.structs.replace(await looking, meeting=self._meeting)
        for one in workers:
            snapshot = one.told(snapshot)
        return part, snapshot

    def _master(self, connection: Connection) -> Master:
        """Where node 0 was met, and where the job's own ranks find the store."""
        launched = self._job.launched
        return Master(
            address=connection.address,
            own_address=connection.own_address,
            host=self._job.master if launched else connection.address,
            port=self._job.port if launched else connection.port,
            proved=bool(self._token),
        )

    async def _as_node_0(self, looking: asyncio.Future[Snapshot], standing: Sequence[str]) -> RunResult:
        made_up = not self._token and not all(tokens.is_private_address(one) for one in standing)
        if made_up:
            self._token = tokens.make_token()
        hub, error = await self._opened(standing)
        self._meeting = msgspec.structs.replace(
            self._meeting, hosts_the_store=True, listen_error=error, token=bool(self._token)
        )
        if hub is None:
            return self._alone(await looking)
        self.in_touch = lambda: any(rank and not peer.lost for rank, peer in hub.peers.items())
        self._meeting = msgspec.structs.replace(self._meeting, port=hub.port)
        hub.changed = partial(self._audience.hub, hub, self._useful_command)
        hub.changed()
        if made_up and hub.nnodes > 1:
            self._audience.say(
                f"{standing[0]} is no private address, so only nodes that know the token {self._token} are let in. The same "
                f"token goes on every node, on this one too when it runs again: {self._shown_command(0)}"
            )
        session = NodeSession(hub)
        conductor = Conductor(
            session,
            wait=self._wishes.wait,
            programme=self._purpose.programme(session, self._job.master, self._store_port(hub)),
        )
        way: list[Meeting] = []
        own = asyncio.ensure_future(self._own_part(hub, standing[0], looking, way))
        try:
            gathered = await conductor.lead()
            if not self._meeting.joined:
                why = "node 0 did not get through to its own port"
                if way:
                    self._met(msgspec.structs.replace(way[-1], waited=self._wishes.wait))
                end = self._alone(await looking, [why])
                wrong = [one.summary for _, severity, one in end.examinations[0].findings if severity is Severity.FAIL]
                await hub.stop(ENDED_BY_FAULT + wrong[0] if wrong else why, 1 if wrong else 2)
                return end
            return await self._verdict(hub, gathered.fleet, gathered.snapshots, gathered.joined_at)
        except ImpossibleError as error:
            await hub.stop(str(error))
            return self._alone(await looking, [str(error)])
        except asyncio.CancelledError as error:
            by = str(error.args[0]).partition(":")[0] if error.args else "its user"
            with suppress(Exception):
                await hub.stop(f"stopped by {by} on node 0")
            raise
        finally:
            own.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await own

    def _store_port(self, hub: Hub) -> int:
        """Where the job's own ranks find the store."""
        return self._job.port if self._job.launched else hub.port

    def _command(self, rank: int) -> str:
        """What to type on the node of that rank, with dots for the token."""
        return netcheck_command(self._meeting, self._job.nnodes, rank)

    @property
    def _useful_command(self) -> Callable[[int], str] | None:
        """None where the nodes can't meet at this master: another command has been told."""
        return None if self._misled else self._shown_command

    def _shown_command(self, rank: int) -> str:
        """The same with the token, for the eyes of this node's user."""
        return with_token(self._command(rank), self._token)

    async def _opened(self, standing: Sequence[str]) -> tuple[Hub | None, str]:
        """The hub on the first of the ports that is free; None and the system's words where none is."""
        job, error = self._job, ""
        for port in self._ports():
            seat = "rank" if job.launched else "node"
            hub = Hub(standing, port, job.nnodes or 1, self._token, job.hosts, command=self._purpose.command, seat=seat)
            try:
                await hub.open()
            except OSError as failure:
                error = failure.strerror or str(failure)
            else:
                return hub, ""
        return None, error

    async def _own_part(self, hub: Hub, address: str, looking: asyncio.Future[Snapshot], way: list[Meeting]) -> None:
        """Node 0's own agent goes through the door like everybody else's. way: takes up what that came to so far."""
        _, connection = await find_hub(address, (hub.port,), self._wishes.wait, way.append)
        if connection is not None:
            with suppress(AgentError):
                await self._attend(connection, looking, hub.own, lambda: node_0_address(hub, address))

    async def _verdict(self, hub: Hub, fleet: Fleet, snapshots: dict[int, Snapshot], joined_at: float) -> RunResult:
        ranks = [node.rank for node in fleet.nodes]
        shown = [with_fleet(snapshots[rank], fleet, rank) for rank in ranks]
        examinations = await in_thread(lambda: self._purpose.judge(shown))
        final = msgspec.structs.replace(fleet, phases=judged_phases(fleet, examinations))
        verdict, problems = overall_verdict(final, examinations)
        code = verdict.exit_code(strict=self._wishes.strict)
        seconds = time.monotonic() - joined_at
        lines = (*part_lines(final, examinations), *problems)
        end = RunResult(
            exit_code=code,
            meeting=self._meeting,
            examinations=tuple(examinations),
            fleet=final,
            seconds=round(seconds, 3),
            problems=problems,
            token=self._token,
        )
        self._audience.verdict(end)
        await hub.dismiss(verdicts_by_rank(dict(zip(ranks, examinations, strict=True)), lines, verdict, code))
        return end
