"""One run of netcheck, or of what else needs all nodes, on one node: from its own facts to its end."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ddpdoctor.base.async_work import in_thread, until_stopped
from ddpdoctor.base.findings import Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Verdict, overall
from ddpdoctor.facts.environment import Environment, Setting
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
from ddpdoctor.network_check.job import RANK_FLAG, allocated_nodes
from ddpdoctor.network_check.listen_address import hub_addresses, master_warning, node_0_address
from ddpdoctor.network_check.node_session import FleetFacts, ImpossibleError, NodeSession
from ddpdoctor.network_check.phases.hub_search import Connection, find_hub, look_at_master
from ddpdoctor.network_check.protocol import tokens
from ddpdoctor.network_check.protocol.agent import AgentError, LeftBehindError, RejectedError, take_part
from ddpdoctor.network_check.protocol.handshake_server import ConnectionLimits
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import Answer, NodeVerdict, Order, Welcome
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.network_check.protocol.tcp_connections import UnknownNameError, destinations
from ddpdoctor.network_check.render_words import part_lines
from ddpdoctor.network_check.results import NetcheckOptions, ProgressListener, RunResult
from ddpdoctor.network_check.task import OrderHandler
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot

PORTS_BESIDE_A_STORE = 4
"""Where torchrun's own store holds the job's port, the hub takes the first free one of so many behind it."""

FOUND_BY_SEARCH = (
    "port", "unresolved", "attempts", "untransmitted", "undelivered", "answered_by", "banner", "waited"
)  # fmt: skip
"""Fields of a meeting."""

STRAYED_SEARCH_SECONDS = 5.0
"""So long does a node 0 whose own the master's address isn't look for another one there."""


def run(options: NetcheckOptions, audience: ProgressListener) -> RunResult:
    """Take part until there is a verdict, or it is clear that there will be none.

    Raises:
        StoppedBySignal: a signal, or the end of the launcher that started this rank; the others have been told, if there
            still was something to tell.
    """
    launcher = os.getppid() if options.job.launched else 0
    node = _Node(options, audience)

    async def take_part() -> RunResult:
        return await until_stopped(
            node.run(), lambda: stop_sentence(told_others=node.in_touch()), launcher, options.task.end_early
        )

    return asyncio.run(take_part())


def stop_sentence(*, told_others: bool) -> str:
    """Say that this node was stopped. Whether the others were told in time isn't known: their verdict may be on its way."""
    told = "; if the test was still going on, the other nodes were told" if told_others else ""
    return f"Stopped. There is no verdict here{told}."


