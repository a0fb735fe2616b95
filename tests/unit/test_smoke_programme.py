"""A smoke training over several hosts, as node 0 sees it: what nodes say, and what of that is believed."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.examination import Verdict
from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import Ending, Leftovers, RankRun, Smoke, Stage, State
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.netcheck.company import Company, ImpossibleError
from ddpdoctor.netcheck.messages import (
    MOST_ANSWER,
    MOST_RANKS_HERE,
    MOST_RUN,
    Answer,
    Cannot,
    FromHub,
    Order,
    Rehearse,
    Rehearsed,
    encode,
)
from ddpdoctor.smoke.judging import Found, own_findings
from ddpdoctor.smoke.orders import STAGES
from ddpdoctor.smoke.programme import SmokeProgramme, Terms, believable, runs_of
from ddpdoctor.smoke.purpose import SmokePurpose, own_part
from ddpdoctor.smoke.rehearsing import Share, fitted
from tests.fixture_hosts import healthy_facts, to_snapshot
from tests.hub_company import PART, agents, hub, run
from tests.smokes import rank_run

TERMS = Terms(backend="auto", stages=STAGES, seconds=30, import_seconds=90, python="/opt/env/bin/python")


def order(first: int = 0, nproc: int = 2, world_size: int = 4, stages: Sequence[str] = STAGES) -> Rehearse:
    return Rehearse(
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
        Ending.RAISED,
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
            one, stages=tuple(msgspec.structs.replace(stage, words="\U0001f525" * 1000) for stage in one.stages)
        )
        for one in wordy
    ]
    answer = Rehearsed(runs=tuple(map(fitted, wordy)), began=0.0, problem="\U0001f525" * 1000)
    assert len(encode(answer)) <= MOST_ANSWER + MOST_RUN * ranks
    # What tells who failed where is left.
    assert all(one.ending is Ending.RAISED and one.words for one in answer.runs)
    assert [stage.state for stage in answer.runs[0].stages] == [stage.state for stage in wordy[0].stages]


def test_a_rank_of_few_words_keeps_them_all() -> None:
    one = rank_run(0, Ending.RAISED, "training", words="RuntimeError: " + "x" * 800, stack=("f (a.py:1)",) * 12)
    assert fitted(one) == one


def test_the_hub_takes_as_much_as_the_ranks_of_a_node_may_say() -> None:
    """64 ranks on each of two hosts, all with everything to say."""

    async def answered(given: Order) -> Answer:
        assert isinstance(given, Rehearse)
        ranks = range(given.first_rank, given.first_rank + given.nproc)
        return Rehearsed(runs=tuple(fitted(talkative(rank)) for rank in ranks), began=1.0)

    async def test() -> None:
        async with hub() as one, agents(one, 1, carry_out=answered) as nodes:
            await one.gather(5)
            answers = await one.ask({rank: order(64 * rank, 64, 128) for rank in (0, 1)}, 10)
            assert [len(answers[rank].runs) for rank in (0, 1)] == [64, 64]  # type: ignore[union-attr]
            assert not any(guest.lost for guest in one.guests.values())
            await one.dismiss(dict.fromkeys((0, 1), PART))
            await asyncio.gather(*nodes)

    run(test())


def test_a_node_speaks_of_its_own_ranks_alone() -> None:
    told = (
        rank_run(2, names=STAGES, host="elsewhere", node=7),
        rank_run(0, Ending.RAISED, "training", names=STAGES, words="not mine"),
        rank_run(2**40, names=STAGES),
        rank_run(2, Ending.KILLED, "barrier", names=STAGES, culprits=(1, 99, -1)),
    )
    runs = runs_of(order(2), Rehearsed(runs=told, began=0.0), node=1, host="n2", later=2.5)
    assert [(one.rank, one.host, one.node, one.ending) for one in runs] == [
        (2, "n2", 1, Ending.KILLED),
        (3, "n2", 1, Ending.NEVER_CAME),
    ]
    assert runs[0].culprits == (1,)
    assert runs[0].ended_after == pytest.approx(4.2 + 2.5), "by the clock of all"


def test_stages_that_nobody_planned_are_passed_over() -> None:
    odd = (Stage(name="x" * 1000, state=State.FAILED), Stage(name="barrier", state=State.PASSED, seconds=1.0)) * 50
    answer = Rehearsed(runs=(msgspec.structs.replace(rank_run(0), stages=odd),), began=0.0)
    (one,) = runs_of(order(0, 1, stages=("import", "barrier")), answer, node=0, host="n1")
    assert [(stage.name, stage.state) for stage in one.stages] == [
        ("import", State.NOT_RUN),
        ("barrier", State.PASSED),
    ]


@pytest.mark.parametrize(
    ("answer", "lost", "words"),
    [
        (Cannot(why="there is no memory"), "", "there is no memory"),
        (None, "lost during smoke: the connection was closed", "n2 was lost during smoke: the connection was closed"),
    ],
)
def test_ranks_of_a_node_that_cant_answer_never_came(answer: Answer | None, lost: str, words: str) -> None:
    runs = runs_of(order(2), answer, node=1, host="n2", lost=lost)
    assert [(one.rank, one.ending, one.words) for one in runs] == [
        (2, Ending.NEVER_CAME, words),
        (3, Ending.NEVER_CAME, words),
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


def meeting(node: int, nproc: int | None = None, *, launched: bool = False) -> Meeting:
    return Meeting(
        master="n1", port=29500, nnodes=2, node_rank=node, joined=True, command="smoke", nproc=nproc, launched=launched
    )


class Trained(SmokeProgramme):
    """Without hosts: says what they would be ordered."""

    def planned(self) -> dict[int, tuple[int, int, str]]:
        """Node to its first rank, its number of ranks, and the backend."""
        orders = self._orders(*self._plans())
        return {
            rank: (one.first_rank, one.nproc, one.backend) for rank, one in orders.items() if isinstance(one, Rehearse)
        }


class Nodes:
    """As much of a hub as planning needs."""

    def __init__(self, count: int) -> None:
        guest = type("Guest", (), {"lost": "", "host": "n", "came_to": "10.0.0.1"})
        self.guests = {rank: guest() for rank in range(count)}
        self.nnodes = count


def planned(*snapshots: Snapshot, terms: Terms = TERMS) -> dict[int, tuple[int, int, str]]:
    company = Company(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    return Trained(company, terms, master="n1", store_port=29500).planned()


def cpu(node: int, nproc: int | None = None) -> Snapshot:
    facts = to_snapshot(healthy_facts("cloud-cpu"))
    return msgspec.structs.replace(facts, host=f"n{node}", meeting=meeting(node, nproc))


def gpus(node: int, nproc: int | None = None) -> Snapshot:
    facts = to_snapshot(healthy_facts("h100x8-bare-metal"))
    return msgspec.structs.replace(facts, host=f"n{node}", meeting=meeting(node, nproc))


def test_each_host_says_how_many_ranks_it_runs() -> None:
    assert planned(cpu(0), cpu(1, 3), cpu(2, 1)) == {0: (0, 2, "gloo"), 1: (2, 3, "gloo"), 2: (5, 1, "gloo")}
    assert planned(gpus(0), gpus(1, 4)) == {0: (0, 8, "nccl"), 1: (8, 4, "nccl")}


def test_nccl_is_for_jobs_with_gpus_everywhere() -> None:
    assert planned(gpus(0), cpu(1)) == {0: (0, 2, "gloo"), 1: (2, 2, "gloo")}


def test_each_rank_of_a_launcher_is_one() -> None:
    terms = msgspec.structs.replace(TERMS, launcher="Slurm")
    assert planned(gpus(0), gpus(1), gpus(2), terms=terms) == {
        0: (0, 1, "nccl"),
        1: (1, 1, "nccl"),
        2: (2, 1, "nccl"),
    }


def test_more_ranks_than_gpus_on_one_host_are_explained_before_the_start() -> None:
    company = Company(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: gpus(0, 2), 1: gpus(1, 16)}
    company.members = [0, 1]
    company.hub.guests[1].host = "n1"
    one = Trained(company, TERMS, master="n1", store_port=29500)
    asyncio.run(one.go())
    (phase,) = company.phases
    assert (phase.name, phase.reason) == ("smoke", "n1 can't run the ranks that are planned there")
    laid = [
        msgspec.structs.replace(snapshot, smoke=one._hindered.get(rank, one._smoke))
        for rank, snapshot in company.snapshots.items()
    ]
    first, second = SmokePurpose(Share(), TERMS).judge(laid)
    assert "duplicate-gpu" not in [check.slug for check, _, _ in first.findings]
    assert ("duplicate-gpu", "fail") in [(check.slug, severity.value) for check, severity, _ in second.findings]


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "8"}
OF_RANKS = {"torchrun": TORCHRUN, "Open MPI": OPEN_MPI, "Slurm": SLURM}
RANK_NAMES = {"torchrun": "RANK", "Open MPI": "OMPI_COMM_WORLD_RANK", "Slurm": "SLURM_PROCID"}


def launched(
    launcher: str, node: int, *, shows: str | None, host: str = "n1", on: str = "h100x8-bare-metal"
) -> Snapshot:
    """One of eight ranks, four of which are on each host. shows: its CUDA_VISIBLE_DEVICES."""
    settings = OF_RANKS[launcher] | {RANK_NAMES[launcher]: str(node)}
    settings |= {} if shows is None else {"CUDA_VISIBLE_DEVICES": shows}
    facts = msgspec.structs.replace(
        to_snapshot(healthy_facts(on)),
        host=f"{host} (rank {node})",
        meeting=meeting(node, launched=True),
        torch=Torch(installed=True),
        environment=Environment(settings=tuple(Setting(name=name, value=value) for name, value in settings.items())),
    )
    return named(facts, host)


def foreseen(launcher: str, snapshots: Sequence[Snapshot], backend: str = "auto") -> tuple[str, list[list[Found]]]:
    """Why they can't be started, and each one's own findings before that."""
    company = Company(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    for rank, one in company.snapshots.items():
        company.hub.guests[rank].host = one.host
    terms = msgspec.structs.replace(TERMS, launcher=launcher, backend=backend)
    programme = SmokeProgramme(company, terms, master="n1", store_port=29500)
    plans, _ = programme._plans()
    why = programme._foreseen(plans)
    laid = [
        msgspec.structs.replace(one, smoke=programme._hindered.get(rank, programme._smoke))
        for rank, one in company.snapshots.items()
    ]
    return why, [own_findings(one) for one in SmokePurpose(Share(), terms).judge(laid)]


@pytest.mark.parametrize("launcher", OF_RANKS)
@pytest.mark.parametrize("shows", ["0,1", "3"])
def test_ranks_of_a_launcher_that_share_gpus_are_explained_before_any_starts(launcher: str, shows: str) -> None:
    ranks = [launched(launcher, node, shows=shows if node < 4 else None, host=f"n{1 + node // 4}") for node in range(8)]
    why, found = foreseen(launcher, ranks)
    assert why == "n1"
    ((check, severity, finding),) = found[0]
    assert (check.slug, severity.value) == ("duplicate-gpu", "fail")
    assert finding.summary.startswith("4 ranks are planned on ")
    source = {"torchrun": "LOCAL_WORLD_SIZE", "Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE"}
    assert finding.evidence[0].source == source.get(launcher, "SLURM_STEP_TASKS_PER_NODE")
    assert found[1:] == [[]] * 7, "it is said once"


def test_ranks_of_slurm_that_are_bound_to_fewer_gpus_than_they_are() -> None:
    """Each sees a single GPU, two of them the same one."""
    ranks = [launched("Slurm", node, shows=str(node // 2)) for node in range(4)]
    bound = Setting(name="SLURM_GPU_BIND", value="single:2")
    ranks = [
        msgspec.structs.replace(one, environment=Environment(settings=(*one.environment.settings, bound)))  # type: ignore[union-attr]
        for one in ranks
    ]
    why, found = foreseen("Slurm", ranks)
    assert why == "n1"
    assert [check.slug for check, _, _ in found[0]] == ["duplicate-gpu"]


@pytest.mark.parametrize("launcher", OF_RANKS)
@pytest.mark.parametrize(
    "shown",
    [[None] * 4, ["0,1,2,3"] * 4, ["0", "1", "2", "3"], ["0,1", "2,3", "4,5", "6,7"], ["0,1", "0,1", "2,3", "2,3"]],
    ids=str,
)
def test_ranks_of_a_launcher_with_a_gpu_for_each_are_started(launcher: str, shown: Sequence[str | None]) -> None:
    ranks = [launched(launcher, node, shows=shows) for node, shows in enumerate(shown)]
    assert foreseen(launcher, ranks) == ("", [[]] * 4)


def test_ranks_of_a_launcher_may_be_as_many_as_they_like_on_the_cpu_or_where_nobody_knows_of_gpus() -> None:
    ranks = [launched("torchrun", node, shows="0") for node in range(4)]
    assert foreseen("torchrun", ranks, "gloo") == ("", [[]] * 4)
    assert foreseen("torchrun", [launched("torchrun", node, shows=None, on="cloud-cpu") for node in range(4)])[0] == ""
    unknown = [msgspec.structs.replace(one, gpus=Unknown(MISMATCH)) for one in ranks]
    assert foreseen("torchrun", unknown, "nccl")[0] == ""


def test_hosts_of_the_same_name_are_not_one_crowded_host() -> None:
    """Of GPUs without a UUID, too."""
    ranks = [launched("torchrun", node, shows="0,1,2,3", host="localhost", on="mi300x8-rocm") for node in range(8)]
    assert foreseen("torchrun", ranks)[0] == ""


def test_ranks_of_a_launcher_on_mig_slices() -> None:
    one = to_snapshot(healthy_facts("a100-mig")).gpus
    assert isinstance(one, Gpus)
    slices = [slice.uuid for slice in one.devices[0].mig_instances]
    why, found = foreseen(
        "torchrun", [launched("torchrun", node, shows=shows, on="a100-mig") for node, shows in enumerate(slices)]
    )
    assert why == "n1"
    assert [check.slug for check, _, _ in found[0]] == ["mig-multi-instance"]


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([120, 121], "121 ranks are planned on n; a host runs 120 at most"),
        ([120] * 547, "65640 ranks are planned on 547 hosts; 65536 at most can be run"),
    ],
    ids=["on a host", "in all"],
)
def test_more_ranks_than_can_be_ordered_are_no_verdict_on_any_host(ranks: Sequence[int], why: str) -> None:
    company = Company(Nodes(len(ranks)))  # type: ignore[arg-type]
    company.snapshots = {node: cpu(node, nproc) for node, nproc in enumerate(ranks)}
    company.members = list(company.snapshots)
    with pytest.raises(ImpossibleError, match=f"^{why}$"):
        asyncio.run(SmokeProgramme(company, TERMS, master="n1", store_port=29500).go())


def test_each_node_has_the_findings_of_its_own_ranks() -> None:
    ranks = (
        rank_run(0, Ending.ENDED, "training", names=STAGES, host="n0", node=0),
        rank_run(1, Ending.RAISED, "training", names=STAGES, host="n1", node=1, words="RuntimeError: it broke"),
    )
    smoke = Smoke(ranks=ranks, world_size=2, nnodes=2, backend="gloo", stages=STAGES, deadline=30.0)
    laid = [msgspec.structs.replace(cpu(node), smoke=smoke) for node in (0, 1)]
    first, second = SmokePurpose(Share(), TERMS).judge(laid)
    assert [check.slug for check, _, _ in first.findings if check.family == "smoke"] == []
    assert [(check.slug, one.rank) for check, _, one in second.findings if check.family == "smoke"] == [
        ("smoke-rank-failed", 1)
    ]
    assert second.verdict is Verdict.FAIL


def test_a_host_alone_has_all_findings() -> None:
    alone = SmokePurpose(Share(), TERMS).judge(
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


def account(answers: dict[int, Answer]) -> SmokeProgramme:
    """Of two nodes with a rank each."""
    company = Company(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: cpu(0, 1), 1: cpu(1, 1)}
    company.members = [0, 1]
    for rank, guest in company.hub.guests.items():
        guest.host, guest.offset = f"n{rank}", 100.0 * rank
    one = SmokeProgramme(company, TERMS, master="n1", store_port=29500)
    plans, backend = one._plans()
    one._smoke = one._account(one._orders(plans, backend), answers, plans, backend, 5.0)
    return one


def test_who_was_ended_for_anothers_sake_is_not_the_one_that_could_not_start() -> None:
    never = rank_run(0, Ending.NEVER_CAME, names=STAGES)
    one = account(
        {
            0: Rehearsed(runs=(never,), began=10.0),
            1: Rehearsed(runs=(), began=110.0, problem="No module named 'torch'"),
        }
    )
    assert one._smoke.problem == "n1: No module named 'torch'"
    assert [run.ending for run in one._smoke.ranks] == [Ending.ENDED, Ending.NEVER_CAME]
    laid = [msgspec.structs.replace(cpu(node), smoke=one._smoke) for node in (0, 1)]
    first, second = SmokePurpose(Share(), TERMS).judge(laid)
    assert "smoke-not-started" not in [check.slug for check, _, _ in first.findings]
    assert [one.rank for check, _, one in second.findings if check.slug == "smoke-not-started"] == [1]


def test_times_of_all_hosts_are_by_one_clock() -> None:
    """Node 1's clock is 100 s ahead, and it began 2 s later."""
    one = account(
        {
            0: Rehearsed(runs=(rank_run(0, names=STAGES),), began=10.0),
            1: Rehearsed(runs=(rank_run(1, names=STAGES),), began=112.0),
        }
    )
    assert [run.ended_after for run in one._smoke.ranks] == [4.2, 6.2]


