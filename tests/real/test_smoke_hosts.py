"""A smoke training over two and three hosts, healthy and sick: each is one run of `ddpdoctor smoke` on every host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, Ran, Running

pytestmark = pytest.mark.root

FEW = "all_reduce,training"
"""Stages that are enough where it isn't about them."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with network("n1", "n2", "n3") as made:
        yield made
        until = time.monotonic() + 60
        while left := [name for host in made for name in commands_on(host)]:
            assert time.monotonic() < until, f"still runs: {left}"
            time.sleep(0.1)


def commands_on(host: Host) -> list[str]:
    """Command lines of all processes in its namespace."""
    pids = subprocess.run(
        ["ip", "netns", "pids", host.namespace], check=True, capture_output=True, text=True, timeout=10
    ).stdout.split()
    return [" ".join(words_of(int(pid))) for pid in pids]


def words_of(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read().decode().split("\0")
    except OSError:
        return []


def started(
    hosts: Sequence[Host],
    *arguments: str,
    fault: Mapping[str, object] | None = None,
    ranks: bool = True,
    each: Sequence[Sequence[str]] = (),
) -> list[Running]:
    """smoke on all of them. each: arguments of each host; ranks: each is told which it is."""
    environ = {"DDPDOCTOR_SMOKE_FAULT": json.dumps(fault)} if fault else {}
    given = ["--json", "--master-addr", MASTER]
    given += [] if "--nnodes" in arguments else ["--nnodes", str(len(hosts))]
    return [
        Running(
            host,
            [
                *given,
                *(("--node-rank", str(number)) if ranks else ()),
                *arguments,
                *(each[number] if each else ()),
            ],
            environ,
            "smoke",
        )
        for number, host in enumerate(hosts)
    ]


def smoke(hosts: Sequence[Host], *arguments: str, **more: Any) -> list[Ran]:
    return [process.end(120) for process in started(hosts, *arguments, **more)]


def fates(ran: Ran) -> dict[int, tuple[str, str, str]]:
    """Rank to its host, its ending and its last stage."""
    return {
        rank["rank"]: (
            rank["host"],
            rank["ending"],
            next(
                (
                    stage["name"]
                    for stage in reversed(rank["stages"])
                    if stage["state"] not in ("not run", "not tested")
                ),
                "",
            ),
        )
        for rank in ran.report["smoke"]["ranks"]
    }


def test_two_hosts_with_unlike_numbers_of_ranks(hosts: list[Host]) -> None:
    """In order of arrival, too: only node 0 knows that it is the master."""
    first, second = smoke(hosts[:2], ranks=False, each=(["--nproc", "2"], ["--nproc", "1"]))
    assert (first.code, second.code) == (0, 0), first.stdout + first.stderr
    assert first.slugs == second.slugs == set()
    assert fates(first) == {
        0: ("n1", "finished", "shutdown"),
        1: ("n1", "finished", "shutdown"),
        2: ("n2", "finished", "shutdown"),
    }
    assert fates(second) == {2: ("n2", "finished", "shutdown")}
    report = first.report
    assert (report["verdict"], second.report["verdict"]) == ("ok", "ok")
    assert [(phase["name"], phase["passed"]) for phase in report["phases"]] == [
        ("join", "pass"),
        ("compare", "pass"),
        ("smoke", "pass"),
    ]
    assert report["smoke"]["world_size"] == 3
    states = {stage["name"]: stage["state"] for stage in report["smoke"]["ranks"][2]["stages"]}
    assert [states[name] for name in ("all_reduce", "training", "one process", "checkpoint")] == ["passed"] * 4


@pytest.mark.thorough
def test_a_rank_that_raises_on_the_third_of_three_hosts(hosts: list[Host]) -> None:
    fault = {"rank": 2, "stage": "training", "kind": "raise"}
    ran = smoke(hosts, "--nproc", "1", "--stages", FEW, fault=fault)
    assert [run.code for run in ran] == [1, 1, 1]
    assert [run.report["verdict"] for run in ran] == ["fail"] * 3
    (finding,) = ran[0].findings("smoke-rank-failed")
    assert (finding["node"], finding["rank"]) == ("n3", 2)
    assert "failed in training: RuntimeError: a fault for a test" in finding["summary"]
    assert ran[0].slugs == ran[2].slugs == {"smoke-rank-failed"}
    assert ran[1].slugs == set()
    assert fates(ran[0])[2] == ("n3", "raised", "training")


@pytest.mark.thorough
def test_a_rank_that_sleeps_while_the_other_hosts_train(hosts: list[Host]) -> None:
    fault = {"rank": 1, "stage": "training", "kind": "sleep"}
    ran = smoke(hosts[:2], "--nproc", "1", "--stages", FEW, "--timeout", "12", fault=fault)
    assert [run.code for run in ran] == [1, 1]
    (finding,) = ran[0].findings("smoke-hang")
    assert (finding["node"], finding["rank"]) == ("n2", 1)
    assert [finding["summary"] for finding in ran[1].findings("smoke-hang")] == [finding["summary"]]
    assert finding["summary"].startswith("rank 1 (n2) hangs in training")
    assert any("this rank sleeps now" in evidence["text"] for evidence in finding["evidence"])
    assert {rank: fate[1] for rank, fate in fates(ran[0]).items()} == {0: "hung", 1: "hung"}


@pytest.mark.thorough
def test_a_hostname_that_means_the_loopback(hosts: list[Host]) -> None:
    """Debian's 127.0.1.1: gloo tells the others to come there."""
    before = [f"{MASTER} n1", "10.77.0.12 n2"]
    for host in hosts[:2]:
        others = [one for one in before if not one.endswith(host.hostname)]
        host.hosts("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {host.hostname}", *others]) + "\n")
    try:
        ran = smoke(hosts[:2], "--nproc", "1", "--stages", FEW)
    finally:
        for host in hosts[:2]:
            host.hosts("\n".join(["127.0.0.1 localhost", *before, "10.77.0.13 n3"]) + "\n")
    assert [run.code for run in ran] == [1, 1]
    assert {fate[2] for fate in fates(ran[0]).values()} == {"process group"}
    assert ran[0].slugs == {"smoke-rank-failed", "hostname-resolves-loopback"}
    assert ran[0].nodes("hostname-resolves-loopback") == ["n1", "n2"]
    (finding,) = ran[0].findings("smoke-rank-failed")
    assert "in process group" in finding["summary"]
    ask = f"ddpdoctor netcheck --master-addr {MASTER} --nnodes 2 --node-rank "
    assert [command for command in ran[0].commands("smoke-rank-failed") if command.startswith(ask)] == [
        f"{ask}0",
        f"{ask}1",
    ]


