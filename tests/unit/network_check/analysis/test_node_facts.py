"""What a node's facts come to in the fleet."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.fleet import Node
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.network_check.analysis.node_facts import CHECK_FAMILIES, FACT_GROUPS, node_of
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot


def node(snapshot: Snapshot, address: str = "10.0.0.11") -> Node:
    return node_of(snapshot, rank=1, host="node01", address=address, offset=0.25, error=0.001, lost="")


def healthy(name: str) -> Snapshot:
    return to_snapshot(healthy_facts(name))


def test_a_gpu_node_tells_versions_interface_and_addresses() -> None:
    one = node(healthy("h100x8-bare-metal"))
    assert (one.torch, one.nccl, one.cuda) == ("2.13.0+cu130", "2.28.9", "13.0")
    assert (one.driver, one.python) == ("580.95.05", "3.11.9")
    assert (one.interface, one.mtu, one.speed, one.families) == ("eth0", 9000, 200000, "4")
    assert (one.nccl_interface, one.nccl_address, one.gloo_address) == ("ib0", "10.10.0.11", "10.0.0.11")
    assert (one.rank, one.host, one.clock_offset, one.clock_error, one.lost) == (1, "node01", 0.25, 0.001, "")


@pytest.mark.parametrize("name", healthy_names())
def test_every_healthy_host_makes_a_node(name: str) -> None:
    one = node(healthy(name), "127.0.0.1")
    assert isinstance(one.torch, str)
    assert one.interface == "lo"


def test_a_host_that_told_nothing_makes_a_node_of_unknowns() -> None:
    one = node(Snapshot())
    for version in (one.torch, one.nccl, one.cuda, one.driver, one.python):
        assert isinstance(version, Unknown)
    assert (one.interface, one.settings) == ("", ())


def test_an_address_that_no_interface_has_names_none() -> None:
    assert node(healthy("h100x8-bare-metal"), "203.0.113.9").interface == ""
    assert node(healthy("h100x8-bare-metal"), "no address").interface == ""


def test_versions_of_packages_stand_in_for_what_could_not_be_asked() -> None:
    packages = Packages(
        installed=(Package(name="torch", version="2.9.1+cu128"), Package(name="nvidia-nccl-cu12", version="2.27.5"))
    )
    silent = Unknown("no answer within 10 s")
    one = node(Snapshot(torch=silent, packages=packages, nccl=Nccl(library="/x/libnccl.so.2", version=silent)))
    assert (one.torch, one.cuda, one.nccl) == ("2.9.1+cu128", "12.8", "2.27.5")


def test_no_torch_is_none_and_not_unknown() -> None:
    one = node(Snapshot(torch=Torch(installed=False), packages=Packages(installed=()), nccl=Nccl()))
    assert (one.torch, one.cuda, one.nccl) == (None, None, None)


@pytest.mark.parametrize("found", [Nccl(), Nccl(library="/usr/lib64/libnccl.so.2", version="2.18.5")])
def test_which_nccl_a_patient_that_cannot_be_asked_would_load_is_unknown(found: Nccl) -> None:
    silent = Unknown("the target Python can't be asked: no answer within 10 s")
    target_python = TargetPython(
        python="/x/python", chosen_by="--python", state="hangs", detail="no answer within 10 s"
    )
    one = node(Snapshot(target_python=target_python, torch=silent, packages=silent, nccl=found))
    assert one.nccl == silent


def test_only_settings_that_concern_other_nodes_travel_and_the_winner_counts() -> None:
    settings = (
        Setting("NCCL_PROTO", "Simple"),
        Setting("NCCL_ALGO", "Ring"),
        Setting("NCCL_DEBUG", "INFO"),
        Setting("RANK", "3"),
        Setting("NCCL_ALGO", "Tree", "/etc/nccl.conf"),
        Setting("NCCL_SOCKET_IFNAME", "eth0"),
    )
    one = node(Snapshot(environment=Environment(settings=settings)))
    assert [(setting.name, setting.value) for setting in one.settings] == [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
    ]


def test_the_groups_cover_what_the_checks_of_netcheck_need() -> None:
    needed = {group for check in all_checks() if check.family in CHECK_FAMILIES for group in check.groups}
    # Who holds a port is told of the own host alone: no list of processes is sent to others. No node reads a log.
    assert needed - {"fleet", "meeting", "processes", "log"} <= set(FACT_GROUPS)


def test_a_node_survives_the_wire() -> None:
    one = node(healthy("h100x8-slurm"))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Node) == one
