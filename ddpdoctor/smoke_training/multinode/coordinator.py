"""Node 0's part in a smoke training over several hosts: orders the ranks of each node, and puts their answers together."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import clip, listed, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.engine.sanitize_facts import is_version
from ddpdoctor.facts.burn_in import MAX_ERROR_LINES, MAX_WATCHED_GPUS, MAX_WINDOWS, BurnIn, HostWatch
from ddpdoctor.facts.fleet import Passed
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import SWITCHED_ON, Leftovers, RankEnding, RankRun, Smoke, Stage, StageState
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.launchers import current_launch
from ddpdoctor.network_check.listen_address import node_0_address
from ddpdoctor.network_check.node_session import ONLY_ONE_NODE, FleetFacts, ImpossibleError, NodeSession
from ddpdoctor.network_check.protocol.messages import (
    MAX_LEFTOVERS,
    MAX_RANKS,
    MAX_RANKS_PER_HOST,
    Answer,
    Order,
    OrderFailed,
    Train,
    TrainingDone,
)
from ddpdoctor.smoke_training.analysis.verdict import facts_of_plan, has_passed, judge_plan
from ddpdoctor.smoke_training.plan import SmokePlan, plan_training
from ddpdoctor.smoke_training.training_order import SmokeOptions

ENDING_SECONDS: Final = 30.0
"""For the start and the end of the ranks, beside their stages."""

_SHARED_MEMORY_PATH: Final = re.compile(r"(/dev/shm/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_TEMPORARY_FOLDER: Final = re.compile(r"/([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*ddpdoctor-smoke-[A-Za-z0-9_.-]+")


class TrainingCoordinator:
    """The phase of a meeting in which the nodes train."""

    def __init__(
        self, session: NodeSession, options: SmokeOptions, catalogue: Catalogue, *, master: str, store_port: int
    ) -> None:
        self._catalogue = catalogue
        self._session = session
        self._options = options
        self._master = master
        self._store_port = store_port
        self.smoke = Smoke()
        self._gpus_passed_over = ""
        self.impossible: dict[int, Smoke] = {}
        """By node: plans that are known beforehand to fail."""
        self._left: dict[int, Leftovers] = {}

    async def run(self) -> None:
        """Plan, order, train, and collect the answers.

        Raises:
            ImpossibleError: there are too many ranks.
        """
        session, hub = self._session, self._session.hub
        if len(session.present) < 2:
            session.not_tested("smoke", ONLY_ONE_NODE)
            return
        if len(session.present) < hub.nnodes:
            session.not_tested("smoke", f"it needs all {hub.nnodes} {'ranks' if self._options.launcher else 'nodes'}")
            return
        began = time.monotonic()
        plans, backend = self.plan_ranks()
        if too_many := self._too_many(plans):
            raise ImpossibleError(too_many)
        if hosts := self.find_impossible_hosts(plans):
            session.not_tested("smoke", f"{hosts} can't run the ranks that are planned there")
            return
        orders = self.make_orders(plans, backend)
        await hub.close_port()
        hub.announce("smoke")
        options = self._options
        longest = options.import_seconds + len(options.stages) * options.seconds + options.duration + ENDING_SECONDS
        answers = await hub.ask(orders, longest, _has_failed)
        self.smoke = self.merge_answers(orders, answers, plans, backend, time.monotonic() - began)
        passed = Passed.PASS if has_passed(self.smoke) else Passed.FAIL
        session.record("smoke", passed, began, _how_far(self.smoke))

    def add_results(self, gathered: FleetFacts) -> FleetFacts:
        """Add to each node's facts those of the whole training, with what was left on that node."""
        with_smoke = {}
        for rank, snapshot in gathered.snapshots.items():
            whole = msgspec.structs.replace(self.smoke, leftovers=self._left.get(rank, Leftovers()))
            with_smoke[rank] = msgspec.structs.replace(snapshot, smoke=self.impossible.get(rank, whole))
        return msgspec.structs.replace(gathered, snapshots=with_smoke)

    def plan_ranks(self) -> tuple[dict[int, SmokePlan], str]:
        """Plan how many ranks each node runs, and the backend of all: NCCL where every node has GPUs."""
        snapshots = self._session.snapshots
        backend = self._options.backend
        own_plans = {rank: plan_training(snapshots[rank], None, backend) for rank in self._session.present}
        self._gpus_passed_over = self._why_passed_over(own_plans)
        if backend == "auto":
            backend = "nccl" if all(plan.backend == "nccl" for plan in own_plans.values()) else "gloo"
        plans = {
            rank: plan_training(snapshots[rank], 1 if self._options.launcher else _wanted(snapshots[rank]), backend)
            for rank in self._session.present
        }
        return plans, backend

    def _why_passed_over(self, own_plans: Mapping[int, SmokePlan]) -> str:
        """Say which GPUs are passed over and why, by hosts. own_plans: what each node would run without the others."""
        some_have = any(plan.backend == "nccl" for plan in own_plans.values())
        reasons: dict[tuple[bool, str], list[str]] = {}
        for rank, plan in own_plans.items():
            without = plan.backend == "gloo"
            if plan.gpus_passed_over or (without and some_have and self._options.backend == "auto"):
                reasons.setdefault((without, plan.gpus_passed_over), []).append(self._host_of(rank))
        said = []
        for (without, reason), names in reasons.items():
            hosts = list(dict.fromkeys(names))
            shows = f" show{'s' if len(hosts) == 1 else ''} no GPU" if without else ""
            said.append(f"{listed(hosts, most=4)}{shows}{': ' if reason else ''}{reason}")
        return clip("; ".join(said), 600)

    def _host_of(self, rank: int) -> str:
        """The name of the machine, without what tells several ranks on it apart."""
        network = self._session.snapshots[rank].network
        known = "" if isinstance(network, Unknown) else network.hostname
        return known or self._session.hub.peers[rank].host.partition(" (")[0]

    def find_impossible_hosts(self, plans: Mapping[int, SmokePlan]) -> str:
        """Name the hosts whose plan is known to fail before anything is started; "" where there is none."""
        session = self._session
        for rank, plan in (*plans.items(), *self._crowded(plans)):
            if judge_plan(session.snapshots[rank], plan, self._catalogue) is not None:
                self.impossible[rank] = facts_of_plan(plan)
        names = (session.hub.peers[rank].host for rank in self.impossible)
        # One that a launcher started is hindered by others on its host.
        return listed((name.partition(" (")[0] if self._options.launcher else name for name in names), most=4)

    def _crowded(self, plans: Mapping[int, SmokePlan]) -> Iterator[tuple[int, SmokePlan]]:
        """For each host where a launcher has started more ranks than there are GPUs that any of them sees: the first of those ranks,
        with the plan that they all come to. Each may be shown GPUs of its own."""
        if not self._options.launcher:
            return
        hosts: dict[str, list[int]] = {}
        for rank in plans:
            hosts.setdefault(self._host_of(rank), []).append(rank)
        for ranks in hosts.values():
            snapshots = [self._session.snapshots[rank] for rank in ranks]
            # Several hosts may have the same name.
            count = min(len(ranks), local_ranks(snapshots[0]) or len(ranks))
            seen = gpus_seen(snapshots)
            if seen is not None and count > seen:
                yield ranks[0], msgspec.structs.replace(plans[ranks[0]], nproc=count)

    def _too_many(self, plans: Mapping[int, SmokePlan]) -> str:
        """Say why so many ranks can't be ordered; "" where they can."""
        for rank, plan in plans.items():
            if plan.nproc > MAX_RANKS_PER_HOST:
                host = self._session.hub.peers[rank].host
                return f"{plan.nproc} ranks are planned on {host}; a host runs {MAX_RANKS_PER_HOST} at most"
        count = sum(plan.nproc for plan in plans.values())
        if count > MAX_RANKS:
            return f"{count} ranks are planned on {len(plans)} hosts; {MAX_RANKS} at most can be run"
        return ""

    def make_orders(self, plans: Mapping[int, SmokePlan], backend: str) -> dict[int, Order]:
        """Number the ranks, and tell each node which are its own."""
        world_size = sum(plan.nproc for plan in plans.values())
        orders: dict[int, Order] = {}
        first = 0
        for place, rank in enumerate(sorted(plans)):
            orders[rank] = Train(
                backend=backend,
                first_rank=first,
                nproc=plans[rank].nproc,
                world_size=world_size,
                node_rank=place,
                nnodes=len(plans),
                master=self._master if self._options.launcher else node_0_address(self._session.hub, self._master),
                port=self._store_port,
                stages=self._options.stages,
                seconds=self._options.seconds,
                import_seconds=self._options.import_seconds,
                duration=self._options.duration,
                diagnoses=self._diagnosis(plans, backend) == SWITCHED_ON,
            )
            first += plans[rank].nproc
        return orders

    def merge_answers(
        self,
        orders: Mapping[int, Order],
        answers: Mapping[int, Answer],
        plans: Mapping[int, SmokePlan],
        backend: str,
        seconds: float,
    ) -> Smoke:
        """Put the nodes' answers together, of which there is none of a node that was lost: the facts of the whole training."""
        peers = self._session.hub.peers
        done = {rank: answer for rank, answer in answers.items() if isinstance(answer, TrainingDone)}
        self._left = {rank: believable(answer.leftovers) for rank, answer in done.items()}
        # Times count from the first node's start, by node 0's clock.
        began = {rank: answer.began - peers[rank].offset for rank, answer in done.items()}
        first = min(began.values(), default=0.0)
        runs: list[RankRun] = []
        problems: dict[int, str] = {}
        for rank, order in orders.items():
            assert isinstance(order, Train)
            answer, later = answers.get(rank), began.get(rank, 0.0) - first
            runs += runs_of(order, answer, rank, self._host_of(rank), peers[rank].lost, later)
            if problem := _problem(answer):
                problems[rank] = f"{peers[rank].host}: {problem}"
        # A rank that was only ended for the others' sake was started, or would have been.
        runs = [
            msgspec.structs.replace(run, ending=RankEnding.ENDED)
            if run.ending is RankEnding.NEVER_CAME and problems and run.node not in problems and not run.words
            else run
            for run in runs
        ]
        return Smoke(
            ranks=tuple(sorted(runs, key=lambda run: run.rank)),
            world_size=sum(plan.nproc for plan in plans.values()),
            nnodes=len({self._host_of(rank) for rank in self._session.present})
            if self._options.launcher
            else len(plans),
            backend=backend,
            chosen=self.describe_plan(plans, backend),
            gpus_passed_over=self._gpus_passed_over,
            engine=self._options.engine,
            stages=self._options.stages,
            deadline=self._options.seconds,
            import_seconds=self._options.import_seconds,
            seconds=round(seconds, 3),
            problem="; ".join(problems.values())[:1000],
            torch=next((answer.torch for answer in done.values() if is_version(answer.torch)), ""),
            python=self._options.python,
            folder=self._folders(done),
            nccl_diagnosis=self._diagnosis(plans, backend),
            nccl_report=next((answer.nccl_report for answer in done.values() if answer.nccl_report), ()),
            burn_in=self._burn_in(done),
        )

    def _diagnosis(self, plans: Mapping[int, SmokePlan], backend: str) -> str:
        """Switch NCCL's own diagnosis on, on all nodes or on none, since it compares such settings, too; or say why not."""
        if backend != "nccl":
            return ""
        reasons = [(rank, plan.nccl_diagnosis) for rank, plan in plans.items() if not plan.diagnoses]
        return clip(f"{self._host_of(reasons[0][0])}: {reasons[0][1]}", 300) if reasons else SWITCHED_ON

    def _burn_in(self, done: Mapping[int, TrainingDone]) -> BurnIn:
        """What the nodes say of it, and of their own hosts."""
        told = [answer.burn_in for answer in done.values()]
        return BurnIn(
            asked=self._options.duration,
            stopped=clip(next((each.stopped for each in told if each.stopped), ""), 20),
            batch=next((each.batch for each in told if each.batch), 0),
            hosts=tuple(
                bounded_watch(watch, self._host_of(rank), rank)
                for rank, answer in done.items()
                for watch in answer.burn_in.hosts[:1]
            ),
        )

    def _folders(self, done: Mapping[int, TrainingDone]) -> str:
        """The folders of hosts whose ranks had their files elsewhere than usual."""
        folders = [f"{self._host_of(rank)}: {answer.folder}" for rank, answer in done.items() if answer.folder]
        return clip(listed(dict.fromkeys(folders), most=4), 600)

    def describe_plan(self, plans: Mapping[int, SmokePlan], backend: str) -> str:
        """Say how many ranks are run where, and which GPUs are passed over."""
        why = self._gpus_passed_over
        return self._counted(plans, backend) + (f"{', since' if backend == 'gloo' else ';'} {why}" if why else "")

    def _counted(self, plans: Mapping[int, SmokePlan], backend: str) -> str:
        count = sum(plan.nproc for plan in plans.values())
        where = f"on {'GPU' if backend == 'nccl' else 'CPU'} over {backend}"
        ranks = plural(count, "rank")
        if self._options.launcher:
            return f"{ranks} as {self._options.launcher} started {'it' if count == 1 else 'them'}, {where}"
        numbers = {plan.nproc for plan in plans.values()}
        if len(numbers) == 1:
            return f"{ranks} {where}, {plural(numbers.pop(), 'rank')} on each of {len(plans)} hosts"
        names = self._session.hub.peers
        on_hosts = (f"{plan.nproc} on {names[rank].host}" for rank, plan in plans.items())
        return f"{ranks} {where}: {listed(on_hosts, most=8)}"


