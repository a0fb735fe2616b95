"""A node's part in a smoke training over several hosts: runs the ranks that node 0 orders, and answers what they came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import Leftovers, RankRun, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.nccl_diagnosis import SETTINGS
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.messages import (
    MAX_LEFTOVERS,
    MAX_RANK_RUN_BYTES,
    MAX_REPORT_LINES,
    Answer,
    OrderFailed,
    Train,
    TrainingDone,
    Welcome,
)
from ddpdoctor.network_check.protocol.messages import Order as AnyOrder
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.plan import plan_training
from ddpdoctor.smoke_training.stages import BURN_IN, STAGES
from ddpdoctor.smoke_training.training_order import SmokeOptions, TrainingOrder

MAX_PATH_LENGTH = 500
SHORT_LENGTH, SHORT_STACK = 80, 6
"""Characters of a text, and frames of a stack, where a rank says too much."""


class RemoteTraining:
    """Carries out the order of node 0 on this node, once. master: where the ranks may go, whatever is ordered."""

    def __init__(
        self,
        options: SmokeOptions,
        snapshot: Snapshot,
        master: Master,
        environ: Mapping[str, str],
        on_progress: Callable[[RankMonitor], None] = lambda monitor: None,
    ) -> None:
        self._options = options
        self._snapshot = snapshot
        self._master = master
        self._environ = environ
        self._on_progress = on_progress
        self._order: Train | None = None
        self._welcome: Welcome | None = None
        self._refused = ""
        self._own_part = Smoke()
        self._runner: RankRunner | None = None

    def welcome(self, welcome: Welcome) -> None:
        """Take in as which node this one was admitted."""
        self._welcome = welcome

    async def carry_out(self, order: AnyOrder) -> Answer:
        """Run the ranks to their end. Cancelled with ABORTED, end them and answer where they were."""
        if not isinstance(order, Train):
            return OrderFailed(why="this node was started for smoke")
        if why := self._refusal(order):
            self._refused = why
            return OrderFailed(why=f"it was ordered what no node 0 of ours orders: {why}")
        # Whatever is ordered, the ranks go to the master that was named here.
        order = msgspec.structs.replace(order, master=self._master.host, port=self._master.port)
        self._order = order
        began = time.time()
        options = self._options
        given = {name: value for name, value in msgspec.structs.asdict(order).items() if name != "diagnoses"}
        own = TrainingOrder(**given, launched=options.launched, fault=options.fault)
        environ = self._settings(order)
        self._runner = RankRunner(own, options.python, environ, self._on_progress)
        facts = redact_facts(await self._runner.run())
        answer = TrainingDone(
            runs=tuple(map(shorten_run, facts.ranks)),
            began=began,
            torch=facts.torch[:64],
            problem=facts.problem[:1000],
            folder=facts.folder[:500],
            leftovers=_few(facts.leftovers),
            nccl_report=tuple(line[:1000] for line in facts.nccl_report[:MAX_REPORT_LINES]),
            burn_in=facts.burn_in,
        )
        self._own_part = msgspec.structs.replace(
            facts,
            ranks=answer.runs,
            torch=answer.torch,
            problem=answer.problem,
            folder=answer.folder,
            leftovers=answer.leftovers,
        )
        return answer

    def _refusal(self, order: Train) -> str:
        """Say why an order isn't carried out, since another program may pose as node 0; "" where it is."""
        assert self._welcome is not None, "nobody orders before"
        node, nnodes = self._welcome.node_rank, self._welcome.nnodes
        if self._order is not None:
            return "it is to train twice"
        if (order.node_rank, order.nnodes) != (node, nnodes):
            return f"node {node} of {nnodes} is to be node {order.node_rank} of {order.nnodes}"
        # Rank 0 listens for the others, for which it is node 0's place alone.
        if (order.first_rank == 0) != (node == 0) or order.first_rank + order.nproc > order.world_size:
            return f"node {node} is to have rank {order.first_rank} of {order.world_size}"
        nproc = 1 if self._options.launched is not None else self._options.nproc
        most = max(plan_training(self._snapshot, nproc, backend).nproc for backend in ("gloo", "nccl"))
        if order.nproc > most:
            return f"it is to run {order.nproc} ranks, and {most} at most are planned here"
        if unknown := [stage for stage in order.stages if stage not in (*STAGES, BURN_IN)]:
            return f"it is to run a stage {plain(unknown[0], 64)!r}"
        return ""

    def end_early(self, number: int) -> bool:
        """Have the burn-in end for that signal, on all nodes; False where there is none that has begun."""
        return self._runner is not None and self._runner.end_early(number)

    def add_facts(self, snapshot: Snapshot) -> Snapshot:
        """Add to this node's facts what its own ranks came to."""
        return msgspec.structs.replace(snapshot, smoke=self._own_part)

    async def close(self) -> None:
        """Do nothing: nothing is left once the order is carried out."""

    def ignored_options(self) -> Iterator[str]:
        """Say in a sentence each which options have no effect, since node 0 decides otherwise."""
        options, order = self._options, self._order
        if self._refused:
            yield f"node 0 ordered what none of ours does, and it was not done: {self._refused}"
        if order is None:
            return
        if options.backend not in ("auto", order.backend):
            yield f"--backend {options.backend} has no effect here: node 0 runs with {order.backend}"
        if options.timeout is not None and options.timeout != order.seconds:
            yield f"--timeout {options.timeout:g} has no effect here: node 0 gives each stage {order.seconds:g} s"
        if options.duration and options.duration != order.duration:
            yield f"--duration has no effect here: node 0 has {order.duration:g} s of burn-in"
        if options.stages_given and set(options.stages) - {BURN_IN} != set(order.stages) - {BURN_IN}:
            yield "--stages has no effect here: node 0 says which are run"

    def _settings(self, order: Train) -> dict[str, str]:
        """The settings that a rank inherits. One that a launcher started finds its store by them: torchrun sets them, and for the
        other launchers they are what their training script would be told."""
        launched = self._options.launched
        environ = dict(self._environ)
        # Whatever is ordered, no setting of this node's user is overruled.
        if order.diagnoses and plan_training(self._snapshot, None, order.backend).diagnoses:
            environ |= SETTINGS
        if launched is None or self._options.store_running:
            return environ
        added = {
            "RANK": launched.rank,
            "LOCAL_RANK": launched.local_rank,
            "WORLD_SIZE": order.world_size,
            "MASTER_ADDR": order.master,
            "MASTER_PORT": order.port,
        }
        return {**environ, **{name: str(value) for name, value in added.items()}}


