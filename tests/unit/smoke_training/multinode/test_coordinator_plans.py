"""What the hosts of a smoke training are to run, and what is known beforehand to fail."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.network_check.node_session import ImpossibleError, NodeSession
from ddpdoctor.network_check.protocol.messages import (
    MAX_RANKS_PER_HOST,
    Answer,
    Train,
    TrainingDone,
)
from ddpdoctor.smoke_training.analysis.verdict import JudgedFinding, own_findings
from ddpdoctor.smoke_training.multinode.coordinator import TrainingCoordinator
from ddpdoctor.smoke_training.multinode.task import SmokeTask
from ddpdoctor.smoke_training.stages import STAGES
from ddpdoctor.smoke_training.training_order import SmokeOptions
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.smoke_nodes import TERMS, Nodes, cpu, gpus, meeting, named
from tests.support.smokes import rank_run


class Trained(TrainingCoordinator):
    """Without hosts: says what they would be ordered."""

    def planned(self) -> dict[int, tuple[int, int, str]]:
        """Node to its first rank, its number of ranks, and the backend."""
        orders = self.make_orders(*self.plan_ranks())
        return {
            rank: (one.first_rank, one.nproc, one.backend) for rank, one in orders.items() if isinstance(one, Train)
        }


def planned(*snapshots: Snapshot, terms: SmokeOptions = TERMS) -> dict[int, tuple[int, int, str]]:
    company = NodeSession(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    return Trained(company, terms, catalogue(), master="n1", store_port=29500).planned()


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
    company = NodeSession(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: gpus(0, 2), 1: gpus(1, 16)}
    company.members = [0, 1]
    company.hub.peers[1].host = "n1"
    one = Trained(company, TERMS, catalogue(), master="n1", store_port=29500)
    asyncio.run(one.run())
    (phase,) = company.phases
    assert (phase.name, phase.reason) == ("smoke", "n1 can't run the ranks that are planned there")
    laid = [
        msgspec.structs.replace(snapshot, smoke=one.impossible.get(rank, one.smoke))
        for rank, snapshot in company.snapshots.items()
    ]
    first, second = SmokeTask(TERMS, catalogue()).judge(laid)
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


def foreseen(
    launcher: str, snapshots: Sequence[Snapshot], backend: str = "auto"
) -> tuple[str, list[list[JudgedFinding]]]:
    """Why they can't be started, and each one's own findings before that."""
    company = NodeSession(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    for rank, one in company.snapshots.items():
        company.hub.peers[rank].host = one.host
    terms = msgspec.structs.replace(TERMS, launcher=launcher, backend=backend)
    programme = TrainingCoordinator(company, terms, catalogue(), master="n1", store_port=29500)
    plans, _ = programme.plan_ranks()
    why = programme.find_impossible_hosts(plans)
    laid = [
        msgspec.structs.replace(one, smoke=programme.impossible.get(rank, programme.smoke))
        for rank, one in company.snapshots.items()
    ]
    return why, [own_findings(one) for one in SmokeTask(terms, catalogue()).judge(laid)]


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
        msgspec.structs.replace(rank, environment=Environment(settings=(*rank.environment.settings, bound)))  # type: ignore[union-attr]
        for rank in ranks
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
    unknown = [msgspec.structs.replace(rank, gpus=Unknown(MISMATCH)) for rank in ranks]
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
    company = NodeSession(Nodes(len(ranks)))  # type: ignore[arg-type]
    company.snapshots = {node: cpu(node, nproc) for node, nproc in enumerate(ranks)}
    company.members = list(company.snapshots)
    with pytest.raises(ImpossibleError, match=f"^{why}$"):
        asyncio.run(TrainingCoordinator(company, TERMS, catalogue(), master="n1", store_port=29500).run())


def told(*snapshots: Snapshot, backend: str = "auto") -> Smoke:
    """What all came to whose ranks all finished, of nodes n0, n1 ..."""
    company = NodeSession(Nodes(len(snapshots)))  # type: ignore[arg-type]
    company.snapshots = dict(enumerate(snapshots))
    company.members = list(company.snapshots)
    for rank, guest in company.hub.peers.items():
        guest.host, guest.offset = f"n{rank}", 0.0
    terms = msgspec.structs.replace(TERMS, backend=backend)
    one = TrainingCoordinator(company, terms, catalogue(), master="n1", store_port=29500)
    plans, backend = one.plan_ranks()
    orders = one.make_orders(plans, backend)
    answers: dict[int, Answer] = {}
    for node, given in orders.items():
        assert isinstance(given, Train)
        ranks = range(given.first_rank, given.first_rank + given.nproc)
        folder = "in /dev/shm, since others can't be used (/tmp: No space left on device)" if node else ""
        runs = tuple(rank_run(rank, names=STAGES, node=node) for rank in ranks)
        answers[node] = TrainingDone(runs=runs, began=0.0, folder=folder)
    return one.merge_answers(orders, answers, plans, backend, 5.0)


MISMATCH = "there is an NVIDIA GPU on the PCI bus, but NVML failed to start (code 18)"


def broken(node: int) -> Snapshot:
    return msgspec.structs.replace(gpus(node), gpus=Unknown(MISMATCH))


def test_one_host_without_gpus_puts_all_on_the_cpu_and_not_in_silence() -> None:
    laid = (named(gpus(0), "n0"), named(cpu(1), "n1"))
    smoke = told(*laid)
    assert smoke.gpus_passed_over == "n1 shows no GPU"
    assert smoke.chosen == "4 ranks on CPU over gloo, 2 ranks on each of 2 hosts, since n1 shows no GPU"
    with_smoke = [msgspec.structs.replace(one, smoke=smoke) for one in laid]
    first, second = SmokeTask(TERMS, catalogue()).judge(with_smoke)
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
    company = NodeSession(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: gpus(0), 1: cpu(1)}
    company.members = [0, 1]
    one = TrainingCoordinator(
        company, msgspec.structs.replace(TERMS, backend="nccl"), catalogue(), master="n1", store_port=29500
    )
    asyncio.run(one.run())
    laid = [
        msgspec.structs.replace(snapshot, smoke=one.impossible.get(rank, one.smoke))
        for rank, snapshot in company.snapshots.items()
    ]
    first, second = SmokeTask(TERMS, catalogue()).judge(laid)
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
    company = NodeSession(Nodes(1))  # type: ignore[arg-type]
    company.snapshots = {0: cpu(0)}
    company.members = [0]
    one = TrainingCoordinator(company, terms, catalogue(), master="n1", store_port=29500)
    assert one.describe_plan(*one.plan_ranks()) == "1 rank as Slurm started it, on CPU over gloo"


def test_as_many_ranks_as_a_host_runs_can_be_started() -> None:
    """torch's elastic engine gives each of them a queue of every one, and four descriptors more are handed over."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as one:
        socket.send_fds(ours, [b"x"], [one.fileno()] * (2 * MAX_RANKS_PER_HOST + 4))


