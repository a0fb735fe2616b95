"""What `--scaling` measures and shows, and what it calls normal, on healthy hosts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from ddpdoctor_smoke.orders import TrainerOrder as PatientsOrder
from ddpdoctor_smoke.stages import scaling as stages

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.smoke import Bandwidth, Leftovers, RankEnding, RankRun, Scaling, Smoke, Speed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.document import Document
from ddpdoctor.report.terminal import text_of
from ddpdoctor.smoke_training.analysis.normal_bandwidths import Norm, normal_bandwidth
from ddpdoctor.smoke_training.analysis.verdict import judge_training, verdict_of
from ddpdoctor.smoke_training.local import scaling as measuring
from ddpdoctor.smoke_training.local.scaling import MeasuredScaling, numbers_of_ranks
from ddpdoctor.smoke_training.render_scaling import efficiency, rate, scaling_sections
from ddpdoctor.smoke_training.render_words import headline, outcome
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.smokes import rank_run, smoke_of_ranks


def norm(host: str, ranks: int, backend: str = "nccl") -> Norm | str:
    snapshot = to_snapshot(healthy_facts(host))
    return normal_bandwidth(snapshot.gpus, snapshot.environment, backend, ranks)


def shown(host: str, scaling: Scaling, backend: str) -> str:
    sections = scaling_sections(Smoke(scaling=scaling, backend=backend), to_snapshot(healthy_facts(host)))
    return " ".join(text_of(Document(verdict=Verdict.OK, sections=tuple(sections)), 100).split())


@pytest.mark.parametrize(("most", "numbers"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_numbers_of_ranks(most: int, numbers: list[int]) -> None:
    assert numbers_of_ranks(most) == numbers


def test_norm_over_nvlink() -> None:
    found = norm("h100x8-bare-metal", 8)
    assert isinstance(found, Norm)
    assert found.bus == pytest.approx(18 * 20.6e9)
    assert "topo.h" in found.source
    assert "issue 212" in found.words


def test_norm_over_pcie_is_an_upper_limit() -> None:
    found = norm("rtx4090x2-workstation", 2)
    assert isinstance(found, Norm)
    assert (found.bus, found.at_most) == (24e9, True)


@pytest.mark.parametrize(
    ("host", "ranks", "backend", "why"),
    [
        ("cloud-cpu", 2, "gloo", "nobody publishes a norm"),
        ("h100x8-bare-metal", 8, "gloo", "nobody publishes a norm"),
        ("mi300x8-rocm", 8, "nccl", "no public figures"),
        ("a100-mig", 1, "nccl", "a whole GPU each"),
        ("rtx4090x2-workstation", 4, "nccl", "a whole GPU each"),
    ],
)
def test_without_a_source_nothing_is_called_normal(host: str, ranks: int, backend: str, why: str) -> None:
    found = norm(host, ranks, backend)
    assert isinstance(found, str)
    assert why in found


def test_efficiency_is_against_so_many_single_ranks() -> None:
    one, four = (Speed(ranks=ranks, way="DDP", samples_per_second=speed) for ranks, speed in ((1, 100.0), (4, 300.0)))
    assert efficiency(four, (one, four)) == 0.75
    assert efficiency(four, (four,)) is None


def test_ranks_that_share_cores() -> None:
    speeds = (
        Speed(ranks=1, way="DDP", samples_per_second=1000.0),
        Speed(ranks=4, way="DDP", samples_per_second=2000.0),
        Speed(ranks=4, way="DataParallel", problem="nn.DataParallel works on GPUs only"),
    )
    text = shown("cloud-cpu", Scaling(speeds=speeds, cores=2, bandwidths=(Bandwidth(size=1 << 20, bus=2.1e8),)), "gloo")
    assert "4 ranks share 2 cores here" in text
    assert "4 2,000 50% " + "█" * 24 in text
    assert "nn.DataParallel not tested: nn.DataParallel works on GPUs only" in text
    assert "1 MiB 0.21 GB/s" in text
    assert "nothing is compared" in text


def test_gpus() -> None:
    speeds = (
        Speed(ranks=1, way="DDP", samples_per_second=1000.0, memory=2 << 30),
        Speed(ranks=8, way="DDP", samples_per_second=7200.0, memory=2 << 30),
        Speed(ranks=8, way="DataParallel", samples_per_second=1500.0, memory=3 << 30),
    )
    scaling = Scaling(speeds=speeds, cores=2, batch=512, bandwidths=(Bandwidth(size=1 << 30, bus=3.1e11),))
    text = shown("h100x8-bare-metal", scaling, "nccl")
    assert "8 7,200 90% 2 GiB" in text
    assert "efficiency most on one GPU" in text
    assert "one process over 8 GPUs" in text
    assert "share 2 cores" not in text, "GPUs compute there"
    assert "measured 84% of it" in text


def test_nothing_is_shown_that_was_not_asked_for() -> None:
    assert shown("cloud-cpu", Scaling(), "gloo") == ""
    problem = Scaling(problem="the training itself has not passed")
    assert "not tested: the training itself has not passed" in shown("cloud-cpu", problem, "gloo")


@pytest.mark.parametrize(("bus", "words"), [(3.74e11, "374 GB/s"), (1.23e10, "12.3 GB/s"), (8e5, "0.8 MB/s")])
def test_rate(bus: float, words: str) -> None:
    assert rate(bus) == words


# --- messages that would take too long -------------------------------------------------------------------------------


BEGAN = 1000.0


class Slow:
    """A rank of two on a network of so many bytes a second, with a clock of its own; the other has spent `behind` more."""

    world_size, rank = 2, 0

    def __init__(self, rate: float, limit: float = 30.0, behind: float = 0.0, memory: int = 1 << 40) -> None:
        self.rate, self.now, self.behind = rate, BEGAN, behind
        self.order = PatientsOrder(seconds=limit)
        self.device = SimpleNamespace(type="cuda", index=0)
        self.dist = SimpleNamespace(
            all_reduce=self.all_reduce, barrier=lambda **_: None, ReduceOp=SimpleNamespace(MAX=max, MIN=min)
        )
        cuda = SimpleNamespace(mem_get_info=lambda device: (memory, memory), synchronize=lambda device: None)
        self.torch = SimpleNamespace(
            zeros=lambda count, device: Message(4 * count),
            tensor=lambda number, dtype, device: Message(8, number),
            float64=None,
            cuda=cuda,
        )
        self.told: list[dict[str, Any]] = []

    def all_reduce(self, message: Message, how: Any = None) -> None:
        if how is max and message.number == self.now - BEGAN:
            message.number += self.behind
        self.now += 1e-5 + message.size / self.rate

    def step(self, words: str) -> None:
        pass

    def say(self, figures: dict[str, Any]) -> None:
        self.told.append(figures)


class Message:
    def __init__(self, size: int, number: float = 0.0) -> None:
        self.size, self.number = size, number

    def item(self) -> float:
        return self.number


def sizes_on(one: Slow, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], str]:
    """In MiB, those of at least one; and what it says of larger ones."""
    clock = SimpleNamespace(monotonic=lambda: one.now, perf_counter=lambda: one.now)
    monkeypatch.setattr(stages, "time", clock)
    stages.bandwidth(one)
    sizes = [figures["size"] >> 20 for figures in one.told if "size" in figures]
    return [size for size in sizes if size], next((told["larger"] for told in one.told if "larger" in told), "")


@pytest.mark.parametrize(
    ("rate", "sizes"),
    [(300e9, [1, 16, 256, 1024]), (2e9, [1, 16, 256, 1024]), (0.4e9, [1, 16, 256]), (0.005e9, [1])],
)
def test_messages_are_as_large_as_the_time_of_a_stage_allows(
    rate: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Slow(rate)
    found, larger = sizes_on(one, monkeypatch)
    assert found == sizes
    assert one.now - BEGAN < 30.0
    assert bool(larger) == (sizes[-1] < 1024)


def test_it_says_which_size_would_take_too_long_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    _, larger = sizes_on(Slow(0.4e9), monkeypatch)
    assert larger == (
        "for want of time: 1 GiB would take some 30 s, and 14 of a stage's 30 s are left; a longer --timeout gives them more"
    )
    assert sizes_on(Slow(0.4e9, limit=90.0), monkeypatch) == ([1, 16, 256, 1024], "")


def test_what_another_rank_has_spent_counts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, larger = sizes_on(Slow(2e9, behind=20.0), monkeypatch)
    assert sizes == [1, 16, 256]
    assert "1 GiB would take some 6 s, and 1 of a stage's 30 s are left" in larger


def test_memory_that_does_not_suffice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, larger = sizes_on(Slow(300e9, memory=1 << 30), monkeypatch)
    assert (sizes, larger) == ([1, 16, 256], "for want of free GPU memory: 1 GiB needs twice as much")


def test_larger_messages_that_were_not_measured_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = (
        {"samples_per_second": 2000.0, "batch": 64},
        {"size": 1 << 28, "bus": 4e8},
        {"larger": "for want of time: 1 GiB would take some 30 s"},
    )
    scaling, _ = measured(monkeypatch, rank_run(3, names=STAGES), 4, *figures)
    assert not [speed for speed in scaling.speeds if speed.failed]
    text = shown("h100x8-bare-metal", scaling, "nccl")
    assert "256 MiB 0.40 GB/s Larger messages were not measured, for want of time: 1 GiB would take some 30 s." in text


# --- runs that fail -----------------------------------------------------------------------------------------------------

STAGES = (*measuring.FIRST_STAGES, measuring.SPEED, measuring.BANDWIDTH, measuring.END)


def measured(monkeypatch: pytest.MonkeyPatch, ill: RankRun, at: int, *figures: dict[str, Any]) -> MeasuredScaling:
    """Of four ranks, where the run of so many ends with that rank, after those figures; each leaves a process behind."""

    class Runner:
        def __init__(self, order: TrainingOrder, *_: object) -> None:
            self.nproc = order.nproc
            told = figures if order.nproc == at else ({"samples_per_second": 1000.0, "batch": 64},)
            self.monitor = SimpleNamespace(figures=told)

        async def run(self) -> Smoke:
            ranks = tuple(
                ill if self.nproc == at and rank == ill.rank else rank_run(rank, names=STAGES)
                for rank in range(self.nproc)
            )
            return Smoke(ranks=ranks, leftovers=Leftovers(processes=("77 python", f"{self.nproc} python")))

    monkeypatch.setattr(measuring, "RankRunner", Runner)
    order = TrainingOrder(nproc=4, world_size=4, backend="gloo", stages=STAGES)
    return asyncio.run(measuring.measure_speeds(order, python="python", environ={}, on_progress=lambda watch: None))


KILLED = rank_run(
    1, RankEnding.KILLED, "scaling", names=STAGES, exit_code=-9, last_line="terminate called", host="node07"
)


def test_a_run_that_fails_ends_the_measurement_and_its_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling, left = measured(monkeypatch, KILLED, 2)
    one, two, data_parallel = scaling.speeds
    assert (one.samples_per_second, one.failed) == (1000.0, False)
    assert two.failed
    assert two.problem == 'rank 1 on node07 was killed by SIGKILL in scaling; its last line: "terminate called"'
    assert (data_parallel.way, data_parallel.failed) == ("DataParallel", False)
    assert left == Leftovers(processes=("77 python", "1 python", "2 python"))


def test_a_figure_before_the_failure_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = rank_run(3, RankEnding.HUNG, "bandwidth", names=STAGES, host="node07")
    figures = {"samples_per_second": 2000.0}, {"size": 4096, "bus": 1e6}
    scaling, _ = measured(monkeypatch, hung, 4, *figures)
    four = scaling.speeds[-2]
    assert (four.ranks, four.samples_per_second, four.failed) == (4, 0.0, True)
    assert "rank 3 on node07" in four.problem
    assert scaling.bandwidths == ()


def test_a_failed_measurement_is_told_as_such_and_the_training_as_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling, _ = measured(monkeypatch, KILLED, 2)
    facts = msgspec.structs.replace(smoke_of_ranks(4), scaling=scaling)
    examination = judge_training(Snapshot(host="node07"), facts, catalogue())
    assert verdict_of(examination) is Verdict.FAIL
    assert headline(examination).startswith(
        "The training passed; scaling failed at 2 ranks: rank 1 on node07 was killed by SIGKILL in scaling"
    )
    assert outcome(examination) == "The training passed, but not at every number of ranks"
    text = shown("cloud-cpu", scaling, "gloo")
    assert "2 DDP failed: rank 1 on node07 was killed by SIGKILL" in text
    assert "all_reduce bandwidth not tested: the run before it failed" in text


def test_a_training_that_failed_is_told_before_its_scaling() -> None:
    speeds = (Speed(ranks=1, way="DDP", problem="rank 0 on node07 failed", failed=True),)
    facts = msgspec.structs.replace(
        smoke_of_ranks(2, {1: rank_run(1, RankEnding.KILLED, "training", exit_code=-9)}), scaling=Scaling(speeds=speeds)
    )
    assert outcome(judge_training(Snapshot(host="node07"), facts, catalogue())) == "The training did not pass"
