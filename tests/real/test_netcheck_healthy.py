"""Healthy hosts, in all the shapes that are no illness: netcheck finds nothing, and says what it didn't test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from tests.real.test_network_illnesses import bridge
from tests.support.namespaces import Host, add_ipv6, network, take_ipv4
from tests.support.netcheck_hosts import MASTER, Ran, netcheck, start

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]

TESTED = ("join", "compare", "reach", "links")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Each has the bridge of Docker, with the same address, and a second network card in a network that reaches all."""
    with network(*(f"n{number}" for number in range(1, 9))) as eight:
        assert eight[0].cable
        switch, _ = eight[0].cable
        switch.ip("link add br1 type bridge")
        switch.ip("link set br1 up")
        for number, host in enumerate(eight, 1):
            bridge(host, "docker0", "172.17.0.1/16", 5)
            # Before eth0 in the kernel's order, so NCCL takes it.
            host.ip(f"link add eth1 index 10 type veth peer name second{number} netns {switch.namespace}")
            switch.ip(f"link set second{number} master br1 up")
            host.ip(f"address add 10.78.0.{10 + number}/24 dev eth1")
            host.ip("link set eth1 up")
        yield eight


def assert_healthy(all_ran: Sequence[Ran], *, with_torch: bool = False) -> None:
    assert [(run.code, run.slugs) for run in all_ran] == [(0, set())] * len(all_ran), [
        run.report["findings"] for run in all_ran
    ]
    first = next(run for run in all_ran if "phases" in run.report)
    phases = {phase["name"]: phase for phase in first.report["phases"]}
    tested = (*TESTED, "gloo") if with_torch else TESTED
    assert {name for name, one in phases.items() if one["passed"] == "pass"} == set(tested)
    assert phases["nccl"]["passed"] == "not tested"
    assert phases["nccl"]["reason"]
    if not with_torch:
        assert (phases["gloo"]["passed"], phases["gloo"]["reason"]) == ("not tested", "--quick")
    assert not first.report["absent"]
    assert not first.report["strangers"]


@pytest.mark.parametrize(("number", "times"), [(2, 2), (3, 1), (8, 1)])
def test_with_a_docker0_and_a_second_network(hosts: list[Host], number: int, times: int) -> None:
    for _ in range(times):
        all_ran = netcheck(hosts[:number])
        assert_healthy(all_ran)
        assert len(all_ran[0].report["nodes"]) == number
        assert len(all_ran[0].report["matrix"]["links"]) == number * (number - 1) // 2


def test_with_torch(hosts: list[Host]) -> None:
    assert_healthy(netcheck(hosts[:2], "--full"), with_torch=True)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)], ids=["master last", "master in the middle"])
def test_in_any_order(hosts: list[Host], order: tuple[int, ...]) -> None:
    running = []
    for rank in order:
        running.append(
            start(
                hosts[rank],
                *("--json", "--quick", "--master-addr", MASTER, "--nnodes", "3", "--node-rank", str(rank)),
            )
        )
        time.sleep(0.7)
    assert_healthy([one.end() for one in running])


def test_without_node_ranks(hosts: list[Host]) -> None:
    assert_healthy(netcheck(hosts[:3], ranks=False))


def test_with_one_name_for_all() -> None:
    with network("node", "node", "node") as three:
        for number, host in enumerate(three, 1):
            host.hosts(f"127.0.0.1 localhost\n10.77.0.{10 + number} node\n")
        all_ran = netcheck(three)
    assert_healthy(all_ran)
    assert len(all_ran[0].report["nodes"]) == 3


def test_with_ipv6_alone() -> None:
    with network("n1", "n2", "n3") as three:
        names = [f"{add_ipv6(host)} {host.hostname}" for host in three]
        for host in three:
            take_ipv4(host)
            host.hosts("\n".join(["::1 localhost", *names]) + "\n")
        assert_healthy(netcheck(three, "--master-addr", "fd77::11"))
