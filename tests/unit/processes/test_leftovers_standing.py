"""Where the ranks of a job stand decides whether it is left over, and what is said of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Processes, RankPlace
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.leftovers.rank_stacks import busy_thread, ranks_to_look_at
from tests.support.process_trees import COLLECTIVES, ELSEWHERE, TORCH, Frame, Host

READS = (Frame("upload", "/home/ann/store.py", 7), Frame("run", "/usr/lib/python3.11/threading.py", 975))
PINS = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 327),
    Frame("_pin_memory_loop", f"{TORCH}/utils/data/_utils/pin_memory.py", 53),
)


def two_ranks(**facts: Any) -> tuple[Host, list[Leftover]]:
    """Rank 0 with these facts, and rank 1, which waits in a collective."""
    host = Host(Random(1))
    host.rank(0, 2, **facts)
    host.rank(1, 2)
    return host, list(left_by_processes(*host.facts()))


def listed(host: Host) -> Processes:
    return host.facts()[0]


def test_both_in_collectives_are_proven() -> None:
    assert all(leftover.proven and not leftover.doubts for leftover in two_ranks()[1])


@pytest.mark.parametrize("stack", ELSEWHERE)
def test_one_elsewhere_is_a_doubt_for_all(stack: tuple[Frame, ...]) -> None:
    host, found = two_ranks(stack=stack)
    first = listed(host).listed[
        [entry.place is not None and entry.place.rank == 0 for entry in listed(host).listed].index(True)
    ]
    words = {leftover.pid: " ".join(leftover.doubts) for leftover in found}
    assert len(found) == 2
    for leftover in found:
        assert not leftover.proven
        assert leftover.command == f"ps -o pid,user,lstart,stat,args -p {leftover.pid}"
        assert not leftover.then
        assert words[leftover.pid].endswith(", and not in a collective")
        assert ("it is in " if leftover.pid == first.pid else f"rank 0 of its job (pid {first.pid}) is in ") in words[
            leftover.pid
        ]


def test_where_no_stack_is_told_the_look_comes_before_the_kill() -> None:
    _, found = two_ranks(stack=Unknown("py-spy isn't installed"))
    assert {leftover.then for leftover in found} == {f"kill {leftover.pid}" for leftover in found}
    assert all("stands can't be told: py-spy isn't installed" in one.doubts[0] for one in found)


@pytest.mark.parametrize("facts", [{"recent_cpu": 0.9}, {"recent_bytes": 1 << 20}])
def test_nobody_is_told_to_kill_what_works(facts: dict[str, Any]) -> None:
    _, found = two_ranks(**facts)
    assert [leftover.then for leftover in found] == ["", ""]


def test_stacks_are_read_of_quiet_orphans_and_their_mates_alone() -> None:
    quiet, _ = two_ranks(recent_cpu=0.9)
    assert len(ranks_to_look_at(listed(quiet))) == 2
    busy = Host(Random(1))
    for number in range(2):
        busy.rank(number, 2, recent_cpu=0.9)
    assert not ranks_to_look_at(listed(busy))
    shell = busy.add(name="bash")
    busy.rank(0, 1, parent=shell.pid, extra={"MASTER_PORT": "29999"})
    assert not ranks_to_look_at(listed(busy))


def test_a_thread_beside_the_main_one_may_be_at_work() -> None:
    assert busy_thread((("uploads", READS),)) == "its thread uploads is in upload (store.py:7)"
    assert not busy_thread((("pins", PINS), ("autograd", COLLECTIVES[0])))


def test_a_rank_in_torchruns_shell_is_an_orphan_in_doubt() -> None:
    host = Host(Random(1))
    settings = (Setting("RANK", "0"), Setting("TORCHELASTIC_RUN_ID", "none"))
    shell = host.add(name="bash", executable="/usr/bin/bash", settings=settings, age=60_000.0)
    facts: dict[str, Any] = {"parent": shell.pid, "session": shell.pid, "age": 50_000.0}
    rank = host.rank(0, 1, **facts)
    (one,) = left_by_processes(*host.facts())
    assert one.pid == rank.pid
    assert one.doubts[0] == f"bash (pid {shell.pid}), which started it, is still there, and may have more to do"
    host.change(shell, terminal=True)
    assert not list(left_by_processes(*host.facts()))


def test_only_the_ranks_of_this_host_may_be_missing_in_what_is_told() -> None:
    host = Host(Random(1))
    host.rank(0, 2, place=RankPlace(rank=0, world_size=2, source="RANK"))
    (one,) = left_by_processes(*host.facts())
    assert "how many ranks of its job run on this host isn't told (LOCAL_WORLD_SIZE)" in one.doubts
