"""The smoke training of several hosts, as node 0 leads it: who runs which ranks, and one account of what all came to."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import clip, listed, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.engine.sanitize_facts import is_version
from ddpdoctor.facts.fleet import Passed
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import Leftovers, RankEnding, RankRun, Smoke, Stage, StageState
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
from ddpdoctor.smoke_training.analysis.verdict import facts_of_plan, judge_plan
from ddpdoctor.smoke_training.plan import SmokePlan, plan_training

ENDING_SECONDS: Final = 30.0
"""For the start and the end of the ranks, beside their stages."""


_IN_SHARED_MEMORY: Final = re.compile(r"(/dev/shm/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_TEMPORARY: Final = re.compile(r"/([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*ddpdoctor-smoke-[A-Za-z0-9_.-]+")


class CoordinatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What node 0 was told. launcher: who started each rank, "" where each host starts its own. alone: no such rank has
    another host's beside it."""

    backend: str
    stages: tuple[str, ...]
    seconds: float
    import_seconds: float
    python: str
    launcher: str = ""
    one_host: bool = False
    engine: str = ""


class TrainingCoordinator:
    """master, store_port: where the ranks find their store, which node 0's own are to have."""

    def __init__(
        self, company: NodeSession, terms: CoordinatorOptions, catalogue: Catalogue, *, master: str, store_port: int
    ) -> None:
        self._catalogue = catalogue
        self._company = company
        self._terms = terms
        self._master = master
        self._store_port = store_port
        self._smoke = Smoke()
        self._gpus_passed_over = ""
        self._hindered: dict[int, Smoke] = {}
        """Plans that are known beforehand to fail, by node."""
        self._left: dict[int, Leftovers] = {}

    async def go(self) -> None:
        company, hub = self._company, self._company.hub
        if len(company.there) < 2:
            company.not_tested("smoke", ONLY_ONE_NODE)
            return
        if len(company.there) < hub.nnodes:
            company.not_tested("smoke", f"it needs all {hub.nnodes} {'ranks' if self._terms.launcher else 'nodes'}")
            return
        began = time.monotonic()
        plans, backend = self._plans()
        if too_many := self._too_many(plans):
            raise ImpossibleError(too_many)
        if hindered := self._foreseen(plans):
            company.not_tested("smoke", f"{hindered} can't run the ranks that are planned there")
            return
        orders = self._orders(plans, backend)
        await hub.close_door()
        hub.announce("smoke")
        longest = self._terms.import_seconds + len(self._terms.stages) * self._terms.seconds + ENDING_SECONDS
        answers = await hub.ask(orders, longest, _failed)
        self._smoke = self._account(orders, answers, plans, backend, time.monotonic() - began)
        passed = not self._smoke.problem and all(rank.ending is RankEnding.FINISHED for rank in self._smoke.ranks)
        company.ended("smoke", Passed.PASS if passed else Passed.FAIL, began, _how_far(self._smoke))

    def told(self, gathered: FleetFacts) -> FleetFacts:
        with_smoke = {
            rank: msgspec.structs.replace(one, smoke=self._hindered.get(rank) or self._with_its_own(rank))
            for rank, one in gathered.snapshots.items()
        }
        return msgspec.structs.replace(gathered, snapshots=with_smoke)

    def _with_its_own(self, rank: int) -> Smoke:
        """What all came to, with what was left on that node."""
        return msgspec.structs.replace(self._smoke, leftovers=self._left.get(rank, Leftovers()))

    def _plans(self) -> tuple[dict[int, SmokePlan], str]:
        """How many ranks each node runs; and the backend of all: NCCL where every node has GPUs."""
        snapshots = self._company.snapshots
        backend = self._terms.backend
        alone = {rank: plan_training(snapshots[rank], None, backend) for rank in self._company.there}
        self._gpus_passed_over = self._passed_over(alone)
        if backend == "auto":
            backend = "nccl" if all(one.backend == "nccl" for one in alone.values()) else "gloo"
        plans = {
            rank: plan_training(snapshots[rank], 1 if self._terms.launcher else _wanted(snapshots[rank]), backend)
            for rank in self._company.there
        }
        return plans, backend

    def _passed_over(self, alone: Mapping[int, SmokePlan]) -> str:
        """As in `facts.smoke.Smoke`, by hosts. alone: what each would run without the others."""
        some_have = any(one.backend == "nccl" for one in alone.values())
        reasons: dict[tuple[bool, str], list[str]] = {}
        for rank, plan in alone.items():
            without = plan.backend == "gloo"
            if plan.gpus_passed_over or (without and some_have and self._terms.backend == "auto"):
                reasons.setdefault((without, plan.gpus_passed_over), []).append(self._host_of(rank))
        said = []
        for (without, reason), names in reasons.items():
            hosts = list(dict.fromkeys(names))
            shows = f" show{'s' if len(hosts) == 1 else ''} no GPU" if without else ""
            said.append(f"{listed(hosts, most=4)}{shows}{': ' if reason else ''}{reason}")
        return clip("; ".join(said), 600)

    def _host_of(self, rank: int) -> str:
        return _host(self._company.snapshots[rank], self._company.hub.peers[rank].host)

    def _foreseen(self, plans: Mapping[int, SmokePlan]) -> str:
        """The hosts whose plan is known to fail before anything is started; "" where there is none."""
        company = self._company
        for rank, plan in (*plans.items(), *self._crowded(plans)):
            if judge_plan(company.snapshots[rank], plan, self._catalogue) is not None:
                self._hindered[rank] = facts_of_plan(plan)
        names = (company.hub.peers[rank].host for rank in self._hindered)
        # One that a launcher started is hindered by others on its host.
        return listed((name.partition(" (")[0] if self._terms.launcher else name for name in names), most=4)

    def _crowded(self, plans: Mapping[int, SmokePlan]) -> Iterator[tuple[int, SmokePlan]]:
        """Where a launcher has started more ranks on a host than there are GPUs that any of them sees: the first of them,
        with the plan that they all come to. Each may be shown GPUs of its own."""
        if not self._terms.launcher:
            return
        hosts: dict[str, list[int]] = {}
        for rank in plans:
            hosts.setdefault(self._host_of(rank), []).append(rank)
        for ranks in hosts.values():
            snapshots = [self._company.snapshots[rank] for rank in ranks]
            # Several hosts may have the same name.
            count = min(len(ranks), local_ranks(snapshots[0]) or len(ranks))
            seen = gpus_seen(snapshots)
            if seen is not None and count > seen:
                yield ranks[0], msgspec.structs.replace(plans[ranks[0]], nproc=count)

    def _too_many(self, plans: Mapping[int, SmokePlan]) -> str:
        """Why so many ranks can't be ordered; "" where they can."""
        guests = self._company.hub.peers
        for rank, plan in plans.items():
            if plan.nproc > MAX_RANKS_PER_HOST:
                return (
                    f"{plan.nproc} ranks are planned on {guests[rank].host}; a host runs {MAX_RANKS_PER_HOST} at most"
                )
        count = sum(plan.nproc for plan in plans.values())
        if count > MAX_RANKS:
            return f"{count} ranks are planned on {len(plans)} hosts; {MAX_RANKS} at most can be run"
        return ""

    def _orders(self, plans: Mapping[int, SmokePlan], backend: str) -> dict[int, Order]:
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
                master=self._master if self._terms.launcher else node_0_address(self._company.hub, self._master),
                port=self._store_port,
                stages=self._terms.stages,
                seconds=self._terms.seconds,
                import_seconds=self._terms.import_seconds,
            )
            first += plans[rank].nproc
        return orders

    def _account(
        self,
        orders: Mapping[int, Order],
        answers: Mapping[int, Answer],
        plans: Mapping[int, SmokePlan],
        backend: str,
        seconds: float,
    ) -> Smoke:
        runs: list[RankRun] = []
        problems: dict[int, str] = {}
        began = {
            rank: answer.began - self._company.hub.peers[rank].offset
            for rank, answer in answers.items()
            if isinstance(answer, TrainingDone)
        }
        for rank, order in orders.items():
            assert isinstance(order, Train)
            guest, answer = self._company.hub.peers[rank], answers.get(rank)
            # Times count from the first node's start, by node 0's clock.
            later = began.get(rank, 0.0) - min(began.values(), default=0.0)
            runs += runs_of(order, answer, rank, self._host_of(rank), guest.lost, later)
            if isinstance(answer, TrainingDone):
                self._left[rank] = believable(answer.leftovers)
            if problem := _problem(answer):
                problems[rank] = f"{guest.host}: {problem}"
        # Who was only ended for the others' sake was started, or would have been.
        runs = [
            msgspec.structs.replace(one, ending=RankEnding.ENDED)
            if one.ending is RankEnding.NEVER_CAME and problems and one.node not in problems and not one.words
            else one
            for one in runs
        ]
        return Smoke(
            ranks=tuple(sorted(runs, key=lambda run: run.rank)),
            world_size=sum(plan.nproc for plan in plans.values()),
            nnodes=self._hosts(len(plans)),
            backend=backend,
            chosen=self._chosen(plans, backend),
            gpus_passed_over=self._gpus_passed_over,
            engine=self._terms.engine,
            stages=self._terms.stages,
            deadline=self._terms.seconds,
            import_seconds=self._terms.import_seconds,
            seconds=round(seconds, 3),
            problem="; ".join(problems.values())[:1000],
            torch=next(
                (one.torch for one in answers.values() if isinstance(one, TrainingDone) and is_version(one.torch)), ""
            ),
            python=self._terms.python,
            folder=self._folders(answers),
        )

    def _folders(self, answers: Mapping[int, Answer]) -> str:
        """Of the hosts whose ranks had their files elsewhere than usual."""
        told = {
            f"{self._host_of(rank)}: {answer.folder}": None
            for rank, answer in answers.items()
            if isinstance(answer, TrainingDone) and answer.folder
        }
        return clip(listed(told, most=4), 600)

    def _hosts(self, nodes: int) -> int:
        if not self._terms.launcher:
            return nodes
        return len({self._host_of(rank) for rank in self._company.there})

    def _chosen(self, plans: Mapping[int, SmokePlan], backend: str) -> str:
        why = self._gpus_passed_over
        return self._counted(plans, backend) + (f"{', since' if backend == 'gloo' else ';'} {why}" if why else "")

    def _counted(self, plans: Mapping[int, SmokePlan], backend: str) -> str:
        count = sum(plan.nproc for plan in plans.values())
        where = f"on {'GPU' if backend == 'nccl' else 'CPU'} over {backend}"
        if self._terms.launcher:
            return (
                f"{plural(count, 'rank')} as {self._terms.launcher} started {'it' if count == 1 else 'them'}, {where}"
            )
        numbers = Counter(plan.nproc for plan in plans.values())
        if len(numbers) == 1:
            return (
                f"{plural(count, 'rank')} {where}, {plural(next(iter(numbers)), 'rank')} on each of {len(plans)} hosts"
            )
        names = self._company.hub.peers
        each = listed((f"{plan.nproc} on {names[rank].host}" for rank, plan in plans.items()), most=8)
        return f"{plural(count, 'rank')} {where}: {each}"