def told(*snapshots: Snapshot, backend: str = "auto") -> Smoke:
    """What all came to whose ranks all finished, of nodes n0, n1 ..."""
    company = Company(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    for rank, guest in company.hub.guests.items():
        guest.host, guest.offset = f"n{rank}", 0.0
    terms = msgspec.structs.replace(TERMS, backend=backend)
    one = SmokeProgramme(company, terms, master="n1", store_port=29500)
    plans, backend = one._plans()
    orders = one._orders(plans, backend)
    answers: dict[int, Answer] = {}
    for node, given in orders.items():
        assert isinstance(given, Rehearse)
        ranks = range(given.first_rank, given.first_rank + given.nproc)
        folder = "in /dev/shm, since others can't be used (/tmp: No space left on device)" if node else ""
        runs = tuple(rank_run(rank, names=STAGES, node=node) for rank in ranks)
        answers[node] = Rehearsed(runs=runs, began=0.0, folder=folder)
    return one._account(orders, answers, plans, backend, 5.0)


def named(snapshot: Snapshot, host: str) -> Snapshot:
    assert not isinstance(snapshot.network, Unknown)
    return msgspec.structs.replace(snapshot, network=msgspec.structs.replace(snapshot.network, hostname=host))


MISMATCH = "there is an NVIDIA GPU on the PCI bus, but NVML failed to start (code 18)"


def broken(node: int) -> Snapshot:
    return msgspec.structs.replace(gpus(node), gpus=Unknown(MISMATCH))


def test_one_host_without_gpus_puts_all_on_the_cpu_and_not_in_silence() -> None:
    laid = (named(gpus(0), "n0"), named(cpu(1), "n1"))
    smoke = told(*laid)
    assert smoke.gpus_passed_over == "n1 shows no GPU"
    assert smoke.chosen == "4 ranks on CPU over gloo, 2 ranks on each of 2 hosts, since n1 shows no GPU"
    with_smoke = [msgspec.structs.replace(one, smoke=smoke) for one in laid]
    first, second = SmokePurpose(Share(), TERMS).judge(with_smoke)
    assert [check.slug for check, _, _ in first.findings if check.family == "smoke"] == ["smoke-not-on-gpus"]
    assert first.verdict is Verdict.WARN
    assert not [check.slug for check, _, _ in second.findings if check.family == "smoke"]


def test_why_a_host_shows_no_gpu_is_said() -> None:
    why = f"n1 shows no GPU: the GPUs could not be asked: {MISMATCH}"
    smoke = told(named(gpus(0), "n0"), named(broken(1), "n1"))
    assert smoke.gpus_passed_over == why
    assert smoke.chosen.endswith(f", since {why}")
    both = told(named(broken(0), "n0"), named(broken(1), "n1"))
    assert both.gpus_passed_over == f"n0 and n1 show no GPU: the GPUs could not be asked: {MISMATCH}"


def test_gloo_is_silent_where_no_host_has_a_gpu_or_the_user_wishes_it() -> None:
    assert told(named(cpu(0), "n0"), named(cpu(1), "n1")).gpus_passed_over == ""
    assert told(named(gpus(0), "n0"), named(cpu(1), "n1"), backend="gloo").gpus_passed_over == ""
    assert told(named(gpus(0), "n0"), named(gpus(1), "n1")).gpus_passed_over == ""


def test_a_lost_gpu_of_one_host_is_told() -> None:
    one = gpus(1)
    assert isinstance(one.gpus, Gpus)
    devices = (*one.gpus.devices[:7], msgspec.structs.replace(one.gpus.devices[7], lost=True))
    lost = msgspec.structs.replace(one, gpus=msgspec.structs.replace(one.gpus, devices=devices))
    smoke = told(named(gpus(0), "n0"), named(lost, "n1"))
    assert (smoke.backend, smoke.world_size) == ("nccl", 15)
    assert smoke.chosen == "15 ranks on GPU over nccl: 8 on n0 and 7 on n1; n1: 7 of 8 GPUs answer"


def test_a_host_without_gpus_is_told_before_nccl_is_started() -> None:
    company = Company(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: gpus(0), 1: cpu(1)}
    company.members = [0, 1]
    one = SmokeProgramme(company, msgspec.structs.replace(TERMS, backend="nccl"), master="n1", store_port=29500)
    asyncio.run(one.go())
    laid = [
        msgspec.structs.replace(snapshot, smoke=one._hindered.get(rank, one._smoke))
        for rank, snapshot in company.snapshots.items()
    ]
    first, second = SmokePurpose(Share(), TERMS).judge(laid)
    assert not [check.slug for check, _, _ in first.findings if check.family == "smoke"]
    assert [(check.slug, severity.value) for check, severity, _ in second.findings if check.family == "smoke"] == [
        ("smoke-not-on-gpus", "fail")
    ]


def test_where_a_hosts_files_were_is_told_with_its_name() -> None:
    smoke = told(named(cpu(0), "n0"), named(cpu(1), "n1"))
    assert smoke.folder == "n1: in /dev/shm, since others can't be used (/tmp: No space left on device)"
    assert (smoke.deadline, smoke.import_seconds) == (30, 90)


def test_a_rank_is_no_plural() -> None:
    terms = msgspec.structs.replace(TERMS, launcher="Slurm")
    company = Company(Nodes(1))  # type: ignore[arg-type]
    company.snapshots = {0: cpu(0)}
    company.members = [0]
    one = SmokeProgramme(company, terms, master="n1", store_port=29500)
    assert one._chosen(*one._plans()) == "1 rank as Slurm started it, on CPU over gloo"


def test_as_many_ranks_as_a_host_runs_can_be_started() -> None:
    """torch's elastic engine gives each of them a queue of every one, and four descriptors more are handed over."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as one:
        socket.send_fds(ours, [b"x"], [one.fileno()] * (2 * MOST_RANKS_HERE + 4))
