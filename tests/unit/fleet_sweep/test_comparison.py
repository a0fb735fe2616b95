"""The odd ones out: named with the majority's value, and nobody who isn't odd."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.fleet_sweep.comparable import COMPARED_GROUPS, DIFFERENT_BY_NATURE, NAMED_BY, comparable_facts
from ddpdoctor.fleet_sweep.comparison import AlikeGroup, by_fact, by_gpu, compare, parent_of, shown_value
from ddpdoctor.fleet_sweep.judging import FleetJudge
from ddpdoctor.fleet_sweep.sweep import Sweep
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot
from tests.support.fleet_of_fixtures import fleet_snapshots, host_name
from tests.unit.fleet_sweep.judged import sweep_of

COUNT = 9


def odd_ones(*changes: Any, count: int = COUNT) -> AlikeGroup:
    """The group of a fleet in which the first host is changed so, the second so ..."""

    def change(number: int, facts: dict[str, Any]) -> None:
        if number <= len(changes):
            changes[number - 1](facts)

    sweep = sweep_of(fleet_snapshots(count, change))
    (group,) = compare(sweep, by_gpu(sweep.hosts))
    return group


@pytest.mark.parametrize("model", ["h100x8-slurm", "h100x8-bare-metal", "h100x8-training", "h100x8-container"])
def test_hosts_that_are_alike_have_no_odd_one(model: str) -> None:
    sweep = sweep_of(fleet_snapshots(COUNT, model=model))
    (group,) = compare(sweep, by_gpu(sweep.hosts))
    assert [fact.path for fact in group.odd + group.undecided + group.unknown] == []
    assert group.compared > 200


def put(*keys: Any, value: Any) -> Any:
    def change(facts: dict[str, Any]) -> None:
        place: Any = facts
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


ODD = {
    "driver": (put("driver", "kernel_version", value="570.124.06"), "driver.kernel_version", "570.124.06", "580.95.05"),
    "CUDA": (put("driver", "cuda_version", value=[12, 8]), "driver.cuda_version", "12, 8", "13, 0"),
    "NCCL": (put("nccl", "version", value="2.27.3"), "nccl.version", "2.27.3", "2.28.9"),
    "torch": (put("torch", "version", value="2.12.0+cu130"), "torch.version", "2.12.0+cu130", "2.13.0+cu130"),
    "kernel": (put("machine", "kernel", value="6.8.0"), "machine.kernel", "6.8.0", "5.15.0-139-generic"),
    "clocks": (put("gpus", "devices", 0, "sm_clock_max", value=1200), "gpus.devices[0].sm_clock_max", "1,200", "1,980"),
    "ECC": (put("gpus", "devices", 5, "ecc_enabled", value=False), "gpus.devices[5].ecc_enabled", "no", "yes"),
    "PCIe width": (put("gpus", "devices", 3, "pcie_width", value=8), "gpus.devices[3].pcie_width", "8", "16"),
    "NVLink": (put("gpus", "devices", 1, "nvlinks_active", value=17), "gpus.devices[1].nvlinks_active", "17", "18"),
    "MTU": (put("network", "interfaces", 1, "mtu", value=1500), "network.interfaces[eth0].mtu", "1,500", "9,000"),
    "rate": (put("rdma", "ports", 2, "rate", value="200 Gb/sec (4X HDR)"), "rdma.ports[mlx5_2/1].rate", "200 Gb/sec (4X HDR)", "400 Gb/sec (4X NDR)"),
    "firmware": (put("rdma", "ports", 2, "firmware", value="28.39.1002"), "rdma.ports[mlx5_2/1].firmware", "28.39.1002", "empty"),
    "limits": (put("limits", "nofile_soft", value=1024), "limits.nofile_soft", "1,024", "1,048,576"),
    "memory": (put("machine", "memory_total", value=2029111888384), "machine.memory_total", "1.8 TiB", "2 TiB"),
    "mount": (put("disks", "folders", 0, "file_system", value="nfs4"), "disks.folders[working folder].file_system", "nfs4", "lustre"),
    "resolution": (put("network", "own_name", "addresses", value=["127.0.1.1"]), "network.own_name.addresses", "127.0.1.1", "<its address 1>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_the_odd_one_is_named_with_the_majoritys_value(kind: str) -> None:
    change, path, value, expected = ODD[kind]
    facts = [fact for fact in odd_ones(change).odd if fact.path == path]
    assert [(fact.hosts, shown_value(fact.value), shown_value(fact.expected or "")) for fact in facts] == [
        ((host_name(1),), value, expected)
    ]
    assert (facts[0].agreeing, facts[0].of) == (COUNT - 1, COUNT)


def test_a_lost_gpu_is_one_odd_fact_and_not_forty() -> None:
    odd = odd_ones(lambda facts: facts["gpus"]["devices"].pop()).odd
    assert [(fact.path, fact.value, fact.expected) for fact in odd] == [("gpus.devices[7]", "absent", "present")]


def test_a_setting_of_one_host_alone_is_odd_and_its_value_is_not_told_apart() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["environment"]["settings"].append({"name": "NCCL_P2P_DISABLE", "value": "1"})

    assert [(fact.path, fact.value) for fact in odd_ones(change).odd] == [
        ("environment.settings[NCCL_P2P_DISABLE]", "present")
    ]


def test_what_differs_on_all_gpus_of_a_host_is_said_once() -> None:
    def change(facts: dict[str, Any]) -> None:
        for device in facts["gpus"]["devices"]:
            device["ecc_enabled"] = False

    assert [fact.path for fact in odd_ones(change).odd] == ["gpus.devices[0-7].ecc_enabled"]


def test_no_majority_is_said_and_nobody_is_odd() -> None:
    group = odd_ones(*[put("machine", "kernel", value="6.8.0")] * 4, *[put("machine", "kernel", value="6.1.0")] * 4)
    assert group.odd == ()
    assert [(shown_value(fact.value), len(fact.hosts)) for fact in group.undecided] == [
        ("6.8.0", 4), ("6.1.0", 4), ("5.15.0-139-generic", 1),
    ]  # fmt: skip


def test_what_is_unknown_is_no_vote_and_said() -> None:
    group = odd_ones(put("nccl", "version", value={"type": "unknown", "reason": "it hung"}))
    assert group.odd == ()
    assert [(fact.path, fact.value, fact.hosts) for fact in group.unknown] == [
        ("nccl.version", "?it hung", (host_name(1),))
    ]


def test_what_differs_on_every_host_says_nothing() -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        facts["machine"]["kernel_command_line"] = f"serial={number}"
        facts["pci"]["devices"][0]["address"] = f"{number:04x}:03:00.0"

    sweep = sweep_of(fleet_snapshots(COUNT, change))
    (group,) = compare(sweep, by_gpu(sweep.hosts))
    assert group.odd == group.undecided == ()
    assert {"machine.kernel_command_line", "pci.devices"} <= set(group.different)


def test_the_same_setting_is_the_same_where_it_names_one_of_the_hosts() -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        facts["environment"]["settings"].append({"name": "INIT_METHOD", "value": f"tcp://{host_name(3)}:29500"})

    sweep = sweep_of(fleet_snapshots(COUNT, change))
    (group,) = compare(sweep, by_gpu(sweep.hosts))
    assert group.odd == ()


def test_a_clock_that_is_off_and_an_old_snapshot_are_named() -> None:
    odd = odd_ones(put("taken_at", value="2026-11-28T02:21:00+00:00")).odd
    assert [(fact.path, fact.hosts) for fact in odd] == [("taken_at", (host_name(1),))]


def test_a_host_without_a_driver_stays_with_its_like() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["gpus"] = {"type": "unknown", "reason": "no driver"}

    assert len(odd_ones(change).hosts) == COUNT


def test_hosts_of_other_kinds_are_not_compared() -> None:
    sweep = sweep_of([*fleet_snapshots(3), *(healthy_facts(name) for name in ("mi300x8-rocm", "cpu-laptop"))])
    groups = compare(sweep, by_gpu(sweep.hosts))
    assert sorted(len(group.hosts) for group in groups) == [1, 1, 3]
    assert [group.odd for group in groups] == [(), (), ()]


def test_grouped_by_a_fact() -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        if number > 4:
            facts["machine"]["kernel"] = "6.8.0"

    sweep = sweep_of(fleet_snapshots(COUNT, change))
    labels = by_fact(sweep, "machine.kernel")
    assert labels is not None
    assert sorted(set(labels.values())) == ["machine.kernel 5.15.0-139-generic", "machine.kernel 6.8.0"]
    assert [group.odd for group in compare(sweep, labels)] == [(), ()]
    assert by_fact(sweep, "machine.kernal") is None


def test_all_that_is_told_apart_in_the_tables_is_a_field() -> None:
    """A field that is renamed must not be compared, or go unnamed, by accident."""
    fields: dict[str, set[str]] = {}

    def collect(value: object) -> None:
        if isinstance(value, tuple):
            for item in value:
                collect(item)
        elif hasattr(value, "__struct_fields__"):
            fields.setdefault(type(value).__name__, set()).update(value.__struct_fields__)
            for name in value.__struct_fields__:
                collect(getattr(value, name))

    for host in healthy_names():
        collect(to_snapshot(healthy_facts(host)))
    for table in (DIFFERENT_BY_NATURE, NAMED_BY):
        for struct, named in table.items():
            assert set(named) <= fields.get(struct, set(named)), struct


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("network", ""),
        ("network.fqdn", "network"),
        ("network.interfaces[eth0]", "network"),
        ("network.interfaces[eth0.100].mtu", "network.interfaces[eth0.100]"),
        ("extensions.apex[/opt/x.y].objects[a.b].needed", "extensions.apex[/opt/x.y].objects[a.b]"),
        ("extensions.apex[/opt/x.y].objects[a.b]", "extensions.apex[/opt/x.y]"),
    ],
)
def test_parents(path: str, parent: str) -> None:
    assert parent_of(path) == parent


def test_every_fact_of_a_compared_group_gives_a_pair() -> None:
    host = to_snapshot(healthy_facts("h100x8-slurm"))
    for group in COMPARED_GROUPS:
        pairs = comparable_facts(group, getattr(host, group))
        assert len(dict(pairs)) == len(pairs), group


def test_a_duplicate_counts_once_and_the_later_one() -> None:
    early, late = fleet_snapshots(1), fleet_snapshots(1)
    first, last = next(early), next(late)
    last["taken_at"] = "2027-01-01T00:00:00+00:00"
    last["machine"]["kernel"] = "6.8.0"
    for order in ((first, last), (last, first)):
        judge = FleetJudge(())
        for facts in order:
            judge.judge(_encoded(facts), f"{facts['machine']['kernel']}.json")
        assert len(judge.sweep.hosts) == 1
        assert dict(judge.sweep.facts_of(judge.sweep.hosts[host_name(1)]))["machine.kernel"] == '"6.8.0"'
        (problem,) = judge.sweep.problems
        assert "6.8.0.json counts" in problem


def _encoded(facts: dict[str, Any]) -> bytes:
    import json

    return json.dumps(facts).encode()


def test_an_empty_sweep_has_no_groups() -> None:
    assert compare(Sweep(), {}) == ()