def _wanted(snapshot: Snapshot) -> int | None:
    return snapshot.meeting.nproc if isinstance(snapshot.meeting, Meeting) else None


def local_ranks(snapshot: Snapshot) -> int | None:
    """The number of ranks that the launcher of this one has started on its host; None where it doesn't say."""
    environment = snapshot.environment
    launch = None if isinstance(environment, Unknown) else current_launch(environment)
    return launch.local_world_size if launch else None


def gpus_seen(snapshots: Sequence[Snapshot]) -> int | None:
    """The number of GPUs that ranks of one host see, all together: MIG slices of one are no more than it. None: unknown."""
    found: set[str] = set()
    for snapshot in snapshots:
        if isinstance(snapshot.gpus, Unknown):
            return None
        found |= {
            seen.gpu.uuid or seen.gpu.bus_id or str(seen.gpu.index)
            for seen in visible_gpus(snapshot.gpus, snapshot.environment)
        }
    return len(found)


def _problem(answer: Answer | None) -> str:
    """Say why a node could not even start its ranks; "" else."""
    if isinstance(answer, TrainingDone):
        return answer.problem
    return answer.why if isinstance(answer, OrderFailed) else ""


def believable(left: Leftovers) -> Leftovers:
    """Drop what no training leaves from what a node says that it has left: the user is told to remove what is named here."""
    return Leftovers(
        processes=left.processes[:MAX_LEFTOVERS],
        ports=tuple(port for port in left.ports if 0 < port < 65536)[:MAX_LEFTOVERS],
        shared_memory=tuple(filter(_SHARED_MEMORY_PATH.fullmatch, left.shared_memory))[:MAX_LEFTOVERS],
        unclaimed=tuple(filter(_SHARED_MEMORY_PATH.fullmatch, left.unclaimed))[:MAX_LEFTOVERS],
        files=tuple(filter(_TEMPORARY_FOLDER.fullmatch, left.files))[:MAX_LEFTOVERS],
    )


