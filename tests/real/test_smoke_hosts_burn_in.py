"""A burn-in over two hosts: one that is healthy, one rank that is slow, and Ctrl-C on one of the hosts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.real.test_smoke_hosts import commands_on, fates, smoke, started
from tests.support.namespaces import Host, network

pytestmark = [pytest.mark.root, pytest.mark.slow]

ONE_RANK = ("--nproc", "1", "--stages", "barrier")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with network("n1", "n2") as made:
        yield made
        until = time.monotonic() + 60
        while left := [name for host in made for name in commands_on(host)]:
            assert time.monotonic() < until, f"still runs: {left}"
            time.sleep(0.1)


@pytest.mark.thorough
def test_a_slow_rank_is_named_with_its_host(hosts: list[Host]) -> None:
    slow = {"rank": 1, "stage": "burn-in", "kind": "slow"}
    for seconds in (8, 30, 90):
        first, second = smoke(hosts, *ONE_RANK, "--duration", f"{seconds}s", "--timeout", "60", fault=slow)
        if not any("too short" in each["reason"] for each in first.report["not_tested"]):
            break
    assert (first.code, second.code) == (0, 0), first.stdout + first.stderr
    assert fates(first) == {0: ("n1", "finished", "shutdown"), 1: ("n2", "finished", "shutdown")}
    [finding] = [one for one in first.report["findings"] if one["slug"] == "smoke-slow-rank"]
    assert finding["summary"].startswith("Rank 1 on n2 takes ")
    told = first.report["smoke"]["burn_in"]
    assert [watch["host"] for watch in told["hosts"]] == ["n1", "n2"]
    assert all(watch["memory"] for watch in told["hosts"])


@pytest.mark.thorough
def test_ctrl_c_on_one_host_ends_the_burn_in_of_both(hosts: list[Host]) -> None:
    running = started(hosts, *ONE_RANK, "--duration", "1h")
    running[1].wait_for_line("burn-in")
    time.sleep(2)
    os.kill(running[1].process.pid, signal.SIGINT)
    first, second = (process.end(90) for process in running)
    assert (first.code, second.code) == (0, 130), first.stderr + second.stderr
    assert first.report["smoke"]["burn_in"]["stopped"] == "Ctrl-C"
    assert fates(first) == {0: ("n1", "finished", "shutdown"), 1: ("n2", "finished", "shutdown")}
    assert "Stopped. The ranks ended their burn-in" in second.stderr
