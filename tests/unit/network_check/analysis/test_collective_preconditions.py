"""What netcheck doesn't try, since it is known to fail and would be waited for: the reason is said, with names."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.fleet import Cell, Link, Node, Reach
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.rdma import Rdma
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.collective_preconditions import why_no_gloo, why_no_nccl
from tests.support.fixture_hosts import healthy_facts, to_snapshot

GPUS = to_snapshot(healthy_facts("h100x8-bare-metal"))
GOOD = Link(a=0, b=1, round_trip=0.0001, forth=9000.0, back=9000.0)


def pair(**second: object) -> list[Node]:
    nodes = [
        Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{rank}", torch="2.13.0+cu130", nccl="2.28.9")
        for rank in range(2)
    ]
    return [nodes[0], msgspec.structs.replace(nodes[1], **second)]


def gloo(nodes: list[Node], *reach: Reach, link: Link = GOOD) -> str:
    return why_no_gloo(nodes, {0: GPUS, 1: GPUS}, reach, [link])


def nccl(nodes: list[Node], *reach: Reach, second: Snapshot = GPUS) -> str:
    return why_no_nccl(nodes, {0: GPUS, 1: second}, reach)


def cells(kind: str, *rows: str) -> Reach:
    return Reach(kind=kind, addresses=("172.17.0.1", "172.17.0.1"), ports=(1, 1), rows=rows)


def setting(name: str, value: str) -> dict[str, tuple[Setting, ...]]:
    return {"settings": (Setting(name, value),)}


def test_both_are_tried_on_good_nodes() -> None:
    assert gloo(pair(), cells("gloo", "-.", ".-")) == ""
    assert nccl(pair(), cells("nccl", "-.", ".-")) == ""


def test_addresses_that_do_not_reach_each_other() -> None:
    none = cells("nccl", f"-{Cell.REFUSED.value}", f"{Cell.SILENT.value}-")
    assert nccl(pair(), none) == "NCCL's addresses don't reach each other (2 connections fail)"
    assert gloo(pair(), none) == ""
    assert gloo(pair(), msgspec.structs.replace(none, kind="gloo")).startswith(
        "gloo's addresses don't reach each other"
    )


def test_versions_of_nccl_that_differ() -> None:
    assert nccl(pair(nccl="2.27.7")) == "NCCL differs: 2.28.9 on n0; 2.27.7 on n1"


def test_no_interface_for_nccl() -> None:
    lost = msgspec.structs.replace(GPUS, nccl=Nccl(library="/x/libnccl.so.2", version="2.28.9", answer_status=5))
    assert nccl(pair(), second=lost) == "NCCL finds no interface on n1"


@pytest.mark.parametrize(
    ("name", "value", "hit"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", ("gloo", "NCCL")),
        ("TORCH_GLOO_LAZY_INIT", "1", ("gloo",)),
        ("NCCL_ALGO", "Ring", ("NCCL",)),
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", "1", ("NCCL",)),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", ()),
        ("NCCL_SOCKET_IFNAME", "eth0", ()),
    ],
)
def test_settings_in_which_ranks_that_differ_hang(name: str, value: str, hit: tuple[str, ...]) -> None:
    nodes = pair(**setting(name, value))
    said = f"n1 differs from the others in {name}, and {{}} would hang"
    assert gloo(nodes) == (said.format("gloo") if "gloo" in hit else "")
    assert nccl(nodes) == (said.format("NCCL") if "NCCL" in hit else "")


def test_a_setting_that_nothing_reads_here_does_no_harm() -> None:
    without = msgspec.structs.replace(GPUS, rdma=Rdma(ports=()))
    nodes = pair(**setting("NCCL_IB_SPLIT_DATA_ON_QPS", "1"))
    assert nccl(nodes, second=without) == ""


def test_no_torch_no_gpu_and_slow_links() -> None:
    assert gloo(pair(torch=None)) == "torch is not installed on n1"
    assert nccl(pair(), second=to_snapshot(healthy_facts("cpu-laptop"))) == "no NVIDIA GPU on n1"
    assert gloo(pair(), link=msgspec.structs.replace(GOOD, back=2.0)).endswith("slowest link, 2.0 Mbit/s")
