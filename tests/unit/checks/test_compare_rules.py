"""The rules by which nodes are compared: which torches meet, whose value counts, which settings mean the same."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.network.rdma import common_index, named, wanted_by
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.rdma import Gid, RdmaPort
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.settings_agreement import deviations, meaning
from ddpdoctor.knowledge.version_agreement import (
    stores_meet,
    to_agree_on,
    torch_build,
    versions_compared,
    versions_unknown,
)
from tests.support.fixture_hosts import host_case
from tests.support.registered_checks import find_check


@pytest.mark.parametrize(
    ("server", "client", "meet"),
    [
        ("2.0.1", "2.1.2", True),
        ("2.1.2", "2.2.0", False),
        ("2.2.0", "2.1.2", False),
        ("2.2.0", "2.4.1+cu124", True),
        ("2.4.1", "2.2.0", True),
        ("2.4.1", "2.5.0", False),
        ("2.5.0", "2.4.1", True),
        ("2.13.0+cu130", "2.2.0", True),
        ("2.13.0", "2.5.0", True),
        ("2.14.0a0+gitabcdef", "2.13.0", True),
        ("no version", "2.13.0", True),
    ],
)
def test_which_stores_and_clients_meet(server: str, client: str, meet: bool) -> None:
    assert stores_meet(server, client) is meet


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({0: "a", 1: "b"}, "a"),
        ({0: "a", 1: "b", 2: "b"}, "b"),
        ({0: "a", 1: "b", 2: "b", 3: "a"}, "a"),
        ({0: "a", 1: "c", 2: "b", 3: "b", 4: "c"}, "c"),
        ({7: "a"}, "a"),
    ],
)
def test_the_majority_counts_and_node_0_on_a_tie(values: dict[int, str], wanted: str) -> None:
    assert to_agree_on(values) == wanted


@pytest.mark.parametrize(
    ("torch", "cuda", "build"),
    [
        ("2.13.0+cu130", "13.0", "cu130"),
        ("2.13.0+cpu", None, "cpu"),
        ("2.9.0+rocm6.4", None, "rocm6.4"),
        ("2.13.0", "13.0", "cu130"),
        ("2.14.0a0+gitabcdef", "12.8", "cu128"),
        ("2.13.0", None, ""),
    ],
)
def test_what_a_torch_is_built_for(torch: str, cuda: str | None, build: str) -> None:
    assert torch_build(Node(rank=0, host="n1", address="10.0.0.1", torch=torch, cuda=cuda)) == build


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("NCCL_ALGO", "Ring", "ring", True),
        ("NCCL_ALGO", "Ring", None, False),
        ("NCCL_IB_DISABLE", "0", None, True),
        ("NCCL_IB_DISABLE", "1", None, False),
        ("NCCL_BUFFSIZE", "0x400000", "4194304", True),
        ("NCCL_BUFFSIZE", "4M", "4194304", False),
        ("TORCH_NCCL_BLOCKING_WAIT", "true", "1", True),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", None, True),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "INFO", False),
        ("NCCL_NET", "", None, True),
    ],
)
def test_values_that_mean_the_same(name: str, one: str | None, other: str | None, same: bool) -> None:
    assert (meaning(name, one) == meaning(name, other)) is same


def test_a_deviation_names_both_sides_and_leaves_out_what_is_the_node_s_own_affair() -> None:
    own = (Setting("NCCL_ALGO", "Ring"), Setting("NCCL_SOCKET_IFNAME", "eth1"), Setting("NCCL_DEBUG", "INFO"))
    found = deviations(own, (Setting("NCCL_PROTO", "Simple"), Setting("NCCL_SOCKET_IFNAME", "eth0")))
    assert [(one.name, one.own and one.own.value, one.wanted) for one in found] == [
        ("NCCL_ALGO", "Ring", None),
        ("NCCL_PROTO", None, "Simple"),
    ]


def test_every_setting_with_a_reason_is_one_that_must_agree() -> None:
    assert {setting.across for setting in known_settings().values() if setting.apart} == {"equal"}
    assert {setting.across for setting in known_settings().values()} == {"", "equal", "per-node"}


@pytest.mark.parametrize(
    ("hca", "taken", "by_name"),
    [
        ("", True, False),
        ("mlx5", True, True),
        ("mlx5_1", True, True),
        ("=mlx5_1", False, False),
        ("=mlx5_10", True, True),
        ("mlx5_10:1", True, True),
        ("mlx5_10:2", False, False),
        ("^mlx5_10", False, False),
        ("^=mlx5_1", True, False),
        ("mlx4_0,mlx5_10", True, True),
    ],
)
def test_which_ports_nccl_ib_hca_takes(hca: str, taken: bool, by_name: bool) -> None:
    port = RdmaPort(device="mlx5_10", port=1, link_layer="InfiniBand", state="ACTIVE")
    assert (wanted_by(port, hca), named(port, hca)) == (taken, by_name)


def test_the_row_that_serves_all_ports() -> None:
    good = "0000:0000:0000:0000:0000:ffff:0a00:000b"

    def port(*rows: tuple[int, str]) -> RdmaPort:
        gids = tuple(Gid(index=index, gid=good, type=kind) for index, kind in rows)
        return RdmaPort(device="mlx5_0", port=1, link_layer="Ethernet", state="ACTIVE", gids=gids)

    assert common_index([port((2, "IB/RoCE v1"), (3, "RoCE v2")), port((3, "RoCE v2"), (5, "RoCE v2"))]) == 3
    assert common_index([port((3, "RoCE v2")), port((5, "RoCE v2"))]) is None


SILENT = Unknown("the target Python can't be asked: no answer within 10 s")


def versions(*nodes: dict[str, str | Unknown | None]) -> list[Node]:
    usual: dict[str, str | Unknown | None] = {
        "torch": "2.13.0+cpu",
        "python": "3.11.9",
        "nccl": None,
        "cuda": None,
        "driver": None,
    }
    return [
        Node(rank=rank, host=f"n{rank}", address="10.0.0.1", **(usual | one))  # type: ignore[arg-type]
        for rank, one in enumerate(nodes)
    ]


def test_what_all_nodes_tell_is_compared() -> None:
    assert versions_compared(versions({}, {"nccl": "2.28.9"})) == ("torch", "Python", "NCCL")
    assert versions_unknown(versions({}, {"nccl": "2.28.9"})) == ""


def test_versions_that_one_node_does_not_tell_were_not_compared() -> None:
    nodes = versions({"nccl": "2.28.9"}, dict.fromkeys(("torch", "python", "nccl", "cuda"), SILENT))
    assert versions_compared(nodes) == ()
    assert versions_unknown(nodes) == f"torch, Python and NCCL of n1: {SILENT.reason}"


def test_a_driver_that_is_nowhere_known_to_be_is_not_missed() -> None:
    hidden = versions(*[{"driver": Unknown("no answer")}] * 2)
    assert (versions_compared(hidden), versions_unknown(hidden)) == (("torch", "Python"), "")
    assert versions_unknown(versions({"driver": "580.95.05"}, {"driver": Unknown("no answer")})) == (
        "driver of n1: no answer"
    )


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        (
            {"driver": "590.44.01"},
            Severity.INFO,
            "node02 has NVIDIA driver 590.44.01, node01 and node03 580.95.05",
        ),
        (
            {"driver": "570.124.06"},
            Severity.WARN,
            "node02 has NVIDIA driver 570.124.06, node01 and node03 580.95.05; CUDA 13.0 of its torch wants 580.65.06",
        ),
        ({"python": "3.10.14"}, Severity.WARN, "node02 trains with Python 3.10.14, node01 and node03 with 3.11.9"),
        ({"python": "3.11.4"}, None, ""),
        (
            {"torch": "2.13.0", "cuda": "12.8"},
            Severity.WARN,
            "node02 has torch 2.13.0 (CUDA 12.8), node01 and node03 2.13.0+cu130",
        ),
    ],
    ids=["driver", "driver too old", "Python", "Python's patch", "CUDA"],
)
def test_what_differs_alone_is_said(change: dict[str, str], severity: Severity | None, words: str) -> None:
    snapshot = host_case("torch-version-mismatch/near-miss-same").snapshot()
    assert isinstance(snapshot.fleet, Fleet)
    first, second, third = snapshot.fleet.nodes
    fleet = msgspec.structs.replace(snapshot.fleet, nodes=(first, msgspec.structs.replace(second, **change), third))
    found = diagnose(
        msgspec.structs.replace(snapshot, fleet=fleet), plan_for(snapshot, None), [find_check("torch-version-mismatch")]
    )[0].findings
    said = [(finding.severity, finding.summary) for finding in found]
    assert said == ([(severity, words)] if severity else [])
