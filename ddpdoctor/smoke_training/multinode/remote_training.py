"""A node's share of a smoke training over several hosts: runs the ranks that node 0 orders, and says what they came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import Leftovers, RankRun, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.messages import (
    MAX_LEFTOVERS,
    MAX_RANK_RUN_BYTES,
    Answer,
    OrderFailed,
    Train,
    TrainingDone,
    Welcome,
)
from ddpdoctor.network_check.protocol.messages import Order as AnyOrder
from ddpdoctor.network_check.protocol.order_limits import Master
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import run_ranks
from ddpdoctor.smoke_training.plan import plan_training
from ddpdoctor.smoke_training.stages import STAGES
from ddpdoctor.smoke_training.training_order import Fault, Launched, TrainingOrder

LONGEST_PATH = 500
SHORT, FRAMES = 80, 6
"""Characters and frames of a rank that says too much."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What this node wishes. backend, stages, timeout: as given here, though node 0's count. launched: the rank that a
    launcher has given to this process. store_running: its own store holds the master's port."""

    nproc: int | None = None
    backend: str = "auto"
    stages: tuple[str, ...] | None = None
    timeout: float | None = None
    launched: Launched | None = None
    local_world_size: int | None = None
    store_running: bool = False
    fault: Fault | None = None


class RemoteTraining:
    """heard: as for `running.run`."""

    def __init__(
        self,
        share: NodeOptions,
        snapshot: Snapshot,
        master: Master,
        python: str,
        environ: Mapping[str, str],
        on_progress: Callable[[RankMonitor], None] = lambda monitor: None,
    ) -> None:
        self._share = share
        self._snapshot = snapshot
        self._master = master
        self._python = python
        self._environ = environ
        self._on_progress = on_progress
        self._order: Train | None = None
        self._welcome: Welcome | None = None
        self._refused = ""
        self._own_part = Smoke()

    def welcome(self, welcome: Welcome) -> None:
        """Node 0 has let us in."""
        self._welcome = welcome

    async def carry_out(self, order: AnyOrder) -> Answer:
        """Runs the ranks to their end; cancelled with ENOUGH, to the answer where they were."""
        if not isinstance(order, Train):
            return OrderFailed(why="this node was started for smoke")
        if why := self._why_not(order):
            self._refused = why
            return OrderFailed(why=f"it was ordered what no node 0 of ours orders: {why}")
        # Whatever is ordered, the ranks go to the master that was named here.
        order = msgspec.structs.replace(order, master=self._master.host, port=self._master.port)
        self._order = order
        began = time.time()
        ran = await run_ranks(
            self._own(order), python=self._python, environ=self._settings(order), on_progress=self._on_progress
        )
        answer = TrainingDone(
            runs=tuple(shorten_run(redact_facts(run)) for run in ran.runs),
            began=began,
            torch=ran.torch[:64],
            problem=redact_facts(ran.problem)[:1000],
            folder=redact_facts(ran.folder.told)[:500] if ran.folder else "",
            leftovers=_few(redact_facts(ran.leftovers)),
        )
        self._own_part = Smoke(
            ranks=answer.runs,
            world_size=order.world_size,
            nnodes=order.nnodes,
            backend=order.backend,
            stages=order.stages,
            deadline=order.seconds,
            import_seconds=order.import_seconds,
            seconds=round(time.time() - began, 3),
            problem=answer.problem,
            torch=answer.torch,
            python=self._python,
            folder=answer.folder,
            leftovers=answer.leftovers,
        )
        return answer

    def _why_not(self, order: Train) -> str:
        """Why the order isn't carried out, for somebody else may speak as node 0; "" where it is."""
        assert self._welcome is not None, "nobody orders before"
        node, nnodes = self._welcome.node_rank, self._welcome.nnodes
        if self._order is not None:
            return "it is to train twice"
        if (order.node_rank, order.nnodes) != (node, nnodes):
            return f"node {node} of {nnodes} is to be node {order.node_rank} of {order.nnodes}"
        # Rank 0 listens for the others, for which it is node 0's place alone.
        if (order.first_rank == 0) != (node == 0) or order.first_rank + order.nproc > order.world_size:
            return f"node {node} is to have rank {order.first_rank} of {order.world_size}"
        wished = 1 if self._share.launched is not None else self._share.nproc
        most = max(plan_training(self._snapshot, wished, backend).nproc for backend in ("gloo", "nccl"))
        if order.nproc > most:
            return f"it is to run {order.nproc} ranks, and {most} at most are planned here"
        if unknown := [stage for stage in order.stages if stage not in STAGES]:
            return f"it is to run a stage {plain(unknown[0], 64)!r}"
        return ""

    def told(self, snapshot: Snapshot) -> Snapshot:
        """With what this node's own ranks came to."""
        return msgspec.structs.replace(snapshot, smoke=self._own_part)

    async def close(self) -> None:
        """Nothing of it is left once the order is carried out."""

    def in_vain(self) -> Iterator[str]:
        """Flags that node 0 was started without."""
        share, order = self._share, self._order
        if self._refused:
            yield f"node 0 ordered what none of ours does, and it was not done: {self._refused}"
        if order is None:
            return
        if share.backend not in ("auto", order.backend):
            yield f"--backend {share.backend} has no effect here: node 0 runs with {order.backend}"
        if share.timeout is not None and share.timeout != order.seconds:
            yield f"--timeout {share.timeout:g} has no effect here: node 0 gives each stage {order.seconds:g} s"
        if share.stages is not None and share.stages != order.stages:
            yield "--stages has no effect here: node 0 says which are run"

    def _own(self, order: Train) -> TrainingOrder:
        return TrainingOrder(
            nproc=order.nproc,
            first_rank=order.first_rank,
            world_size=order.world_size,
            nnodes=order.nnodes,
            node_rank=order.node_rank,
            master=order.master,
            port=order.port,
            backend=order.backend,
            stages=order.stages,
            seconds=order.seconds,
            import_seconds=order.import_seconds,
            launched=self._share.launched,
            fault=self._share.fault,
        )

    def _settings(self, order: Train) -> dict[str, str]:
        """What a rank would inherit. One that a launcher started reads there where its store is: torchrun has said so, and
        for the others it is what their training script would be told."""
        launched = self._share.launched
        if launched is None or self._share.store_running:
            return dict(self._environ)
        told = {
            "RANK": launched.rank,
            "LOCAL_RANK": launched.local_rank,
            "WORLD_SIZE": order.world_size,
            "MASTER_ADDR": order.master,
            "MASTER_PORT": order.port,
        }
        if self._share.local_world_size is not None:
            told["LOCAL_WORLD_SIZE"] = self._share.local_world_size
        return {**self._environ, **{name: str(value) for name, value in told.items()}}


