"""Stacks as they are printed, and what a run leaves: folders, shared memory, processes, kills for want of memory."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.base import private_folders
from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.base.private_folders import NoFolderError, private_folder
from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals
from ddpdoctor.facts.hang import Frame
from ddpdoctor.facts.smoke import Leftovers, Smoke
from ddpdoctor.network_check.protocol.messages import ABORTED
from ddpdoctor.probes.py_spy import PySpyTrouble, Spied
from ddpdoctor.smoke_training.local import rank_runner as running
from ddpdoctor.smoke_training.local import reaper_client as keeping
from ddpdoctor.smoke_training.local.leftovers import LeftoverTracker
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress
from ddpdoctor.smoke_training.local.rank_runner import FOLDER, oom_kills
from ddpdoctor.smoke_training.local.rank_stacks import frames_of, process_state, spied_frames, take_crash_stack
from ddpdoctor.smoke_training.local.reaper import descendants
from ddpdoctor.smoke_training.local.reaper_client import REAPER_PROGRAM, ReaperClient
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.other_users import User
from tests.support.own_signals import signals_restored
from tests.support.running_jobs import wait_until
from tests.support.smoke_runs import run_ranks

# --- stacks ---------------------------------------------------------------------------------------------------------------

ANSWER = b"""Thread 0x00007f21ea7fc6c0 (most recent call first):
  File "/opt/p/lib/python3.12/threading.py", line 359 in wait
  File "/opt/p/lib/python3.12/threading.py", line 1010 in run

Current thread 0x00007f2237b12b80 [python] (most recent call first):
  File "/opt/p/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/ada/project/train \xff.py", line 17 in <module>
"""
CRASH = b"""about to copy
Fatal Python error: Segmentation fault

Current thread 0x00007f2237b12b80 (most recent call first):
  File "/opt/p/lib/python3.12/ctypes/__init__.py", line 517 in string_at
  File "/home/ada/project/train.py", line 3 in copy

