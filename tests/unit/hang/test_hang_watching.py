"""The look at a job whose processes come and go, on plain sleeping Pythons."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.facts.hang import Hang, Watched
from ddpdoctor.facts.processes import Process, Processes, ProcessRole, RankPlace
from ddpdoctor.hang import watching
from ddpdoctor.hang.fixes import full_stacks
from ddpdoctor.hang.watching import backend_of, watch
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.jobs import TrainingJob

CODE = "import time\ndef wait_here():\n    print(flush=True)\n    time.sleep(600)\nwait_here()\n"


@pytest.fixture
def asleep() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two of them, that have said that they are there."""
    started = [subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
            until = time.monotonic() + 60
            while b"nanosleep" not in Path(f"/proc/{process.pid}/wchan").read_bytes():
                assert time.monotonic() < until, "it doesn't sleep"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()


def process(pid: int, rank: int | None, **more: object) -> Process:
    stat = Proc().stat(pid)
    given = {
        "pid": pid,
        "start": getattr(stat, "start", 1),
        "parent": 1,
        "age": 60.0,
        "role": ProcessRole.RANK,
        "place": None if rank is None else RankPlace(rank=rank, world_size=2, source="RANK"),
    }
    return Process(**{**given, **more})  # type: ignore[arg-type]


def looked(*ranks: Process, **more: object) -> Hang:
    job = TrainingJob(**{"name": "4711", "ranks": ranks, "world_size": 2, **more})  # type: ignore[arg-type]
    return asyncio.run(watch(job, Processes(), "node01", 1))


def test_two_that_stay(asleep: list[subprocess.Popen[bytes]]) -> None:
    began = time.monotonic()
    hang = looked(*(process(one.pid, rank) for rank, one in enumerate(asleep)))
    assert [rank.rank for rank in hang.ranks] == [0, 1]
    for one in hang.ranks:
        assert one.watched is not None
        assert one.watched.still
        assert one.watched.samples > 10
        assert one.watched.within[0].function == "wait_here"
        assert [look.source for look in one.watched.looks] == ["py-spy"] * 2
    assert 1.0 <= hang.between <= time.monotonic() - began
    assert (hang.paused, hang.hidden) == (0.0, ())
    # Under pipx ddpdoctor's own programs are on nobody's PATH.
    (offered,) = full_stacks(hang, [], [asleep[0].pid])
    assert Path(offered.commands[0].split()[0]).is_file()


def test_one_ends_in_between(asleep: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def sample(pids: Sequence[int], seconds: int) -> dict[int, Watched]:
        asleep[1].kill()
        asleep[1].wait()
        return {}

    monkeypatch.setattr(watching, "sample", sample)
    hang = looked(*(process(one.pid, rank) for rank, one in enumerate(asleep)))
    assert hang.ranks[0].watched is not None
    assert (hang.ranks[1].watched, hang.ranks[1].gone) == (None, "it ended while it was looked at")


def test_one_ends_and_nobody_takes_note(asleep: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def sample(pids: Sequence[int], seconds: int) -> dict[int, Watched]:
        asleep[1].kill()
        while getattr(Proc().stat(asleep[1].pid), "state", "") != "Z":
            await asyncio.sleep(0.01)
        return {}

    monkeypatch.setattr(watching, "sample", sample)
    gone = looked(*(process(one.pid, rank) for rank, one in enumerate(asleep))).ranks[1]
    assert gone.watched is None
    assert gone.gone.startswith("Z: ")


def test_a_stranger_with_the_pid_of_a_rank_is_not_looked_at(asleep: list[subprocess.Popen[bytes]]) -> None:
    mine, stranger = (process(one.pid, rank) for rank, one in enumerate(asleep))
    hang = looked(mine, msgspec.structs.replace(stranger, start=stranger.start - 1))
    assert (hang.ranks[1].watched, hang.ranks[1].gone) == (None, "no such process")


def test_ranks_that_should_be_here_and_those_of_which_nobody_knows(asleep: list[subprocess.Popen[bytes]]) -> None:
    hang = looked(process(asleep[0].pid, 0), process(asleep[1].pid, None), expected=(0, 1))
    assert [(rank.rank, rank.gone) for rank in hang.ranks] == [(0, ""), (1, "no process on this host is this rank")]
    assert [str(asleep[1].pid) in sentence for sentence in hang.hidden] == [True]


def test_without_py_spy_the_kernel_is_asked_all_the_same(
    asleep: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpdoctor.probes.py_spy.py_spy", lambda: None)
    hang = looked(*(process(one.pid, rank) for rank, one in enumerate(asleep)))
    watched = hang.ranks[0].watched
    assert watched is not None
    assert (watched.last.frames, watched.last.source) == ((), "py-spy isn't installed")
    assert watched.still
    assert hang.between >= 1.0
    assert ["pip install py-spy" in sentence for sentence in hang.hidden] == [True]


def test_a_worker_is_watched_with_its_rank(asleep: list[subprocess.Popen[bytes]]) -> None:
    rank = process(asleep[0].pid, 0)
    worker = process(asleep[1].pid, None, role=ProcessRole.WORKER, parent=asleep[0].pid)
    [one] = looked(rank, others=(worker,)).ranks
    [seen] = one.workers
    assert (seen.pid, seen.samples > 10) == (asleep[1].pid, True)


def test_one_that_the_kernel_holds(tmp_path: Path) -> None:
    """Whoever starts a program waits uninterruptibly until that has begun: here for a pipe that nobody writes to."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    actions = f"[(os.POSIX_SPAWN_OPEN, 0, {os.fspath(pipe)!r}, os.O_RDONLY, 0)]"
    code = (
        f"import os\ndef start():\n    os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={actions})\nstart()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as held:
        until, looks = time.monotonic() + 60, [""]
        # While it starts it may wait for a disk, too, and go on.
        while set(looks[-20:]) != {"D"}:
            assert time.monotonic() < until, "it doesn't wait in the kernel"
            time.sleep(0.01)
            looks.append(getattr(Proc().stat(held.pid), "state", ""))
        one = looked(process(held.pid, 0)).ranks[0].watched
        assert held.poll() is None
        with pipe.open("wb"):
            assert held.wait(60) == 0
    assert one is not None
    assert [look.state for look in one.looks] == ["D", "D"]
    assert one.still
    assert one.last.frames[0].function == "start"


def test_the_backend_by_the_names_of_threads() -> None:
    def job(*marks: str) -> TrainingJob:
        return TrainingJob(name="1", ranks=(Process(pid=1, start=1, parent=0, marks=marks),))

    assert backend_of(job("gloo_tcp_loop", "pt_gloo_runloop")) == "gloo"
    assert backend_of(job("pt_nccl_watchdg", "gloo_tcp_loop")) == "nccl and gloo"
    assert backend_of(job()) == ""