class _Node:
    """This node, through one run."""

    def __init__(self, options: NetcheckOptions, audience: ProgressListener) -> None:
        self._options = options
        self._job = options.job
        self._task = options.task
        self._audience = audience
        self._began = time.monotonic()
        self._token = tokens.token_of(options.job, options.token)
        self._worker: OrderHandler | None = None
        self._misled = False
        """The master's name can't lead all nodes to node 0."""
        self.in_touch: Callable[[], bool] = lambda: False
        """Whether there are other nodes that hear of it when this one ends."""
        self._meeting = self._task.meeting(
            Meeting(
                master=self._job.master,
                port=self._job.port,
                nnodes=self._job.nnodes,
                node_rank=self._job.node_rank,
                launcher=self._job.launcher,
                allocated=allocated_nodes(os.environ),
                conflicts=self._job.conflicts,
                command=self._task.command,
                launched=self._job.launched,
                options=options.options,
                token=bool(self._token),
            )
        )
        self._environ = dict(os.environ) | {"MASTER_ADDR": self._job.master, "MASTER_PORT": str(self._job.port)}

    async def run(self) -> RunResult:
        """Go every way to an end: as node 0, as another node, or looking at the master alone."""
        self._loop = asyncio.get_running_loop()
        self._network: asyncio.Future[Network | Unknown] = self._loop.create_future()
        self._snapshot = asyncio.ensure_future(in_thread(self._probe))
        if self._job.nnodes is None:
            return await self._look_at_master()
        self._network.add_done_callback(self._warn)
        addresses = await self._hub_addresses()
        if addresses:
            return await self._as_node_0(addresses)
        return await (self._look_at_master() if self._is_single_node else self._as_agent())

    def _warn(self, network: asyncio.Future[Network | Unknown]) -> None:
        known = None if network.cancelled() else network.result()
        if isinstance(known, Network) and (text := master_warning(self._job, known, self._meeting.command)):
            self._misled = True
            self._audience.say(text)

    @property
    def _is_single_node(self) -> bool:
        """A launcher started this process on one node: whoever typed the command didn't say that there are no others."""
        return self._job.nnodes == 1 and self._job.counted_by != NNODES_FLAG

    async def _look_at_master(self) -> RunResult:
        """Find out what this side alone can see."""
        if self._is_single_node:
            self._audience.say(
                f"{self._job.counted_by} says that this is a job of one node, and {self._job.master} isn't here: only the way "
                f"there is tested. To meet other nodes, start it on all of them, or give {NNODES_FLAG} and {RANK_FLAG}."
            )
            self._job = replace(self._job, nnodes=None, node_rank=None)
            self._meeting = replace(self._meeting, nnodes=None, node_rank=None)
        self._update_meeting(await look_at_master(self._job.master, self._job.port))
        return await self._own_result()

    def _ports(self) -> tuple[int, ...]:
        port = self._job.port
        if not self._job.store_running:
            return (port,)
        return tuple(beside for beside in range(port + 1, port + 1 + PORTS_BESIDE_A_STORE) if beside < 65536)

    def _probe(self) -> Snapshot:
        options = self._options
        context = Context(options.python, options.chosen_by, quick=True, environ=self._environ)

        def done(group: str) -> None:
            if group == "network":
                with suppress(RuntimeError):  # The loop has been closed meanwhile.
                    self._loop.call_soon_threadsafe(self._network.set_result, context.facts(Network))

        snapshot = take_snapshot(context, self._task.groups, done)
        hosts = self._job.machines or self._job.nnodes
        if not isinstance(snapshot.environment, Environment) or hosts is None:
            return snapshot
        nnodes = Setting(NNODES_FLAG, str(hosts), f"{self._task.command}'s command line")
        environment = replace(snapshot.environment, settings=(nnodes, *snapshot.environment.settings))
        return replace(snapshot, environment=environment)

    async def _hub_addresses(self) -> tuple[str, ...]:
        """The addresses where the hub shall listen; empty where this isn't node 0."""
        if self._job.node_rank not in (None, 0):
            return ()
        addresses = await self._master_addresses()
        # The rest of its facts may take half a minute where a driver hangs, and the others are dialling already.
        either: set[asyncio.Future[Any]] = {self._network, self._snapshot}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        network = self._network.result() if self._network.done() else (await self._snapshot).network
        if not isinstance(network, Network):
            return addresses[:1]
        return hub_addresses(self._job.master, addresses, network)

    async def _master_addresses(self) -> tuple[str, ...]:
        """The master's addresses. Node 0 waits for them: the name of a pod may be known only a while after its start."""
        while True:
            try:
                found = await destinations(self._job.master, self._job.port)
            except UnknownNameError as error:
                self._update_meeting(Meeting(port=self._job.port, unresolved=str(error)))
                if self._job.node_rank is None or self._seconds_left() <= 1:
                    return ()
                await asyncio.sleep(1)
            else:
                return tuple(destination.address for destination in found)

    def _seconds_left(self) -> float:
        """Seconds until this node waits no longer to meet the others."""
        return max(0.0, self._began + self._options.wait - time.monotonic())

    def _update_meeting(self, search: Meeting) -> None:
        """Add what the way to the master came to to what the job says."""
        self._meeting = replace(self._meeting, **{name: getattr(search, name) for name in FOUND_BY_SEARCH})
        self._audience.meeting(self._meeting)

    async def _own_result(self, *problems: str) -> RunResult:
        """Judge this node by itself: it met nobody, or was turned away or lost."""
        examinations = self._task.judge([replace(await self._snapshot, meeting=self._meeting)])
        verdict = overall(examinations)
        if verdict is not Verdict.FAIL and not problems:
            problems = not_met(self._meeting)
        if self._job.nnodes is None:
            examinations = [one_sided(examination) for examination in examinations]
        return RunResult(
            exit_code=2 if problems and verdict is not Verdict.FAIL else verdict.exit_code(strict=self._options.strict),
            meeting=self._meeting,
            examinations=tuple(examinations),
            problems=problems,
            # The dots then stand for node 0's token, not for the one that it doesn't take.
            token="" if self._meeting.refusal == "token" else self._token,
        )

    # --- as any other node ------------------------------------------------------------------------------------------------

    async def _as_agent(self) -> RunResult:
        # Node 0 elsewhere than at its own address only looks whether another one says that it is node 0, too.
        strayed = self._job.node_rank == 0
        seconds = min(self._seconds_left(), STRAYED_SEARCH_SECONDS) if strayed else self._seconds_left()
        search, connection = await find_hub(self._job.master, self._ports(), seconds, self._update_meeting)
        self._update_meeting(search)
        if connection is None:
            if strayed and search.attempts:
                # It was to listen there, isn't where that address is, and nobody else listens there either.
                words = os.strerror(errno.EADDRNOTAVAIL)
                self._meeting = replace(self._meeting, hosts_the_store=True, listen_error=words)
            return await self._own_result()
        self.in_touch = lambda: True
        try:
            part, snapshot = await self._take_part(connection)
        except RejectedError as error:
            self._meeting = replace(
                self._meeting, turned_away=str(error), refusal=error.code, own_python=sys.executable
            )
            return await self._own_result(error.shown)
        except LeftBehindError as error:
            self._meeting = replace(self._meeting, left_behind=str(error))
            return await self._own_result(str(error))
        except AgentError as error:
            # Without node 0 there is no verdict on any node, whatever this one found out about itself.
            return replace(await self._own_result(str(error)), exit_code=2)
        return RunResult(
            exit_code=part.exit_code,
            meeting=self._meeting,
            examinations=(examination_of(part, snapshot, self._task.catalogue, proved=bool(self._token)),),
            part=part,
            token=self._token,
            notes=tuple(self._ignored_options(part)),
        )

    def _ignored_options(self, part: NodeVerdict) -> Iterator[str]:
        """A sentence for each option of this node that node 0 decided otherwise."""
        if self._options.strict and part.exit_code == 0 and Verdict(part.verdict) is Verdict.WARN:
            yield "--strict has no effect here: node 0 runs without it, and the exit code is the same on all nodes"
        if self._worker is not None:
            yield from self._worker.ignored_options()

    async def _take_part(
        self, connection: Connection, own: str = "", address: Callable[[], str] | None = None
    ) -> tuple[NodeVerdict, Snapshot]:
        """own, address: of node 0, which alone knows them from its hub."""

        async def send_facts(welcome: Welcome) -> bytes:
            self._meeting = replace(self._meeting, joined=True, node_rank=welcome.node_rank)
            snapshot = await self._snapshot
            own_address = address or (lambda: connection.own_address)
            master = self._master(connection)
            self._worker = self._task.worker(snapshot, own_address, master, self._options.python, self._environ)
            self._worker.welcome(welcome)
            return zlib.compress(msgspec.json.encode(replace(snapshot, meeting=self._meeting)))

        async def carry_out(order: Order) -> Answer:
            assert self._worker is not None, "the hub orders nothing before it has this node's facts"
            return await self._worker.carry_out(order)

        wait = max(ConnectionLimits().wait, self._options.wait)
        try:
            part = await take_part(
                connection,
                job=self._job,
                token=self._token,
                facts=send_facts,
                carry_out=carry_out,
                on_waiting=lambda waiting: self._audience.waiting(waiting, self._useful_command),
                own=own,
                limits=ConnectionLimits(wait=wait, test=self._task.seconds),
                command=self._task.command,
            )
        finally:
            if self._worker is not None:
                await self._worker.close()
        snapshot = replace(await self._snapshot, meeting=self._meeting)
        return part, self._worker.add_facts(snapshot) if self._worker is not None else snapshot

    def _master(self, connection: Connection) -> Master:
        """The place where node 0 was met, and where the job's own ranks find the store."""
        launched = self._job.launched
        return Master(
            address=connection.address,
            own_address=connection.own_address,
            host=self._job.master if launched else connection.address,
            port=self._job.port if launched else connection.port,
            proved=bool(self._token),
        )

    # --- as node 0 --------------------------------------------------------------------------------------------------------

    async def _as_node_0(self, addresses: Sequence[str]) -> RunResult:
        made_up = not self._token and not all(map(tokens.is_private_address, addresses))
        if made_up:
            self._token = tokens.make_token()
        hub, error = await self._open_hub(addresses)
        self._meeting = replace(self._meeting, hosts_the_store=True, listen_error=error, token=bool(self._token))
        if hub is None:
            return await self._own_result()
        self.in_touch = lambda: any(rank and not peer.lost for rank, peer in hub.peers.items())
        self._meeting = replace(self._meeting, port=hub.port)
        hub.changed = partial(self._audience.hub, hub, self._useful_command)
        hub.changed()
        if made_up and hub.nnodes > 1:
            self._audience.say(
                f"{addresses[0]} is no private address, so only nodes that know the token {self._token} are let in. The same "
                f"token goes on every node, on this one too when it runs again: {self._shown_command(0)}"
            )
        session = NodeSession(hub)
        # Where the job's own ranks find the store.
        store_port = self._job.port if self._job.launched else hub.port
        coordinator = self._task.coordinator(session, self._job.master, store_port)
        searches: list[Meeting] = []
        own_agent = asyncio.ensure_future(self._run_own_agent(hub, addresses[0], searches))
        try:
            gathered = await session.run_phases(coordinator, self._options.wait)
            if self._meeting.joined:
                return await self._verdict(hub, gathered)
            why = "node 0 did not get through to its own port"
            if searches:
                self._update_meeting(replace(searches[-1], waited=self._options.wait))
            end = await self._own_result(why)
            wrong = [found.summary for _, severity, found in end.examinations[0].findings if severity is Severity.FAIL]
            await hub.stop(ENDED_BY_FAULT + wrong[0] if wrong else why, 1 if wrong else 2)
            return end
        except ImpossibleError as error:
            await hub.stop(str(error))
            return await self._own_result(str(error))
        except asyncio.CancelledError as error:
            by = str(error.args[0]).partition(":")[0] if error.args else "its user"
            with suppress(Exception):
                await hub.stop(f"stopped by {by} on node 0")
            raise
        finally:
            own_agent.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await own_agent

    @property
    def _useful_command(self) -> Callable[[int], str] | None:
        """None where the nodes can't meet at this master: another command has been shown."""
        return None if self._misled else self._shown_command

    def _shown_command(self, rank: int) -> str:
        """The command to type on the node of that rank, with the token, for the eyes of this node's user."""
        return with_token(netcheck_command(self._meeting, self._job.nnodes, rank), self._token)

    async def _open_hub(self, addresses: Sequence[str]) -> tuple[Hub | None, str]:
        """The hub on the first of the ports that is free; None and the system's words where none is."""
        job, error = self._job, ""
        for port in self._ports():
            seat = "rank" if job.launched else "node"
            hub = Hub(addresses, port, job.nnodes or 1, self._token, job.hosts, command=self._task.command, seat=seat)
            try:
                await hub.open()
            except OSError as failure:
                error = failure.strerror or str(failure)
            else:
                return hub, ""
        return None, error

    async def _run_own_agent(self, hub: Hub, address: str, searches: list[Meeting]) -> None:
        """Node 0's own agent comes through the port like everybody else's. searches: takes up what that came to so far."""
        _, connection = await find_hub(address, (hub.port,), self._options.wait, searches.append)
        if connection is not None:
            with suppress(AgentError):
                await self._take_part(connection, hub.own, lambda: node_0_address(hub, address))

    async def _verdict(self, hub: Hub, gathered: FleetFacts) -> RunResult:
        fleet = gathered.fleet
        ranks = [node.rank for node in fleet.nodes]
        snapshots = [with_fleet(gathered.snapshots[rank], fleet, rank) for rank in ranks]
        examinations = await in_thread(lambda: self._task.judge(snapshots))
        fleet = replace(fleet, phases=judged_phases(fleet, examinations))
        verdict, problems = overall_verdict(fleet, examinations)
        code = verdict.exit_code(strict=self._options.strict)
        end = RunResult(
            exit_code=code,
            meeting=self._meeting,
            examinations=tuple(examinations),
            fleet=fleet,
            seconds=round(time.monotonic() - gathered.joined_at, 3),
            problems=problems,
            token=self._token,
        )
        self._audience.verdict(end)
        lines = (*part_lines(fleet, examinations), *problems)
        await hub.dismiss(verdicts_by_rank(dict(zip(ranks, examinations, strict=True)), lines, verdict, code))
        return end