def _few(left: Leftovers) -> Leftovers:
    """Cut leftovers to what an answer has room for."""
    paths = {
        name: tuple(path for path in getattr(left, name) if len(path) < MAX_PATH_LENGTH)[:MAX_LEFTOVERS]
        for name in ("shared_memory", "unclaimed", "files")
    }
    processes = tuple(process[: 2 * SHORT_LENGTH] for process in left.processes[:MAX_LEFTOVERS])
    return Leftovers(processes=processes, ports=left.ports[:MAX_LEFTOVERS], **paths)


def _cut_stages(run: RankRun, length: int) -> dict[str, object]:
    return {"stages": tuple(msgspec.structs.replace(stage, words=stage.words[:length]) for stage in run.stages)}


def _cut_frames(run: RankRun) -> dict[str, object]:
    return {"stack": tuple(frame[: 2 * SHORT_LENGTH] for frame in run.stack[:SHORT_STACK])}


def _cut_texts(run: RankRun) -> dict[str, object]:
    names = ("words", "last_line", "calls", "step", "device", "process_state", "stack_source")
    return {name: getattr(run, name)[: 2 * SHORT_LENGTH] for name in names} | {
        "called": tuple(
            msgspec.structs.replace(call, call=call.call[:SHORT_LENGTH]) for call in run.called[-MAX_LEFTOVERS:]
        ),
        "culprits": run.culprits[:SHORT_LENGTH],
        "contexts": run.contexts[:MAX_LEFTOVERS],
    }


def _cut_nearly_all(run: RankRun) -> dict[str, object]:
    return {
        "called": run.called[-2:],
        "stack": run.stack[:2],
        "culprits": run.culprits[:8],
        "last_line": "",
        "pace": (),
    }


SHORTENINGS = (
    partial(_cut_stages, length=SHORT_LENGTH),
    _cut_frames,
    _cut_texts,
    partial(_cut_stages, length=0),
    _cut_nearly_all,
)
"""Each gives the fields that it cuts; the least important first."""


def shorten_run(run: RankRun) -> RankRun:
    """Cut what a rank came to until it takes less than MAX_RANK_RUN_BYTES bytes of JSON."""
    for shorten in SHORTENINGS:
        if len(msgspec.json.encode(run)) < MAX_RANK_RUN_BYTES:
            break
        run = msgspec.structs.replace(run, **shorten(run))
    return run