@pytest.mark.thorough
def test_a_host_that_never_comes(hosts: list[Host]) -> None:
    (ran,) = smoke(hosts[:1], "--nnodes", "2", "--wait", "2")
    assert ran.code == 1
    assert ran.slugs == {"rdzv-missing-node"}
    assert f"ddpdoctor smoke --master-addr {MASTER} --nnodes 2 --node-rank 1 --wait 2" in ran.commands(
        "rdzv-missing-node"
    )
    (phase,) = [phase for phase in ran.report["phases"] if phase["name"] == "smoke"]
    assert (phase["passed"], phase["reason"]) == ("not tested", "only one node is there")


def pid_of(running: Running) -> int:
    """Of ddpdoctor itself: `ip netns exec` and `unshare` become it."""
    return running.process.pid


def until_training(running: Running) -> None:
    """Waits until ranks are being started there."""
    until = time.monotonic() + 60
    while not any("reaper.py" in one for one in commands_on(running.host)):
        assert running.process.poll() is None, running.process.communicate()
        assert time.monotonic() < until, "no rank was ever started"
        time.sleep(0.05)


@pytest.mark.thorough
def test_a_ctrl_c_on_one_host_ends_all(hosts: list[Host]) -> None:
    running = started(hosts[:2], "--nproc", "1", fault={"rank": 0, "stage": "training", "kind": "sleep"})
    until_training(running[1])
    time.sleep(0.5)
    os.kill(pid_of(running[1]), signal.SIGINT)
    first, second = (one.end() for one in running)
    assert second.code == 130
    assert "Stopped." in second.stderr
    assert first.code == 1
    (finding,) = first.findings("rdzv-missing-node")
    assert "n2 was lost during smoke: stopped by its user: Ctrl-C" in finding["summary"]


@pytest.mark.thorough
def test_a_doctor_that_is_killed_on_one_host(hosts: list[Host]) -> None:
    running = started(hosts[:2], "--nproc", "1", fault={"rank": 0, "stage": "training", "kind": "sleep"})
    until_training(running[1])
    time.sleep(0.5)
    os.kill(pid_of(running[1]), signal.SIGKILL)
    first, second = (one.end() for one in running)
    assert second.code == -signal.SIGKILL
    assert first.code == 1
    assert "n2 was lost during smoke" in first.findings("rdzv-missing-node")[0]["summary"]
    assert fates(first)[1][1] == "never came"
