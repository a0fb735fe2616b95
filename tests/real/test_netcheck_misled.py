"""A master at which the nodes can't meet whatever else is right: localhost, this host itself, another host's address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import Ran, start

pytestmark = pytest.mark.root

UNREACHABLE = "master-addr-unreachable"


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, ...]]:
    with network("n1", "n2") as made:
        yield tuple(made)


@pytest.fixture(scope="module")
def localhost(hosts: tuple[Host, ...]) -> list[Ran]:
    given = ("--quick", "--json", "--master-addr", "localhost", "--nnodes", "2", "--wait", "3")
    return [one.end() for one in [start(host, *given, "--node-rank", str(rank)) for rank, host in enumerate(hosts)]]


@pytest.mark.parametrize("rank", [0, 1])
def test_localhost_is_each_node_itself(localhost: list[Ran], rank: int) -> None:
    ran = localhost[rank]
    assert ran.code == 1
    assert ran.slugs == {UNREACHABLE}
    first, *_ = ran.stderr.splitlines()
    assert "localhost means each node itself" in first
    own = f"--master-addr 10.77.0.1{rank + 1} --nnodes 2 --node-rank 0"
    assert own in first
    assert "--master-addr localhost" not in ran.stderr + "".join(ran.commands(UNREACHABLE))
    assert any("--master-addr 10.77.0.1" in command for command in ran.commands(UNREACHABLE))


@pytest.mark.parametrize("master", ["::1", "[::1]", "127.0.0.1", "10.77.0.11"])
def test_a_host_that_is_the_master_itself(hosts: tuple[Host, ...], master: str) -> None:
    ran = start(hosts[0], "--quick", "--json", "-v", "--master-addr", master).end()
    assert ran.code == 1
    (found,) = ran.findings(UNREACHABLE)
    assert found["summary"].startswith("n1 is the master itself, and nobody listens at ")
    assert "--master-addr 10.77.0.11 --quick --nnodes N --node-rank 0" in ran.commands(UNREACHABLE)[0]
    assert not any("nft" in command for command in ran.commands(UNREACHABLE))
    assert "only netcheck looks" not in ran.stdout
    assert "only this side was looked at" in ran.stdout


def test_node_0_elsewhere_doesnt_sit_out_the_wait(hosts: tuple[Host, ...]) -> None:
    given = ("--quick", "--json", "--master-addr", "10.77.0.12", "--nnodes", "2", "--node-rank", "0", "--wait", "300")
    ran = start(hosts[0], *given).end(60)
    assert ran.code == 1
    assert "10.77.0.12 isn't an address of n1, which was started as node 0" in ran.stderr.splitlines()[0]
    assert ran.slugs == {UNREACHABLE}
