"""What `--scaling` measures and shows, and what it calls normal, on healthy hosts."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ddpdoctor.examination import Verdict
from ddpdoctor.facts.smoke import Bandwidth, Ending, Leftovers, RankRun, Scaling, Smoke, Speed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.normal_bandwidths import Norm, normal_bandwidth
from ddpdoctor.report.smoke_scaling import efficiency, rate, show_scaling
from ddpdoctor.report.smoke_words import headline, outcome
from ddpdoctor.report.terminal import make_console
from ddpdoctor.smoke import scaling as measuring
from ddpdoctor.smoke.judging import judge, verdict_of
from ddpdoctor.smoke.orders import Order
from ddpdoctor.smoke.running import Ran
from ddpdoctor.smoke.scaling import Measured, numbers_of_ranks
from tests.fixture_hosts import healthy_facts, to_snapshot
from tests.smokes import rank_run, smoke_of_ranks


def norm(host: str, ranks: int, backend: str = "nccl") -> Norm | str:
    snapshot = to_snapshot(healthy_facts(host))
    return normal_bandwidth(snapshot.gpus, snapshot.environment, backend, ranks)


def shown(host: str, scaling: Scaling, backend: str) -> str:
    file = io.StringIO()
    show_scaling(
        make_console(file, width=100), Smoke(scaling=scaling, backend=backend), to_snapshot(healthy_facts(host))
    )
    return " ".join(file.getvalue().split())


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


# --- runs that fail -----------------------------------------------------------------------------------------------------

STAGES = (*measuring.BEGINNING, measuring.SPEED, measuring.BANDWIDTH, measuring.END)


def measured(monkeypatch: pytest.MonkeyPatch, ill: RankRun, at: int, *figures: dict[str, Any]) -> Measured:
    """Of four ranks, where the run of so many ends with that rank, after those figures; each leaves a process behind."""

    async def run(order: Order, **_: object) -> Ran:
        runs = tuple(
            ill if order.nproc == at and rank == ill.rank else rank_run(rank, names=STAGES)
            for rank in range(order.nproc)
        )
        told = figures if order.nproc == at else ({"samples_per_second": 1000.0, "batch": 64},)
        watch: Any = SimpleNamespace(torch="2.13.0+cpu", figures=told, engine_missing="", ranks={})
        return Ran(runs, watch, "", Leftovers(processes=("77 python", f"{order.nproc} python")))

    monkeypatch.setattr(measuring, "run", run)
    order = Order(nproc=4, world_size=4, backend="gloo", stages=STAGES)
    return asyncio.run(measuring.measure(order, python="python", environ={}, heard=lambda watch: None))


KILLED = rank_run(1, Ending.KILLED, "scaling", names=STAGES, exit_code=-9, last_line="terminate called", host="node07")


def test_a_run_that_fails_ends_the_measurement_and_its_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling, left = measured(monkeypatch, KILLED, 2)
    one, two, data_parallel = scaling.speeds
    assert (one.samples_per_second, one.failed) == (1000.0, False)
    assert two.failed
    assert two.problem == 'rank 1 on node07 was killed by SIGKILL in scaling; its last line: "terminate called"'
    assert (data_parallel.way, data_parallel.failed) == ("DataParallel", False)
    assert left == Leftovers(processes=("77 python", "1 python", "2 python"))


def test_a_figure_before_the_failure_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = rank_run(3, Ending.HUNG, "bandwidth", names=STAGES, host="node07")
    figures = {"samples_per_second": 2000.0}, {"size": 4096, "bus": 1e6}
    scaling, _ = measured(monkeypatch, hung, 4, *figures)
    four = scaling.speeds[-2]
    assert (four.ranks, four.samples_per_second, four.failed) == (4, 0.0, True)
    assert "rank 3 on node07" in four.problem
    assert scaling.bandwidths == ()


def test_a_failed_measurement_is_told_as_such_and_the_training_as_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling, _ = measured(monkeypatch, KILLED, 2)
    facts = msgspec.structs.replace(smoke_of_ranks(4), scaling=scaling)
    examination = judge(Snapshot(host="node07"), facts)
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
        smoke_of_ranks(2, {1: rank_run(1, Ending.KILLED, "training", exit_code=-9)}), scaling=Scaling(speeds=speeds)
    )
    assert outcome(judge(Snapshot(host="node07"), facts)) == "The training did not pass"