def bounded_watch(watch: HostWatch, host: str, node: int) -> HostWatch:
    """What a node says of its own host, cut to what an honest one says."""
    gpus = watch.gpus
    if isinstance(gpus, tuple):
        gpus = tuple(
            msgspec.structs.replace(
                gpu,
                name=gpu.name[:80],
                bus_id=gpu.bus_id[:20],
                looks=tuple(
                    msgspec.structs.replace(look, throttled=tuple(reason[:20] for reason in look.throttled[:8]))
                    for look in gpu.looks[:MAX_WINDOWS]
                ),
            )
            for gpu in gpus[:MAX_WATCHED_GPUS]
        )
    lines = watch.error_lines
    if isinstance(lines, tuple):
        lines = tuple(msgspec.structs.replace(line, text=line.text[:500]) for line in lines[:MAX_ERROR_LINES])
    return msgspec.structs.replace(
        watch, host=host, node=node, memory=watch.memory[:MAX_WINDOWS], gpus=gpus, error_lines=lines
    )


def _has_failed(answer: Answer) -> bool:
    """Whether the others' ranks would wait in vain after this answer."""
    return not isinstance(answer, TrainingDone) or any(run.ending is not RankEnding.FINISHED for run in answer.runs)


def _how_far(smoke: Smoke) -> str:
    finished = [rank for rank in smoke.ranks if rank.ending is RankEnding.FINISHED]
    if not finished:
        return f"none of {plural(len(smoke.ranks), 'rank')} came to the end"
    passed = sum(stage.state is StageState.PASSED for stage in finished[0].stages)
    untested = len(smoke.stages) - passed
    rest = f", {untested} can't be tested here" if untested else ""
    return f"{len(finished)} of {plural(len(smoke.ranks), 'rank')} passed {plural(passed, 'stage')}{rest}"


