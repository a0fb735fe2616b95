"""What a process may do that waits for ever, thread by thread."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddpdoctor.facts.processes import Process, ThreadActivity
from ddpdoctor.processes.signs_of_life import signs_of_life, worked_between

WATCHED = 0.25


def loop(switches: int = 25, cpu: float = 0.002, name: str = "gloo_tcp_loop") -> ThreadActivity:
    return ThreadActivity(name=name, switches=switches, cpu=cpu)


def waiting(*threads: ThreadActivity, rest: int = 0, cores: float = 0.0, **more: Any) -> Process:
    """A rank of these polling threads; what its other threads do together."""
    facts = {
        "recent_threads": threads,
        "recent_switches": sum(thread.switches for thread in threads) + rest,
        "recent_cpu": sum(thread.cpu for thread in threads) + cores,
        "recent_bytes": 0,
        "writes_to": (),
    }
    return Process(pid=7, start=7, parent=1, name="python", **{**facts, **more})


@pytest.mark.parametrize("groups", [1, 3, 8, 40])
def test_each_group_has_a_loop_of_its_own(groups: int) -> None:
    assert not list(signs_of_life(waiting(*[loop()] * groups, rest=2), WATCHED))


def test_a_gloo_group_beside_groups_of_nccl() -> None:
    watchdogs = [loop(3, 0.001, "pt_nccl_watchdg")] * 6
    assert not list(signs_of_life(waiting(loop(), *watchdogs, rest=8), WATCHED))


@pytest.mark.parametrize(
    ("busy", "told"),
    [
        (waiting(*[loop()] * 3, loop(60)), "its threads woke up 135 times"),
        (waiting(*[loop()] * 3, loop(2), rest=12), "its threads woke up 89 times"),
        (waiting(*[loop()] * 3, loop(cpu=0.2)), "it uses 0.21 cores"),
        (waiting(*[loop()] * 3, cores=0.1), "it uses 0.11 cores"),
        (waiting(loop(name="uploads")), "its threads woke up 25 times"),
        (waiting(loop(3, 0.001, "pt_nccl_heartbt"), rest=8), "its threads woke up 11 times"),
    ],
)  # fmt: skip
def test_the_rest_that_others_may_take_is_nobodys(busy: Process, told: str) -> None:
    """One that works is seen however many others of that name only poll, and however few."""
    (said,) = signs_of_life(busy, WATCHED)
    assert said.startswith(told)


def test_between_two_looks_polling_is_no_work() -> None:
    first = waiting(*[loop()] * 20, cpu_seconds=100.0)
    later = msgspec.structs.replace(first, cpu_seconds=100.2)
    assert not worked_between(first, later, 5.0)
    assert worked_between(first, msgspec.structs.replace(first, cpu_seconds=100.5), 5.0)
    assert worked_between(first, msgspec.structs.replace(waiting(), cpu_seconds=100.2), 5.0)