Thread 0x00007f21ea7fc6c0 (most recent call first):
  File "/opt/p/lib/python3.12/threading.py", line 359 in wait

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
SPIED = Spied(
    frames=(
        Frame("all_reduce", "/opt/p/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 2810),
        Frame("<module>", "/home/ada/project/train.py", 17),
    )
)


def test_the_main_thread_is_the_last_that_faulthandler_prints() -> None:
    assert frames_of(b"a line of the rank's own\n" + ANSWER) == (
        "all_reduce (torch/distributed/distributed_c10d.py:2810)",
        "<module> (project/train \ufffd.py:17)",
    )
    assert frames_of(b"no answer at all\n") == ()


def test_the_thread_that_crashed_is_the_one_that_counts() -> None:
    one = RankProgress(0, 0)
    one.add_output(CRASH)
    take_crash_stack(one)
    assert one.stack == ("string_at (ctypes/__init__.py:517)", "copy (project/train.py:3)")
    assert (one.stack_source, one.output) == ("faulthandler", b"about to copy\n")


def test_who_didn_t_crash_keeps_what_it_printed() -> None:
    one = RankProgress(0, 0)
    one.add_output(b"a line\n")
    take_crash_stack(one)
    assert (one.stack, one.output) == ((), b"a line\n")


def test_what_py_spy_saw_reads_as_what_the_process_would_have_said() -> None:
    frames = ("all_reduce (torch/distributed/distributed_c10d.py:2810)", "<module> (project/train.py:17)")
    assert spied_frames(SPIED) == frames
    assert spied_frames(Spied(trouble=PySpyTrouble.DENIED)) == ()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_stopped_process_is_called_so(sleeper: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: process_state(sleeper.pid) == "", "that it has read its program from the disk")
    sleeper.send_signal(signal.SIGSTOP)
    os.waitpid(sleeper.pid, os.WUNTRACED)
    assert process_state(sleeper.pid) == "stopped"
    assert process_state(2**22 + 1) == ""


# --- folders --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As tmp_path, whose path is too long for the sockets of multiprocessing."""
    with tempfile.TemporaryDirectory(prefix="dd-") as folder:
        yield Path(folder)


def test_a_folder_is_made_where_the_user_wants_it(short_path: Path) -> None:
    found = private_folder({"TMPDIR": os.fspath(short_path)}, FOLDER)
    assert (Path(found.path).parent, found.passed_over) == (short_path, "")
    assert Path(found.path).stat().st_mode & 0o777 == 0o700
    assert list(Path(found.path).iterdir()) == []


def test_it_is_made_elsewhere_and_that_is_told_where_it_doesn_t_go(short_path: Path) -> None:
    long = short_path / ("x" * 60)
    long.mkdir()
    for wanted, why in ((short_path / "nowhere", "No such file or directory"), (long, "too long")):
        found = private_folder({"TMPDIR": os.fspath(wanted)}, FOLDER)
        try:
            assert os.path.dirname(found.path) == "/tmp"  # noqa: PTH120
            assert found.passed_over.startswith(f"{wanted}: ")
            assert why in found.passed_over
        finally:
            Path(found.path).rmdir()


def test_a_full_disk_is_found_by_writing_and_nothing_is_left_on_it(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(path: Path, data: bytes) -> int:
        raise full

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(private_folders, "temporary_places", lambda environ: iter([os.fspath(short_path)]))
    with pytest.raises(NoFolderError, match=f"{short_path}: No space left on device"):
        private_folder({}, FOLDER)
    assert list(short_path.iterdir()) == []


def test_nothing_is_left_of_a_folder_whose_maker_is_stopped(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(KeyboardInterrupt):
        private_folder({"TMPDIR": os.fspath(short_path)}, FOLDER)
    assert list(short_path.iterdir()) == []


def test_who_is_stopped_before_anything_was_started_leaves_no_folder(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def stop() -> None:
        made.extend(path.name for path in short_path.iterdir())
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(running, "oom_kills", stop)
    work = run_ranks(TrainingOrder(nproc=2, world_size=2), environ={"TMPDIR": os.fspath(short_path)})
    with signals_restored():
        stop_on_signals()
        with pytest.raises(StoppedBySignal):
            asyncio.run(until_stopped(work, str))
    assert len(made) == 1
    assert list(short_path.iterdir()) == []


# --- what is left -----------------------------------------------------------------------------------------------------------


def test_a_process_of_the_run_is_ended_wherever_it_has_gone(short_path: Path) -> None:
    traces = LeftoverTracker(os.fspath(short_path / "own"))
    environ = {**os.environ, "TMPDIR": os.fspath(short_path / "own")}
    with (
        subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True) as ours,
        subprocess.Popen(["sleep", "60"], env=environ | {"TMPDIR": os.fspath(short_path)}) as another,
    ):
        # A child shows its parent's environment until it has become another program.
        while any(Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n" for process in (ours, another)):
            time.sleep(0.01)
        try:
            # Reaped at once, as by the keeper: else it would remain.
            signal.signal(signal.SIGCHLD, lambda *_: ours.poll())
            assert asyncio.run(traces.clear_up()) == Leftovers()
            assert ours.wait(60) == -signal.SIGKILL
            assert another.poll() is None
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ours.kill()
            another.kill()


def test_a_number_that_is_another_process_by_now_is_not_killed(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ours when all were looked at."""
    another = subprocess.Popen(["sleep", "60"])
    traces = LeftoverTracker(os.fspath(short_path))
    looks = iter([[another.pid], []])
    monkeypatch.setattr(traces, "_processes", lambda: next(looks))
    try:
        asyncio.run(traces.clear_up())
        assert another.poll() is None
    finally:
        another.kill()
        another.wait()


@pytest.mark.root
def test_a_process_of_hers_that_names_our_folder_is_none_of_ours(short_path: Path, eve: User) -> None:
    hers = subprocess.Popen(
        ["/bin/sleep", "60"],
        env={"TMPDIR": os.fspath(short_path)},
        user=eve.uid,
        group=eve.gid,
        extra_groups=[],
        cwd="/",
    )
    try:
        assert asyncio.run(LeftoverTracker(os.fspath(short_path)).clear_up()).processes == ()
        assert hers.poll() is None
    finally:
        hers.kill()
        hers.wait()


def test_shared_memory_that_is_ours_is_removed_and_what_only_looks_so_is_told(short_path: Path) -> None:
    (short_path / "nccl-old").touch()
    traces = LeftoverTracker("/nowhere", os.fspath(short_path))
    for name in ("nccl-ours", "torch_used", "nccl-unknown", "holiday.jpg"):
        (short_path / name).write_bytes(bytes(4096))
    with (short_path / "torch_used").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        with (short_path / "nccl-ours").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            traces.record([os.getpid()])
        left = asyncio.run(traces.clear_up())
        assert (left.shared_memory, left.unclaimed) == ((), ("nccl-unknown",))
    assert {path.name for path in short_path.iterdir()} == {"nccl-old", "torch_used", "nccl-unknown", "holiday.jpg"}


def test_while_something_stays_others_do_their_work(short_path: Path) -> None:
    """The connection to other hosts, and another run's watch, live in the same loop."""
    traces = LeftoverTracker("/nowhere", os.fspath(short_path))
    (short_path / "nccl-unknown").touch()

    async def go() -> tuple[Leftovers, int]:
        turns = 0
        clearing = asyncio.ensure_future(traces.clear_up())
        while not clearing.done():
            await asyncio.sleep(0)
            turns += 1
        return clearing.result(), turns

    left, turns = asyncio.run(go())
    assert left.unclaimed == ("nccl-unknown",)
    assert turns > 100


def test_a_port_on_which_somebody_still_listens_is_told(short_path: Path) -> None:
    (short_path / "own").mkdir()
    traces = LeftoverTracker(os.fspath(short_path / "own"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        traces.record([os.getpid()])
        left = asyncio.run(traces.clear_up())
        assert server.getsockname()[1] in left.ports
        assert left.files == (os.fspath(short_path / "own"),)
        port = server.getsockname()[1]
    assert port not in asyncio.run(traces.clear_up()).ports


LISTENS_IN_ITS_NAMESPACES = """
import asyncio, os, socket, sys
from ddpdoctor.smoke_training.local.leftovers import LeftoverTracker

tracker = LeftoverTracker(sys.argv[1], shared=sys.argv[1])
with socket.create_server(("0.0.0.0", 29400)):
    tracker.record([int(os.readlink("/proc/self"))])
    print(os.getpid(), *asyncio.run(tracker.clear_up()).ports)
"""


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_ports_are_found_where_proc_is_of_another_pid_namespace(tmp_path: Path) -> None:
    """Our own number is another process's there: that of the host's init, which is in another network namespace."""
    command = ["unshare", "--pid", "--net", "--fork", sys.executable, "-c", LISTENS_IN_ITS_NAMESPACES, tmp_path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["1", "29400"]


STOPPED = "its user: Ctrl-C"


def run_cancelled_while_clearing_up(folder: Path, monkeypatch: pytest.MonkeyPatch, *messages: str) -> Smoke:
    """Run ranks of a Python that there isn't, and cancel the run with those messages, one after the other, once all has ended."""

    async def go() -> Smoke:
        order = TrainingOrder(nproc=2, world_size=2)
        run = asyncio.ensure_future(run_ranks(order, python=f"{folder}/nowhere", environ={"TMPDIR": os.fspath(folder)}))

        async def clear_up(tracker: LeftoverTracker) -> Leftovers:
            for message in messages:
                run.cancel(message)
                await asyncio.sleep(0.01)
            return Leftovers(ports=(29400,))

        monkeypatch.setattr(LeftoverTracker, "clear_up", clear_up)
        return await run

    return asyncio.run(go())


def test_who_is_aborted_while_clearing_up_still_gives_the_result(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_cancelled_while_clearing_up(short_path, monkeypatch, ABORTED)
    assert "nowhere: No such file or directory" in ran.problem
    assert ran.leftovers == Leftovers(ports=(29400,))


@pytest.mark.parametrize("messages", [(STOPPED,), (ABORTED, STOPPED), (STOPPED, ABORTED)])
def test_who_is_stopped_while_clearing_up_ends(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, messages: tuple[str, ...]
) -> None:
    with pytest.raises(asyncio.CancelledError):
        run_cancelled_while_clearing_up(short_path, monkeypatch, *messages)


# --- the keeper -------------------------------------------------------------------------------------------------------------


def test_the_keeper_ends_all_that_was_started_and_gives_the_tracker_time(short_path: Path) -> None:
    """A process that has gone to another session, and one that clears up when it is alone, as the resource tracker does."""
    (short_path / "own").mkdir()
    cleared = short_path / "cleared"
    wait = f"import os, sys, time; open('/proc/self/comm').read(); sys.stdin.read(); open({os.fspath(cleared)!r}, 'w')"
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"tracker = [sys.executable, '-c', {wait + ' # multiprocessing.resource_tracker'!r}]\n"
        "kept = subprocess.Popen(tracker, stdin=subprocess.PIPE)\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "time.sleep(600)\n"
    )
    (short_path / "started.py").write_text(code)
    started = [sys.executable, os.fspath(short_path / "started.py")]
    command = [sys.executable, "-I", "-S", os.fspath(REAPER_PROGRAM), os.fspath(short_path / "own"), *started]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as keeper:
        assert keeper.stderr is not None
        assert keeper.stdin is not None
        assert keeper.stderr.readline() == b"ready\n"
        kept = descendants(keeper.pid)
        assert len(kept) == 3
        keeper.stdin.close()
        assert keeper.wait(60) == 0
    assert [pid for pid in kept if Path(f"/proc/{pid}/exe").exists()] == []
    assert cleared.exists()
    assert not (short_path / "own").exists()


def test_a_keeper_that_doesn_t_end_is_killed_and_no_zombie_is_left(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "ENDING_SECONDS", 0.2)

    async def go() -> Path:
        keeper = ReaperClient(RankMonitor(TrainingOrder(nproc=1, world_size=1), 0.0), lambda: None)
        before = descendants(os.getpid())
        await keeper.start(["sleep", "60"], os.fspath(short_path / "own"), os.environ)
        (process,) = {*descendants(os.getpid())} - {*before, *keeper.pids()}
        os.kill(process, signal.SIGSTOP)
        await keeper.end()
        return Path(f"/proc/{process}")

    assert not asyncio.run(go()).exists()


# --- memory that ran out ----------------------------------------------------------------------------------------------------


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_kills_are_counted_in_the_cgroup_else_on_the_host(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 17\noom 4\noom_kill 3\noom_group_kill 0\n"
    vmstat = "pgfault 8\noom_kill 12\n"
    assert oom_kills(tmp_path) is None
    tree(tmp_path, proc__vmstat=vmstat, proc__self__cgroup="0::/job\n")
    assert oom_kills(tmp_path) == 12
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/memory.events").write_text(events)
    assert oom_kills(tmp_path) == 3


def test_so_are_those_of_version_1(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="5:cpu,memory:/job\n0::/\n")
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2