def runs_of(
    order: Train, answer: Answer | None, node: int, host: str, lost: str = "", later: float = 0.0
) -> Sequence[RankRun]:
    """List what the ranks of one node came to: those that it was ordered to run, and no others, whatever it says.

    lost: how it went away, "" where it didn't; later: seconds between the run's beginning and its own.
    """
    runs_told = {run.rank: run for run in answer.runs} if isinstance(answer, TrainingDone) else {}
    not_run = {name: Stage(name=name, state=StageState.NOT_RUN) for name in order.stages}
    runs = []
    for local, rank in enumerate(range(order.first_rank, order.first_rank + order.nproc)):
        run = runs_told.get(rank)
        if run is None:
            words = answer.why if isinstance(answer, OrderFailed) else f"{host} was {lost}" if lost else ""
            run = RankRun(rank=rank, local_rank=local, host=host, ending=RankEnding.NEVER_CAME, words=words[:600])
        runs.append(
            msgspec.structs.replace(
                run,
                host=host,
                node=node,
                stages=tuple(map({**not_run, **{stage.name: stage for stage in run.stages}}.__getitem__, order.stages)),
                ended_after=round(run.ended_after + max(0.0, later), 3),
                culprits=tuple(culprit for culprit in run.culprits if 0 <= culprit < order.world_size),
                pace=run.pace[:MAX_WINDOWS],
            )
        )
    return runs