def _few(left: Leftovers) -> Leftovers:
    return Leftovers(
        processes=tuple(process[: 2 * SHORT] for process in left.processes[:MAX_LEFTOVERS]),
        ports=left.ports[:MAX_LEFTOVERS],
        shared_memory=tuple(one for one in left.shared_memory if len(one) < LONGEST_PATH)[:MAX_LEFTOVERS],
        unclaimed=tuple(one for one in left.unclaimed if len(one) < LONGEST_PATH)[:MAX_LEFTOVERS],
        files=tuple(file for file in left.files if len(file) < LONGEST_PATH)[:MAX_LEFTOVERS],
    )


def _cut_stage_words(run: RankRun) -> RankRun:
    stages = tuple(msgspec.structs.replace(stage, words=stage.words[:SHORT]) for stage in run.stages)
    return msgspec.structs.replace(run, stages=stages)


def _cut_frames(run: RankRun) -> RankRun:
    return msgspec.structs.replace(run, stack=tuple(frame[: 2 * SHORT] for frame in run.stack[:FRAMES]))


def _cut_texts(run: RankRun) -> RankRun:
    names = ("words", "last_line", "calls", "step", "device", "process_state", "stack_source")
    short: dict[str, object] = {name: getattr(run, name)[: 2 * SHORT] for name in names}
    short["called"] = tuple(
        msgspec.structs.replace(call, call=call.call[:SHORT]) for call in run.called[-MAX_LEFTOVERS:]
    )
    return msgspec.structs.replace(run, culprits=run.culprits[:SHORT], contexts=run.contexts[:MAX_LEFTOVERS], **short)


def _drop_stage_words(run: RankRun) -> RankRun:
    stages = tuple(msgspec.structs.replace(stage, words="") for stage in run.stages)
    return msgspec.structs.replace(run, stages=stages)


def _drop_nearly_all(run: RankRun) -> RankRun:
    return msgspec.structs.replace(
        run, called=run.called[-2:], stack=run.stack[:2], culprits=run.culprits[:8], last_line=""
    )


def shorten_run(run: RankRun) -> RankRun:
    """Cut what a rank came to until it takes less than MAX_RANK_RUN_BYTES bytes of JSON, the least important first."""
    for shorten in (_cut_stage_words, _cut_frames, _cut_texts, _drop_stage_words, _drop_nearly_all):
        if len(msgspec.json.encode(run)) < MAX_RANK_RUN_BYTES:
            break
        run = shorten(run)
    return run
