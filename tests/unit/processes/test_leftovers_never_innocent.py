"""Over thousands of made-up hosts: nobody innocent is ever called a proven leftover, and real ones are."""

from __future__ import annotations

from random import Random

import pytest

from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from tests.support.process_trees import (
    DEAD,
    INNOCENT,
    UNDER_SUBREAPERS,
    Filler,
    Host,
    below_a_subreaper,
    random_host,
    tasks_of_a_step,
    with_less_told,
)


def proven(host: Host) -> list[Leftover]:
    return [process for process in left_by_processes(*host.facts()) if process.proven]


def wrongly_ended(host: Host) -> list[str]:
    """Whom `--kill` would end though the host's maker says that it lives."""
    names = {process.identity: f"{process.name} {process.pid} {process.command}" for process in host.processes}
    ended = [identity for one in proven(host) for identity in (one.identity, *one.children) if identity]
    return [names[one] for one in ended if one not in host.dead]


def judge(seeds: range) -> None:
    clear = found = 0
    for seed in seeds:
        host = random_host(Random(seed))
        assert not wrongly_ended(host), f"seed {seed}"
        ended = {one.identity for one in proven(host)}
        clear += len(host.clear)
        found += len(host.clear & ended)
        assert not wrongly_ended(with_less_told(host)), f"seed {seed}, with less told"
    assert clear > len(seeds) / 2
    assert found > 0.8 * clear


def test_nobody_innocent_in_a_thousand_hosts() -> None:
    judge(range(1_000))


@pytest.mark.thorough
def test_nobody_innocent_in_ten_thousand_hosts() -> None:
    judge(range(1_000, 11_000))


@pytest.mark.parametrize("fill", INNOCENT)
def test_each_innocent_by_itself(fill: Filler) -> None:
    for seed in range(40):
        host = Host(Random(seed))
        fill(host)
        assert not host.dead
        assert not proven(host), f"seed {seed}"


@pytest.mark.parametrize("fill", UNDER_SUBREAPERS)
def test_an_orphan_is_named_whoever_adopted_it(fill: Filler) -> None:
    """With the parent's name and pid, and as a doubt alone."""
    for seed in range(60):
        host = Host(Random(seed))
        fill(host)
        parents = {process.identity: process.parent for process in host.processes}
        found = {process.identity: process for process in left_by_processes(*host.facts()) if process.identity}
        assert host.named <= found.keys(), f"seed {seed}"
        for identity in host.named:
            assert not found[identity].proven
            assert f"(pid {parents[identity]}), is not known to be an init" in found[identity].doubts[0]


@pytest.mark.parametrize("fill", [below_a_subreaper, tasks_of_a_step])
def test_a_healthy_job_below_a_subreaper_is_not_even_in_doubt(fill: Filler) -> None:
    for seed in range(60):
        host = Host(Random(seed))
        fill(host)
        assert not list(left_by_processes(*host.facts())), f"seed {seed}"


@pytest.mark.parametrize("fill", DEAD)
def test_each_dead_by_itself(fill: Filler) -> None:
    for seed in range(40):
        host = Host(Random(seed))
        fill(host)
        assert host.dead == {
            identity for one in proven(host) for identity in (one.identity, *one.children) if identity
        }, f"seed {seed}"
