"""Ending leftovers: real processes, judged by made-up facts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.fixes.leftovers import targets_of
from ddpdoctor.processes.leftovers import ending as module
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverEnding, LeftoverLook, end
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Fate
from tests.support.process_trees import COLLECTIVES, ELSEWHERE, ME, Host
from tests.support.running_jobs import start_time, state
from tests.support.segments import make, nccl_name

Changed = Callable[[LeftoverLook], LeftoverLook]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    yield from _started("import time; print('ready', flush=True); time.sleep(1000)")


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[str]]:
    yield from _started(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
    )


def _started(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def look_at(process: subprocess.Popen[str], **facts: Any) -> LeftoverLook:
    """A host on which that process is the only rank of a dead job."""
    host = Host(Random(1))
    host.rank(0, 1, **{"pid": process.pid, "start": start_time(process.pid), "stack": COLLECTIVES[0], **facts})
    processes, gpus = host.facts()
    shared = SharedMemory(size=1 << 30, free=1 << 30)
    return LeftoverLook(processes=processes, gpus=gpus, shared_memory=shared, at=time.monotonic() - 10)


def ended(first: LeftoverLook, second: LeftoverLook | None = None) -> list[LeftoverEnding]:
    """What became of all that the first look proves."""
    chosen = [leftover for leftover in first.leftovers if leftover.proven]
    assert chosen
    ending = Endings()
    then = second or msgspec.structs.replace(first, at=first.at + 10)
    end(chosen, first, lambda: then, ending)
    return ending.all


def lives(process: subprocess.Popen[str]) -> bool:
    return state(process.pid) not in ("", "Z")


def test_a_leftover_is_ended(sleeper: subprocess.Popen[str]) -> None:
    (one,) = ended(look_at(sleeper))
    assert one.fate is Fate.ENDED
    assert sleeper.wait(5) == -15


def test_one_that_ignores_sigterm_is_killed(stubborn: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGTERM_SECONDS", 0.2)
    (one,) = ended(look_at(stubborn))
    assert one.fate is Fate.KILLED
    assert stubborn.wait(5) == -9


def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[str]) -> None:
    (one,) = ended(look_at(sleeper, start=start_time(sleeper.pid) - 1))
    assert one.fate is Fate.GONE
    assert lives(sleeper)


@pytest.mark.parametrize(
    "facts",
    [
        {"recent_cpu": 0.5},
        {"cpu_seconds": 101.0},
        {"writes_to": ("/data/step-1000.pt",)},
        {"uid": ME + 1},
        {"tracer": 7},
        {"stack": ELSEWHERE[0]},
        {"stack": COLLECTIVES[1]},
        {"stack": Unknown("py-spy isn't installed")},
        {"role": "gone"},
    ],
)
def test_the_second_look_has_the_last_word(sleeper: subprocess.Popen[str], facts: dict[str, Any]) -> None:
    second = look_at(sleeper, **({"pid": 5000, "start": 7} if facts == {"role": "gone"} else facts))
    (one,) = ended(look_at(sleeper), msgspec.structs.replace(second, at=second.at + 10))
    assert one.fate is Fate.LEFT
    assert one.reason
    assert lives(sleeper)


def test_one_that_has_started_something_since_is_left(sleeper: subprocess.Popen[str]) -> None:
    first = look_at(sleeper)
    host = Host(Random(1))
    rank = host.rank(0, 1, pid=sleeper.pid, start=start_time(sleeper.pid))
    host.worker(parent=rank.pid, age=50.0, pid=4500)
    processes, gpus = host.facts()
    second = LeftoverLook(processes=processes, gpus=gpus, shared_memory=first.shared_memory, at=first.at + 10)
    (one,) = ended(first, second)
    assert one.fate is Fate.LEFT
    assert lives(sleeper)


def test_without_pidfd_nothing_is_ended(sleeper: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    (one,) = ended(look_at(sleeper))
    assert one.fate is Fate.LEFT
    assert "pinned" in one.reason
    assert lives(sleeper)


def test_stopped_before_the_second_look_nothing_is_ended(sleeper: subprocess.Popen[str]) -> None:
    def stop() -> LeftoverLook:
        raise StoppedBySignal(130)

    first, ending = look_at(sleeper), Endings()
    with pytest.raises(StoppedBySignal):
        end([leftover for leftover in first.leftovers if leftover.proven], first, stop, ending)
    assert not ending.describe()
    assert lives(sleeper)


def test_doubts_are_never_ended(sleeper: subprocess.Popen[str]) -> None:
    first, ending = look_at(sleeper, terminal=True), Endings()
    assert first.leftovers
    end(first.leftovers, first, lambda: first, ending)
    assert not ending.all
    assert lives(sleeper)


@pytest.fixture
def segment() -> Iterator[Path]:
    path = make(Path("/dev/shm", nccl_name()))
    yield path
    with suppress(FileNotFoundError):
        path.unlink()


def with_segment(path: Path) -> LeftoverLook:
    status = path.stat()
    one = Segment(path=str(path), size=4096, uid=ME, user="ann", age=99.0, device=status.st_dev, inode=status.st_ino)
    processes, gpus = Host(Random(1)).facts()
    shared = SharedMemory(size=1 << 30, free=1 << 30, stale=(one.path,), stale_size=4096, segments=(one,))
    return LeftoverLook(processes=processes, gpus=gpus, shared_memory=shared, at=time.monotonic() - 10)


def test_a_segment_is_removed(segment: Path) -> None:
    (one,) = ended(with_segment(segment))
    assert one.fate is Fate.REMOVED
    assert not segment.exists()


def test_a_segment_of_the_same_name_is_another(segment: Path) -> None:
    first = with_segment(segment)
    kept = segment.with_suffix(".old")
    segment.rename(kept)
    try:
        segment.write_bytes(b"new")
        (one,) = ended(first)
    finally:
        kept.unlink()
    assert one.fate is Fate.LEFT
    assert segment.read_bytes() == b"new"


def test_a_segment_that_is_used_again_stays(segment: Path) -> None:
    first = with_segment(segment)
    second = msgspec.structs.replace(first, shared_memory=SharedMemory(size=1 << 30, free=1 << 30))
    (one,) = ended(first, second)
    assert one.fate is Fate.LEFT
    assert segment.exists()


def test_whose_segments_are_proven(segment: Path) -> None:
    first = with_segment(segment)
    assert isinstance(first.shared_memory, SharedMemory)

    def judged(**facts: Any) -> Leftover:
        one = msgspec.structs.replace(first.shared_memory.segments[0], **facts)  # type: ignore[union-attr]
        shared = msgspec.structs.replace(first.shared_memory, segments=(one,))
        (found,) = msgspec.structs.replace(first, shared_memory=shared).leftovers
        return found

    assert judged().proven
    assert not judged(uid=0).proven
    assert not judged(wanted_by="torch_shm_manager (pid 7)").proven
    assert not judged(inode=0).proven


@pytest.mark.parametrize(
    ("command", "targets"),
    [
        ("ddpdoctor zombies --kill 4711 4712", ("4711", "4712")),
        ("ddpdoctor zombies --kill /dev/shm/nccl-x", ("/dev/shm/nccl-x",)),
        ("ddpdoctor zombies --kill", ()),
        ("ddpdoctor zombies", ()),
        ("ddpdoctor zombies --kill --yes 4711", ()),
        ("ddpdoctor zombies --kill 4711; rm -rf /", ()),
        ("ddpdoctor zombies --kill '", ()),
        ("kill 4711", ()),
    ],
)
def test_which_commands_are_ours_to_carry_out(command: str, targets: tuple[str, ...]) -> None:
    assert targets_of(command) == targets