def with_nccl(snapshot: Snapshot, version: str, *settings: str) -> Snapshot:
    environment = snapshot.environment
    assert isinstance(environment, Environment)
    chosen = tuple(Setting(name=name, value="0", origin="environment") for name in settings)
    return msgspec.structs.replace(
        snapshot,
        nccl=Nccl(version=version),
        environment=msgspec.structs.replace(environment, settings=(*environment.settings, *chosen)),
    )


@pytest.mark.parametrize(
    ("second", "diagnoses"),
    [
        (with_nccl(gpus(1), "2.31.1"), True),
        (with_nccl(gpus(1), "2.27.5"), False),
        (with_nccl(gpus(1), "2.31.1", "NCCL_RUN_DIAGNOSTICS"), False),
        (gpus(1), False),
        (cpu(1), False),
    ],
)
def test_nccls_own_diagnosis_is_switched_on_everywhere_or_nowhere(second: Snapshot, diagnoses: bool) -> None:
    """It compares the ranks' settings, its own among them."""
    company = NodeSession(Nodes(2))  # type: ignore[arg-type]
    company.snapshots = {0: with_nccl(gpus(0), "2.31.1"), 1: second}
    company.members = [0, 1]
    one = Trained(company, TERMS, catalogue(), master="n1", store_port=29500)
    orders = one.make_orders(*one.plan_ranks())
    assert [order.diagnoses for order in orders.values() if isinstance(order, Train)] == [diagnoses] * 2
