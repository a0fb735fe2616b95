"""netcheck's tokens and exit codes: what is printed can be typed, and all nodes end alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ
from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, Ran, Running, start

pytestmark = pytest.mark.root

PUBLIC = "203.0.113.11"
TOKEN = re.compile(r"DDPDOCTOR_TOKEN=([a-z2-9]{4}-[a-z2-9]{4}-[a-z2-9]{4})")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Three, which have addresses of the documentation's net, too: no private one."""
    with network("n1", "n2", "n3") as made:
        for number, host in enumerate(made, 11):
            host.ip(f"address add 203.0.113.{number}/24 dev eth0")
        yield made


def test_the_printed_commands_meet(hosts: list[Host], tmp_path: Path) -> None:
    """By hand at a public address: node 0 makes up a token, and the same goes into all commands."""
    shim = tmp_path / "ddpdoctor"
    shim.write_text(f'#!/bin/sh\nexec {" ".join(command())} "$@"\n')
    shim.chmod(0o755)
    given = ["--quick", "--master-addr", PUBLIC, "--nnodes", "2", "--node-rank", "0", "--wait", "3"]
    alone = start(hosts[0], *given).end()
    assert alone.code == 1
    tokens = set(TOKEN.findall(alone.stdout + alone.stderr))
    assert len(tokens) == 1
    assert "same token goes on every node" in alone.stdout
    commands = re.findall(r"^ +(DDPDOCTOR_TOKEN=.*)$", alone.stdout, re.MULTILINE)
    assert [command.partition(" ")[2] for command in commands] == [
        f"ddpdoctor netcheck --master-addr {PUBLIC} --nnodes 2 --node-rank {rank} --wait 3 --quick" for rank in (1, 0)
    ]
    environ = plain_environ() | {"PATH": f"{tmp_path}:{plain_environ()['PATH']}"}
    pairs = zip((hosts[1], hosts[0]), commands, strict=True)
    again = [host.start("sh", "-c", one, environ=environ) for host, one in pairs]
    assert [(process.communicate(timeout=60), process.returncode)[1] for process in again] == [0, 0]


def test_no_report_has_the_token(hosts: list[Host]) -> None:
    environ = {"DDPDOCTOR_TOKEN": "open-sesame"}
    given = ["--json", "-v", "--quick", "--master-addr", PUBLIC, "--nnodes", "3", "--wait", "3"]
    ran = [one.end() for one in [start(host, *given, environ=environ) for host in hosts[:2]]]
    assert [run.code for run in ran] == [1, 1]
    assert not any("open-sesame" in run.stdout for run in ran)
    (absent,) = ran[0].report["absent"]
    assert absent["command"].startswith("DDPDOCTOR_TOKEN=... ddpdoctor netcheck ")


def both(
    hosts: list[Host], port: int, *given: str, zero: tuple[str, ...] = (), one: tuple[str, ...] = ()
) -> list[Running]:
    """Node 0 and node 1 of a job of two."""
    shared = ["--json", "--quick", "--master-addr", MASTER, "--master-port", str(port), "--nnodes", "2", "--wait", "6"]
    return [start(host, *shared, *given, *own) for host, own in zip(hosts, (zero, one), strict=False)]


def slugs(ran: list[Ran]) -> list[set[str]]:
    return [run.slugs for run in ran]


def test_whoever_is_turned_away_ends_as_node_0_does(hosts: list[Host]) -> None:
    jobs = {
        "other token": both(hosts, 29601, zero=("--token", "x"), one=("--token", "y")),
        "no token": both(hosts, 29602, zero=("--token", "x")),
        "rank too high": both(hosts, 29603, zero=("--node-rank", "0"), one=("--node-rank", "2")),
        "other count": both(hosts, 29604, zero=("--node-rank", "0"), one=("--nnodes", "3")),
    }
    ends = {name: [one.end() for one in running] for name, running in jobs.items()}
    assert {name: [run.code for run in ran] for name, ran in ends.items()} == {name: [1, 1] for name in jobs}
    assert slugs(ends.pop("rank too high")) == [{"duplicate-rank"}] * 2
    for ran in ends.values():
        assert slugs(ran) == [{"rdzv-missing-node"}] * 2
        assert all(finding["fixes"] for side in ran for finding in side.findings("rdzv-missing-node"))
    assert any("DDPDOCTOR_TOKEN=... " in command for command in ends["no token"][1].commands("rdzv-missing-node"))


def test_node_0_says_whether_warnings_count(hosts: list[Host]) -> None:
    """The port in the environment contradicts the flag, which is a warning."""
    environ = {"MASTER_PORT": "1"}
    shared = ["--quick", "--json", "--master-addr", MASTER, "--nnodes", "2"]
    by_zero = [
        start(host, *shared, "--master-port", "29605", *strict, environ=environ)
        for host, strict in zip(hosts, (["--strict"], []), strict=False)
    ]
    by_one = [
        start(host, *shared, "--master-port", "29606", *strict, environ=environ)
        for host, strict in zip(hosts, ([], ["--strict"]), strict=False)
    ]
    assert [one.end().code for one in by_zero] == [1, 1]
    ran = [one.end() for one in by_one]
    assert [run.code for run in ran] == [0, 0]
    assert "--strict has no effect here: node 0 runs without it" in ran[1].stderr


def test_a_port_that_only_root_may_take(hosts: list[Host]) -> None:
    given = ["netcheck", "--quick", "--master-addr", MASTER, "--master-port", "80", "--nnodes", "2", "--wait", "2"]
    unprivileged = ("setpriv", "--bounding-set=-net_bind_service", *command(*given, "--node-rank", "0"))
    zero = hosts[0].start(*unprivileged, environ=plain_environ())
    one = start(hosts[1], *given[1:], "--node-rank", "1").end()
    said = zero.communicate(timeout=60)[0]
    assert (zero.returncode, one.code) == (1, 1)
    assert "is one that this user may not listen on" in said


def test_one_node_is_not_called_fine_of_what_is_between_nodes(hosts: list[Host]) -> None:
    ran = start(hosts[0], "--quick", "--master-addr", MASTER, "--nnodes", "1").end()
    assert ran.code == 0
    assert "with one node nothing between nodes was tested" in " ".join(ran.stdout.split())


def test_of_two_tokens_both_sides_name_node_0_s(hosts: list[Host]) -> None:
    given = ["--quick", "--master-addr", MASTER, "--nnodes", "2", "--wait", "3", "--node-rank"]
    pairs = zip(hosts, ("the-right-one", "the-wrong-one"), strict=False)
    nodes = [
        start(host, *given, str(rank), environ={"DDPDOCTOR_TOKEN": token}) for rank, (host, token) in enumerate(pairs)
    ]
    zero, one = [node.end() for node in nodes]
    assert (zero.code, one.code) == (1, 1)
    assert "came with another token" in " ".join(zero.stdout.split())
    assert "DDPDOCTOR_TOKEN=the-right-one ddpdoctor netcheck" in zero.stdout
    assert "DDPDOCTOR_TOKEN=... ddpdoctor netcheck" in one.stdout
    assert "the-wrong-one" not in zero.stdout + one.stdout + one.stderr
