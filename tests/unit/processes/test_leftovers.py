"""What is said of leftovers, and what is never called clean without having been looked at."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.unknown import NotKnown, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import GpuHolder
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.processes.leftovers.all_kinds import blind_spots, leftovers_of
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.render_zombies import leftover_sections
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind
from ddpdoctor.report.terminal import Screen
from tests.support.fixture_hosts import HEALTHY, healthy_facts, to_snapshot
from tests.support.process_trees import ME, Host
from tests.support.registered_checks import find_check

HEALTHY_HOST = sorted(path.stem for path in HEALTHY.glob("*.json"))[0]
ROOM = SharedMemory(size=1 << 30, free=1 << 30)


def segments(*uids: int) -> SharedMemory:
    found = tuple(
        Segment(
            path=f"/dev/shm/nccl-3XkQz{number}",
            size=4096,
            uid=uid,
            user=f"user{uid}",
            age=99.0,
            device=1,
            inode=number + 1,
        )
        for number, uid in enumerate(uids)
    )
    return msgspec.structs.replace(ROOM, stale=tuple(one.path for one in found), segments=found)


def shown(host: Host, shared_memory: SharedMemory = ROOM) -> str:
    written = io.StringIO()
    facts = (*host.facts(), shared_memory)
    Screen(written, 100).show_sections(leftover_sections(leftovers_of(*facts), blind_spots(*facts)))
    return written.getvalue()


def test_nothing_left() -> None:
    assert shown(Host(Random(1))) == "Nothing is left over.\n"


def test_what_was_not_seen_is_said() -> None:
    host = Host(Random(1))
    host.unseen = "hidepid"
    assert "as far as could be seen" in shown(host)
    assert blind_spots(Unknown("no /proc"), Unknown("no NVML"), Unknown("no /dev/shm")) == (
        "Processes: not seen: no /proc",
        "GPUs: not seen: no NVML",
        "/dev/shm: not seen: no /dev/shm",
    )


def test_memory_that_nobody_owns_is_named_and_nothing_is_ended_for_it() -> None:
    processes, gpus = Host(Random(1)).facts()
    first = msgspec.structs.replace(gpus.devices[0], memory_used=30 << 30)
    held = msgspec.structs.replace(gpus, devices=(first, *gpus.devices[1:]))
    (one,) = leftovers_of(processes, held, ROOM)
    assert (one.kind, one.certainty, one.size) == (LeftoverKind.MEMORY, Certainty.DOUBT, 30 << 30)


@pytest.mark.parametrize("pid", [99_999, 0])
def test_a_holder_that_this_host_does_not_have_is_named_as_check_names_it(pid: int) -> None:
    """NVML lists a pid, and nobody has it: killed, and the driver kept its memory. Without a pid nothing can be said."""
    host = Host(Random(1))
    host.holders[2].append(GpuHolder(pid=pid, memory=30 << 30))
    processes, gpus = host.facts()
    found = leftovers_of(processes, gpus, ROOM)
    machine = to_snapshot(healthy_facts(HEALTHY_HOST)).machine
    assert isinstance(machine, Machine)
    environment = Environment(settings=())
    said = list(find_check("gpu-memory-unowned").predicate(gpus, processes, environment, Unknown("none"), machine))
    assert len(found) == len(said) == (1 if pid else 0)
    if pid:
        assert (found[0].kind, found[0].certainty, found[0].size, found[0].gpus) == (
            LeftoverKind.MEMORY,
            Certainty.DOUBT,
            30 << 30,
            (2,),
        )
        assert f"pid {pid} " in found[0].why
        assert f"Pid {pid} " in said[0].summary
        host.unseen = "hidepid"
        assert not leftovers_of(*host.facts(), ROOM)


def test_a_terminal_is_not_steered_by_a_command() -> None:
    host = Host(Random(1))
    host.rank(0, 1, command="python \x1b[2J train.py")
    assert "\x1b" not in shown(host)


@pytest.mark.parametrize(
    ("doubts", "more"),
    [(3, None), (4, "But: 1 more reason (--json tells them)"), (5, "But: 2 more reasons (--json tells them)")],
)
def test_of_many_doubts_it_is_said_how_many_are_not_shown(doubts: int, more: str | None) -> None:
    segment = Leftover(
        kind=LeftoverKind.SEGMENT,
        certainty=Certainty.DOUBT,
        what="/dev/shm/torch_1_2_0",
        why="nobody has it open",
        doubts=tuple(f"doubt {number}" for number in range(doubts)),
        path="/dev/shm/torch_1_2_0",
    )
    written = io.StringIO()
    Screen(written, 100).show_sections(leftover_sections((segment,), ()))
    said = [line.strip() for line in written.getvalue().splitlines() if "But: " in line]
    assert said == ["But: doubt 0", "But: doubt 1", "But: doubt 2", *([more] if more else [])]


def test_segments_are_told_together_by_owner() -> None:
    text = shown(Host(Random(1)), segments(ME, ME, 0))
    assert "2 segments in /dev/shm" in text
    assert "1 segment in /dev/shm" in text
    assert "NOT YOURS" in text
    assert "ddpdoctor zombies --kill /dev/shm/nccl-3XkQz0 /dev/shm/nccl-3XkQz1" in text


def test_only_ones_own_segments_are_for_check_to_remove() -> None:
    processes, _ = Host(Random(1)).facts()
    (finding,) = find_check("shm-stale-segments").predicate(segments(ME, 0), processes)
    assert [(fix.commands, fix.appliable) for fix in finding.fixes] == [
        (("ddpdoctor zombies --kill /dev/shm/nccl-3XkQz0",), True),
        (("rm -f /dev/shm/nccl-3XkQz1",), False),
    ]


def doubts(names: tuple[str, ...], **said: Any) -> list[tuple[str, ...]]:
    """Of segments of these names, which are ours. said: of /dev/shm."""
    found = tuple(Segment(path=f"/dev/shm/{name}", uid=ME, age=99.0, device=1, inode=7) for name in names)
    shared = msgspec.structs.replace(ROOM, stale=tuple(one.path for one in found), segments=found, **said)
    return [one.doubts for one in leftovers_of(*Host(Random(1)).facts(), shared) if one.kind is LeftoverKind.SEGMENT]


def test_what_may_be_meant_to_stay_is_in_doubt() -> None:
    assert doubts(("nccl-3XkQz1", "torch_20426_1055735120_0", "nccl-shm-send-5f3a9c01d2-0-1-0")) == [(), (), ()]
    for name in ("psm_2a6ecd0b", "sem.mp-n_vjzf9h"):
        assert doubts((name,)) == [
            ("Python keeps it for whoever knows its name, and a program may have left it there on purpose",)
        ]
    assert doubts(("nccl-config",)) == [("somebody may have chosen its name",)]
    assert doubts(("torch_cache.pt",)) == [("its name is none that NCCL, torch or Python gives",)]


def test_nothing_is_proven_while_a_process_is_closed_to_the_look() -> None:
    assert doubts(("nccl-3XkQz1",), closed=34) == [
        ("34 processes can't be looked into with the rights of this user, and may use it",)
    ]
    shared = msgspec.structs.replace(segments(ME), closed=1)
    assert "no process that can be seen has it mapped or open" in shown(Host(Random(1)), shared)
    with pytest.raises(
        NotKnown, match=r"^1 process can't be looked into .* may use the 1 segment that nobody else uses$"
    ):
        list(find_check("shm-stale-segments").predicate(shared, Host(Random(1)).facts()[0]))
