"""Dumps of a job that runs now: gloo ranks that hang, and processes that stand for ranks whose dumps lie where torch puts them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.facts.processes import Process, ProcessRole, RankPlace
from ddpdoctor.hang.flight_recorder.collect_dumps import dumps_of, read_dumps
from ddpdoctor.probes.proc import Proc, Stat
from ddpdoctor.processes.jobs import TrainingJob
from tests.support import flight_recordings
from tests.support.command import plain_environ

RECORDED = Path(__file__).parents[2] / "fixtures" / "flight_recorder" / "lagging"


def test_the_dumps_of_a_job_that_hangs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, flight_recordings.__file__, "lagging", str(tmp_path)],
        env={**plain_environ(), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=90,
    )
    found = read_dumps([f"{tmp_path}/rank_?"])
    assert found.refused == ()
    calls = {recording.rank: recording.groups[0].entries[-1] for recording in found.recorded}
    assert {rank: call.number for rank, call in calls.items()} == {0: 4, 1: 4, 2: 3}
    assert {call.name for call in calls.values()} == {"gloo:all_reduce"}
    assert all(call.frames[2].path == flight_recordings.__file__ for call in calls.values())
    assert all(recording.written for recording in found.recorded)


@contextmanager
def rank(folder: Path, within: str = "", **settings: str) -> Iterator[TrainingJob]:
    """A process with these settings, in a job of its own. within: what a shell does in a mount namespace of its own before."""
    environ = {name: value for name, value in plain_environ().items() if name != "XDG_CACHE_HOME"}
    environ |= {"HOME": str(folder), **settings}
    command = [sys.executable, "-Ic", "print(flush=True); input()"]
    if within:
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", f'{within}; exec "$@"', "sh", *command]
    with subprocess.Popen(command, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            facts = Proc().stat(process.pid)
            assert isinstance(facts, Stat)
            place = RankPlace(rank=3, world_size=4, source="RANK")
            one = Process(
                pid=process.pid, start=facts.start, parent=1, uid=os.getuid(), role=ProcessRole.RANK, place=place
            )
            yield TrainingJob(name=str(process.pid), ranks=(one,))
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"TORCH_FR_DUMP_TEMP_FILE": "{}/new_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{}/old_"}, "new_3"),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{}/old_"}, "old_3"),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "beside_"}, "beside_3"),
        ({"XDG_CACHE_HOME": "{}/cache"}, "cache/torch/comm_lib_trace_rank_3"),
        ({}, ".cache/torch/comm_lib_trace_rank_3"),
    ],
)
def test_a_ranks_dump_is_found_where_torch_writes_it(tmp_path: Path, settings: dict[str, str], written: str) -> None:
    with rank(tmp_path, **{name: value.format(tmp_path) for name, value in settings.items()}) as job:
        assert dumps_of(job).recorded == ()
        assert "this job has written none" in dumps_of(job).note
        path = tmp_path / written
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RECORDED / "rank_1", path)
        found = dumps_of(job)
    assert [(recording.rank, recording.file, recording.host) for recording in found.recorded] == [
        (3, str(path), socket.gethostname())
    ]
    assert found.note == f"1 dump that this job wrote: {path}"
    assert found.refused == ()


def test_a_dump_from_before_its_start_is_another_jobs(tmp_path: Path) -> None:
    with rank(tmp_path, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/r_") as job:
        shutil.copyfile(RECORDED / "rank_1", tmp_path / "r_3")
        old = time.time() - 60
        os.utime(tmp_path / "r_3", (old, old))
        assert dumps_of(job).recorded == ()


@pytest.mark.root
def test_a_dump_of_another_user_is_another_jobs(tmp_path: Path) -> None:
    with rank(tmp_path, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/r_") as job:
        shutil.copyfile(RECORDED / "rank_1", tmp_path / "r_3")
        os.chown(tmp_path / "r_3", 12345, 12345)
        assert dumps_of(job).recorded == ()


def test_a_dump_that_broke_off_is_told(tmp_path: Path) -> None:
    with rank(tmp_path, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/r_") as job:
        (tmp_path / "r_3").write_bytes((RECORDED / "rank_1").read_bytes()[:300])
        assert dumps_of(job).refused == (f"{tmp_path}/r_3: it breaks off in the middle",)


def test_the_pipe_that_asks_for_a_dump_is_named_and_left_alone(tmp_path: Path) -> None:
    with rank(tmp_path, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/it's ") as job:
        assert "echo" not in dumps_of(job).note
        pipe = tmp_path / "it's 3.pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            note = dumps_of(job).note
            # Nobody had it open for writing, so its end is read and not that nothing is there yet.
            assert os.read(reader, 10) == b""
            command = note.partition("after ")[2].partition("; then")[0]
            subprocess.run(["sh", "-c", command], check=True, timeout=10)
            assert os.read(reader, 10) == b"dump\n"
        finally:
            os.close(reader)


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_a_rank_in_a_container_has_files_of_its_own(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copyfile(RECORDED / "rank_1", inside / "r_3")
    hide = f"mount -t tmpfs t {inside}; cp {RECORDED / 'rank_0'} {inside}/r_3"
    with rank(tmp_path, within=hide, TORCH_FR_DUMP_TEMP_FILE=f"{inside}/r_") as job:
        (found,) = dumps_of(job).recorded
        assert found.file == f"/proc/{job.ranks[0].pid}/root{inside}/r_3"
        assert found.groups[0].entries == read_dumps([str(RECORDED / "rank_0")]).recorded[0].groups[0].entries


def test_a_rank_that_is_gone_has_no_settings_to_read() -> None:
    place = RankPlace(rank=3, world_size=4, source="RANK")
    job = TrainingJob(name="1", ranks=(Process(pid=1 << 22, start=1, parent=1, role=ProcessRole.RANK, place=place),))
    assert dumps_of(job).note == "the settings of rank 3, which say where dumps are, can't be read by this user"
