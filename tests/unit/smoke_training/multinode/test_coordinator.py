"""A smoke training over several hosts, as node 0 sees it: what nodes say, and what of that is believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.smoke import Leftovers, RankEnding, RankRun, Smoke, Stage, StageState
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.node_session import NodeSession
from ddpdoctor.network_check.protocol.messages import (
    MAX_ANSWER_BYTES,
    MAX_RANK_RUN_BYTES,
    Answer,
    Order,
    OrderFailed,
    Train,
    TrainingDone,
    encode,
)
from ddpdoctor.smoke_training.multinode.coordinator import TrainingCoordinator, believable, runs_of
from ddpdoctor.smoke_training.multinode.remote_training import shorten_run
from ddpdoctor.smoke_training.multinode.task import SmokeTask, own_part
from ddpdoctor.smoke_training.stages import STAGES
from tests.support.hub_clients import PART, FromHub, agents, hub, run
from tests.support.smoke_nodes import TERMS, Nodes, cpu
from tests.support.smokes import rank_run


def order(first: int = 0, nproc: int = 2, world_size: int = 4, stages: Sequence[str] = STAGES) -> Train:
    return Train(
        backend="gloo",
        first_rank=first,
        nproc=nproc,
        world_size=world_size,
        node_rank=0,
        nnodes=2,
        master="n1",
        port=29500,
        stages=tuple(stages),
        seconds=30,
        import_seconds=90,
    )


def talkative(rank: int) -> RankRun:
    """A rank that says as much as it may, all of it four bytes a character."""
    wide = "\U0001f525"
    return rank_run(
        rank,
        RankEnding.RAISED,
        "training",
        names=STAGES,
        words=wide * 1000,
        calls=wide * 1000,
        step=wide * 1000,
        last_line=wide * 300,
        stack=tuple(f"{wide * 200} (torch/distributed.py:{line})" for line in range(32)),
        culprits=tuple(range(2000)),
        process_state=wide * 200,
    )


@pytest.mark.parametrize("ranks", [1, 8, 64, 120])
def test_whatever_its_ranks_say_a_nodes_answer_fits(ranks: int) -> None:
    wordy = [talkative(rank) for rank in range(ranks)]
    wordy = [
        msgspec.structs.replace(
            run, stages=tuple(msgspec.structs.replace(stage, words="\U0001f525" * 1000) for stage in run.stages)
        )
        for run in wordy
    ]
    answer = TrainingDone(runs=tuple(map(shorten_run, wordy)), began=0.0, problem="\U0001f525" * 1000)
    assert len(encode(answer)) <= MAX_ANSWER_BYTES + MAX_RANK_RUN_BYTES * ranks
    # What tells who failed where is left.
    assert all(run.ending is RankEnding.RAISED and run.words for run in answer.runs)
    assert [stage.state for stage in answer.runs[0].stages] == [stage.state for stage in wordy[0].stages]


def test_a_rank_of_few_words_keeps_them_all() -> None:
    one = rank_run(0, RankEnding.RAISED, "training", words="RuntimeError: " + "x" * 800, stack=("f (a.py:1)",) * 12)
    assert shorten_run(one) == one


def test_the_hub_takes_as_much_as_the_ranks_of_a_node_may_say() -> None:
    """64 ranks on each of two hosts, all with everything to say."""

    async def answered(given: Order) -> Answer:
        assert isinstance(given, Train)
        ranks = range(given.first_rank, given.first_rank + given.nproc)
        return TrainingDone(runs=tuple(shorten_run(talkative(rank)) for rank in ranks), began=1.0)

    async def test() -> None:
        async with hub() as one, agents(one, 1, carry_out=answered) as nodes:
            await one.gather(5)
            answers = await one.ask({rank: order(64 * rank, 64, 128) for rank in (0, 1)}, 10)
            assert [len(answers[rank].runs) for rank in (0, 1)] == [64, 64]  # type: ignore[union-attr]
            assert not any(guest.lost for guest in one.peers.values())
            await one.dismiss(dict.fromkeys((0, 1), PART))
            await asyncio.gather(*nodes)

    run(test())


def test_a_node_speaks_of_its_own_ranks_alone() -> None:
    told = (
        rank_run(2, names=STAGES, host="elsewhere", node=7),
        rank_run(0, RankEnding.RAISED, "training", names=STAGES, words="not mine"),
        rank_run(2**40, names=STAGES),
        rank_run(2, RankEnding.KILLED, "barrier", names=STAGES, culprits=(1, 99, -1)),
    )
    runs = runs_of(order(2), TrainingDone(runs=told, began=0.0), node=1, host="n2", later=2.5)
    assert [(run.rank, run.host, run.node, run.ending) for run in runs] == [
        (2, "n2", 1, RankEnding.KILLED),
        (3, "n2", 1, RankEnding.NEVER_CAME),
    ]
    assert runs[0].culprits == (1,)
    assert runs[0].ended_after == pytest.approx(4.2 + 2.5), "by the clock of all"


def test_stages_that_nobody_planned_are_passed_over() -> None:
    odd = (
        Stage(name="x" * 1000, state=StageState.FAILED),
        Stage(name="barrier", state=StageState.PASSED, seconds=1.0),
    ) * 50
    answer = TrainingDone(runs=(msgspec.structs.replace(rank_run(0), stages=odd),), began=0.0)
    (one,) = runs_of(order(0, 1, stages=("import", "barrier")), answer, node=0, host="n1")
    assert [(stage.name, stage.state) for stage in one.stages] == [
        ("import", StageState.NOT_RUN),
        ("barrier", StageState.PASSED),
    ]


@pytest.mark.parametrize(
    ("answer", "lost", "words"),
    [
        (OrderFailed(why="there is no memory"), "", "there is no memory"),
        (None, "lost during smoke: the connection was closed", "n2 was lost during smoke: the connection was closed"),
    ],
)
def test_ranks_of_a_node_that_cant_answer_never_came(answer: Answer | None, lost: str, words: str) -> None:
    runs = runs_of(order(2), answer, node=1, host="n2", lost=lost)
    assert [(run.rank, run.ending, run.words) for run in runs] == [
        (2, RankEnding.NEVER_CAME, words),
        (3, RankEnding.NEVER_CAME, words),
    ]


REHEARSE = json.loads(encode(order()))


@pytest.mark.parametrize(
    "changed",
    [
        {"nproc": 0},
        {"nproc": 10**6},
        {"first_rank": -1},
        {"world_size": 10**9},
        {"backend": "mpi"},
        {"port": 0},
        {"seconds": -1},
        {"seconds": 1e9},
        {"stages": ["x"] * 1000},
        {"stages": ["x" * 1000]},
        {"master": "x" * 1000},
    ],
    ids=str,
)
def test_orders_that_no_hub_gives(changed: dict[str, object]) -> None:
    assert msgspec.json.decode(json.dumps(REHEARSE), type=FromHub) == order()
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(REHEARSE | changed), type=FromHub)


def test_each_node_has_the_findings_of_its_own_ranks() -> None:
    ranks = (
        rank_run(0, RankEnding.ENDED, "training", names=STAGES, host="n0", node=0),
        rank_run(1, RankEnding.RAISED, "training", names=STAGES, host="n1", node=1, words="RuntimeError: it broke"),
    )
    smoke = Smoke(ranks=ranks, world_size=2, nnodes=2, backend="gloo", stages=STAGES, deadline=30.0)
    laid = [msgspec.structs.replace(cpu(node), smoke=smoke) for node in (0, 1)]
    first, second = SmokeTask(TERMS, catalogue()).judge(laid)
    assert [check.slug for check, _, _ in first.findings if check.family == "smoke"] == []
    assert [(check.slug, one.rank) for check, _, one in second.findings if check.family == "smoke"] == [
        ("smoke-rank-failed", 1)
    ]
    assert second.verdict is Verdict.FAIL


def test_a_host_alone_has_all_findings() -> None:
    alone = SmokeTask(TERMS, catalogue()).judge(
        [Snapshot(host="n", environment=Environment(settings=()), gpus=Gpus(devices=()))]
    )
    assert own_part(alone[0]) == alone[0]


def test_a_node_that_was_started_for_something_else_is_told_so() -> None:
    async def test() -> str:
        async with hub(command="smoke") as one, agents(one, 1) as (own, other):
            with pytest.raises(Exception, match="run the same on all nodes") as raised:
                await other
            own.cancel()
            assert [double.code for double in one.doubles] == ["command", "command"]
            return str(raised.value)

    assert "node 0 runs ddpdoctor smoke" in run(test())


def test_only_what_a_training_may_leave_is_to_be_removed() -> None:
    left = Leftovers(
        processes=("4711 python start.py",) * 99,
        ports=(29500, -1, 10**9),
        shared_memory=("torch_17_abc", "../../etc/passwd", "a b; c", ""),
        files=("/tmp/ddpdoctor-smoke-x7", "/home/ada", "/tmp/ddpdoctor-smoke-x/../../home", "/", "$(x)"),
    )
    assert believable(left) == Leftovers(
        processes=("4711 python start.py",) * 16,
        ports=(29500,),
        shared_memory=("torch_17_abc",),
        files=("/tmp/ddpdoctor-smoke-x7",),
    )


def account(answers: dict[int, Answer]) -> TrainingCoordinator:
    """Of two nodes with a rank each."""
    company = NodeSession(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: cpu(0, 1), 1: cpu(1, 1)}
    company.members = [0, 1]
    for rank, guest in company.hub.peers.items():
        guest.host, guest.offset = f"n{rank}", 100.0 * rank
    one = TrainingCoordinator(company, TERMS, catalogue(), master="n1", store_port=29500)
    plans, backend = one.plan_ranks()
    one.smoke = one.merge_answers(one.make_orders(plans, backend), answers, plans, backend, 5.0)
    return one


def test_who_was_ended_for_anothers_sake_is_not_the_one_that_could_not_start() -> None:
    never = rank_run(0, RankEnding.NEVER_CAME, names=STAGES)
    one = account(
        {
            0: TrainingDone(runs=(never,), began=10.0),
            1: TrainingDone(runs=(), began=110.0, problem="No module named 'torch'"),
        }
    )
    assert one.smoke.problem == "n1: No module named 'torch'"
    assert [run.ending for run in one.smoke.ranks] == [RankEnding.ENDED, RankEnding.NEVER_CAME]
    laid = [msgspec.structs.replace(cpu(node), smoke=one.smoke) for node in (0, 1)]
    first, second = SmokeTask(TERMS, catalogue()).judge(laid)
    assert "smoke-not-started" not in [check.slug for check, _, _ in first.findings]
    assert [one.rank for check, _, one in second.findings if check.slug == "smoke-not-started"] == [1]


def test_times_of_all_hosts_are_by_one_clock() -> None:
    """Node 1's clock is 100 s ahead, and it began 2 s later."""
    one = account(
        {
            0: TrainingDone(runs=(rank_run(0, names=STAGES),), began=10.0),
            1: TrainingDone(runs=(rank_run(1, names=STAGES),), began=112.0),
        }
    )
    assert [run.ended_after for run in one.smoke.ranks] == [4.2, 6.2]