def _wanted(snapshot: Snapshot) -> int | None:
    return snapshot.meeting.nproc if isinstance(snapshot.meeting, Meeting) else None


def _host(snapshot: Snapshot, name: str) -> str:
    """The name of the machine, without what tells several ranks on it apart."""
    network = snapshot.network
    return name.partition(" (")[0] if isinstance(network, Unknown) else network.hostname or name.partition(" (")[0]


def local_ranks(snapshot: Snapshot) -> int | None:
    """How many ranks the launcher of this one has started on its host; None where it doesn't say."""
    environment = snapshot.environment
    launch = None if isinstance(environment, Unknown) else current_launch(environment)
    return launch.local_world_size if launch else None


def gpus_seen(snapshots: Sequence[Snapshot]) -> int | None:
    """How many GPUs ranks of one host see, all together: MIG slices of one are no more than it. None: nobody knows."""
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
    """Why a node could not even start its ranks."""
    if isinstance(answer, TrainingDone):
        return answer.problem
    return answer.why if isinstance(answer, OrderFailed) else ""


def believable(left: Leftovers) -> Leftovers:
    """Without files that no training leaves: somebody is told to remove what is named here."""
    return Leftovers(
        processes=left.processes[:MAX_LEFTOVERS],
        ports=tuple(port for port in left.ports if 0 < port < 65536)[:MAX_LEFTOVERS],
        shared_memory=tuple(one for one in left.shared_memory if _IN_SHARED_MEMORY.fullmatch(one))[:MAX_LEFTOVERS],
        unclaimed=tuple(one for one in left.unclaimed if _IN_SHARED_MEMORY.fullmatch(one))[:MAX_LEFTOVERS],
        files=tuple(file for file in left.files if _TEMPORARY.fullmatch(file))[:MAX_LEFTOVERS],
    )


