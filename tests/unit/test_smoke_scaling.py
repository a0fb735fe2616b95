"""What `--scaling` shows, and what it calls normal, on healthy hosts."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.facts.smoke import Bandwidth, Scaling, Smoke, Speed
from ddpdoctor.knowledge.normal_bandwidths import Norm, normal_bandwidth
from ddpdoctor.report.smoke_scaling import efficiency, rate, show_scaling
from ddpdoctor.report.terminal import make_console
from ddpdoctor.smoke.scaling import numbers_of_ranks
from tests.fixture_hosts import healthy_facts, to_snapshot


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