def _failed(answer: Answer) -> bool:
    """Whether the others' ranks would wait in vain after this."""
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
    """What the ranks of one node came to: those that it was told to run, and no others, whatever it says.

    node: its rank in the meeting. lost: how it went away. later: seconds between the run's beginning and its own.
    """
    told = {run.rank: run for run in answer.runs} if isinstance(answer, TrainingDone) else {}
    runs = []
    for local, rank in enumerate(range(order.first_rank, order.first_rank + order.nproc)):
        one = told.get(rank)
        if one is None:
            words = answer.why if isinstance(answer, OrderFailed) else f"{host} was {lost}" if lost else ""
            not_run = tuple(Stage(name=name, state=StageState.NOT_RUN) for name in order.stages)
            one = RankRun(
                rank=rank, local_rank=local, host=host, ending=RankEnding.NEVER_CAME, stages=not_run, words=words[:600]
            )
        runs.append(
            msgspec.structs.replace(
                one,
                host=host,
                node=node,
                stages=_known(one.stages, order.stages),
                ended_after=round(one.ended_after + max(0.0, later), 3),
                culprits=tuple(culprit for culprit in one.culprits if 0 <= culprit < order.world_size),
            )
        )
    return runs


def _known(stages: Sequence[Stage], planned: Sequence[str]) -> tuple[Stage, ...]:
    """Those that were planned, each once and in their order."""
    told = {stage.name: stage for stage in stages}
    return tuple(told.get(name, Stage(name=name, state=StageState.NOT_RUN)) for name in planned)
