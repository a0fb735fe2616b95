"""The look at processes, at real jobs: by torchrun, by hand, spawned, forked, orphaned, dead, and in other namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.processes import listing
from ddpdoctor.processes.jobs import TrainingJob, jobs_of, setting
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.report.reported_leftovers import LeftoverKind
from tests.support.command import plain_environ
from tests.support.running_jobs import by_hand, launched, started_by_itself, state, torchrun, wait_until


def look() -> Processes:
    found = listing.probe(Context(sys.executable))
    assert isinstance(found, Processes)
    return found


def job_of(pid: int, found: Processes) -> TrainingJob:
    """The job that this process is a rank of."""
    (job,) = [job for job in jobs_of(found) if pid in [rank.pid for rank in job.ranks]]
    return job


def pids(some: Sequence[Process]) -> list[int]:
    return [process.pid for process in some]


def get(found: Processes, pid: int) -> Process:
    one = found.get(pid)
    assert one, f"{pid} is not listed"
    return one


def test_torchrun(tmp_path: Path) -> None:
    with torchrun(tmp_path, does={1: ("dataloader", 2)}) as job:
        worker = int(job.wait_for("worker.stuck"))
        ranks = [job.pid(0), job.pid(1)]
        found = look()
    seen = job_of(ranks[0], found)
    assert pids(seen.ranks) == ranks
    assert seen.launcher
    assert seen.launcher.pid == job.process.pid
    assert (seen.world_size, seen.expected, seen.missing, seen.doubled) == (2, (0, 1), (), ())
    assert pids(seen.workers_of(seen.ranks[1])) == [worker]
    first, second = seen.ranks
    assert first.place
    assert second.place
    assert (first.place.source, second.place.rank, second.place.local_world_size) == ("RANK", 1, 2)
    assert {"pt_gloo_runloop", "gloo_tcp_loop"} <= set(first.marks)
    assert setting(first, "OMP_NUM_THREADS") == "1"
    assert not setting(first, "PATH")
    assert isinstance(seen.launcher.listens, tuple)
    assert job.port in seen.launcher.listens
    assert isinstance(first.listens, tuple)
    assert job.port not in first.listens
    assert get(found, os.getpid()).ours


def test_what_ranks_do_between_two_looks(tmp_path: Path) -> None:
    """One trains on alone, one writes a checkpoint, one is stopped."""
    does = {0: ("spin", 1), 1: ("checkpoint", 1), 2: ("stop", 1)}
    with by_hand(tmp_path, 3, does=does) as job:
        for rank in range(3):
            job.wait_for(f"rank-{rank}.there")
        wait_until(lambda: state(job.pid(2)) == "T")
        found = look()
        busy, writing, stopped = (get(found, job.pid(rank)) for rank in range(3))
        names = [one.name for one in (busy, writing, stopped)]
    assert names == ["python"] * 3
    assert found.watched >= 0.25
    assert isinstance(busy.recent_cpu, float)
    assert busy.recent_cpu > 0.05
    assert isinstance(writing.recent_bytes, int)
    assert writing.recent_bytes >= 1 << 20
    assert writing.writes_to == (str(job.folder / "checkpoint.pt"),)
    assert stopped.state == "T"
    assert (stopped.recent_cpu, stopped.recent_bytes, stopped.recent_switches) == (0.0, 0, 0)


def test_by_hand_the_first_rank_listens_and_a_worker_outlives_its_rank(tmp_path: Path) -> None:
    with by_hand(tmp_path, does={1: ("dataloader", 1)}) as job:
        worker = int(job.wait_for("worker.stuck"))
        ranks = [job.pid(0), job.pid(1)]
        seen = job_of(ranks[1], look())
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: get(look(), worker).parent != ranks[1])
        left = get(look(), worker)
    assert pids(seen.ranks) == ranks
    assert seen.launcher is None
    assert seen.name == str(ranks[0])
    assert seen.expected == (0, 1)
    assert [job.port in rank.listens for rank in seen.ranks if isinstance(rank.listens, tuple)] == [True, False]
    assert pids(seen.workers_of(seen.ranks[1])) == [worker]
    assert left.role is ProcessRole.WORKER
    assert left.place is None


@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("spawn", marks=pytest.mark.thorough), pytest.param("forkserver", marks=pytest.mark.thorough)],
)
def test_ranks_without_settings_of_their_own(tmp_path: Path, method: str) -> None:
    """And one that has died, whose parent waits for another first."""
    with started_by_itself(tmp_path, 3, method=method) as job:
        job.wait_until_training(0, 1, 2)
        ranks = [job.pid(rank) for rank in range(3)]
        seen = job_of(ranks[0], look())
        workers_of_none = seen.others
        again = None
        if method == "fork":
            for pid in (*ranks[:1], *ranks[2:]):
                os.kill(pid, signal.SIGSTOP)
            os.kill(ranks[1], signal.SIGKILL)
            wait_until(lambda: state(ranks[1]) == "Z")
            again = job_of(ranks[0], look())
    assert pids(seen.ranks) == ranks
    assert [rank.place and rank.place.rank for rank in seen.ranks] == [0, 1, 2]
    assert all(rank.forked for rank in seen.ranks)
    assert seen.launcher
    assert seen.launcher.pid == job.process.pid
    assert seen.expected == (0, 1, 2)
    assert not [process for process in workers_of_none if process.role is ProcessRole.WORKER]
    if again:
        assert pids(again.ranks) == ranks
        assert [rank.state for rank in again.ranks][1] == "Z"


def test_launcher_killed(tmp_path: Path) -> None:
    with launched(tmp_path) as job:
        ranks = [job.pid(0), job.pid(1)]
        before = job_of(ranks[0], look())
        job.process.kill()
        job.process.wait()
        after = job_of(ranks[0], look())
    assert before.launcher
    assert before.launcher.pid == job.process.pid
    assert after.launcher is None
    assert pids(after.ranks) == ranks
    assert {rank.parent for rank in after.ranks}.isdisjoint({job.process.pid})
    assert after.expected == (0, 1)


def test_dead_rank_under_a_launcher_that_does_not_reap(tmp_path: Path) -> None:
    with launched(tmp_path, 3) as job:
        ranks = [job.pid(rank) for rank in range(3)]
        os.kill(job.process.pid, signal.SIGSTOP)
        os.kill(ranks[2], signal.SIGKILL)
        wait_until(lambda: state(ranks[2]) == "Z")
        seen = job_of(ranks[0], look())
    assert pids(seen.ranks) == ranks
    dead = seen.ranks[2]
    assert (dead.state, dead.ended_threads) == ("Z", False)
    assert dead.place
    assert (dead.place.rank, dead.forked) == (2, True)
    assert isinstance(dead.settings, Unknown)
    assert seen.missing == ()


def test_two_jobs_side_by_side(tmp_path: Path) -> None:
    with ExitStack() as jobs:
        one, two = (jobs.enter_context(by_hand(tmp_path, real=False)) for _ in range(2))
        under = jobs.enter_context(launched(tmp_path))
        places = [(job, [job.pid(rank) for rank in range(2)]) for job in (one, two, under)]
        found = look()
    for job, ranks in places:
        seen = job_of(ranks[0], found)
        assert pids(seen.ranks) == ranks
        assert {setting(rank, "MASTER_PORT") for rank in seen.ranks} == {str(job.port)}


def test_ranks_that_are_there_twice(tmp_path: Path) -> None:
    with by_hand(tmp_path, real=False, settings={"RANK": "0"}) as job:
        started = [process.pid for process in job.started]
        # Both leave the same mark: it doesn't tell that the other one runs the script, too.
        wait_until(lambda: any(set(started) <= {*pids(one.ranks)} for one in jobs_of(look())))
        seen = job_of(started[0], look())
    assert sorted(pids(seen.ranks)) == sorted(started)
    assert (seen.doubled, seen.missing) == ((0,), (1,))


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_the_same_port_in_another_namespace(tmp_path: Path) -> None:
    """Two jobs that both meet at 127.0.0.1:29511, one of them in a container of its own."""
    settings = {"MASTER_PORT": "29511"}
    contained = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (
        by_hand(tmp_path, real=False, settings=settings) as outside,
        by_hand(tmp_path, real=False, settings=settings, prefix=contained) as inside,
    ):
        ranks = [outside.pid(0), outside.pid(1)]
        inside.pid(0), inside.pid(1)
        found = look()
        theirs = [
            pid
            for pid in inside.pids()
            if pid not in pids([entry for entry in found.listed if entry.name == "unshare"])
        ]
    assert pids(job_of(ranks[0], found).ranks) == ranks
    for pid in theirs:
        # Each in a namespace of its own: nothing ties them together.
        seen = job_of(pid, found)
        (rank,) = seen.ranks
        assert rank.pid_inside == 1
        assert rank.pid_namespace != found.pid_namespace
        assert rank.network_namespace != found.network_namespace
    assert len(theirs) == 2


def test_copied_interpreter(tmp_path: Path) -> None:
    """In a virtual environment by copies the interpreter is a file of its own."""
    program = tmp_path / "venv" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), program)
    environ = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    with by_hand(tmp_path, real=False, settings=environ, python=str(program)) as job:
        ranks = [job.pid(0), job.pid(1)]
        seen = job_of(ranks[0], look())
    assert pids(seen.ranks) == ranks
    assert seen.ranks[0].executable == str(program)


def test_wrapped_rank(tmp_path: Path) -> None:
    """A shell and a Python that only start the rank have its settings too; so has a tool that the rank starts."""
    with by_hand(tmp_path, 0, real=False) as job:
        script = "import subprocess, sys; subprocess.run([sys.executable, 'train.py'])"
        (job.folder / "train.py").write_text(NESTED)
        settings = {**os.environ, "RUNNING_JOB": str(job.folder), "RANK": "3", "WORLD_SIZE": "8"}
        job.start(["sh", "-c", f'"{sys.executable}" -c "{script}"; true'], settings)
        tool = int(job.wait_for("tool"))
        found = look()
        ours = {pid: get(found, pid) for pid in job.pids()}
    ranks = [our for our in ours.values() if our.role is ProcessRole.RANK]
    assert len(ours) == 4
    assert len(ranks) == 1
    assert ranks[0].place
    assert ranks[0].place.rank == 3
    assert ours[tool].role is not ProcessRole.RANK


NESTED = """
import os, subprocess, sys
from pathlib import Path

tool = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
Path(os.environ["RUNNING_JOB"], ".tool").write_text(str(tool.pid))
Path(os.environ["RUNNING_JOB"], ".tool").rename(Path(os.environ["RUNNING_JOB"], "tool"))
tool.wait()
"""


def test_segment_and_its_holder(tmp_path: Path) -> None:
    segment = Path(f"/dev/shm/torch_{os.getpid()}_test")
    holder = None
    script = f"import mmap; f = open('{segment}', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); print(1, flush=True); input()"
    try:
        segment.write_bytes(bytes(4096))
        holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout
        holder.stdout.readline()
        seen = get(look(), holder.pid)
    finally:
        segment.unlink()
        if holder:
            with suppress(ProcessLookupError):
                holder.kill()
            holder.communicate()
    assert seen.shared_memory == (str(segment),)


AS_NOBODY = """
import os, sys, msgspec
import ddpdoctor.probes.py_spy
from ddpdoctor.probes import gpus
from ddpdoctor.probes.processes import listing
from ddpdoctor.probes.context import Context
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.stdout.buffer.write(msgspec.json.encode(listing.probe(Context(sys.executable))))
"""


@pytest.mark.root
def test_without_root(tmp_path: Path) -> None:
    """Root's ranks can't be looked into. Those in a process group are known by their threads, and to whom they belong."""
    with started_by_itself(tmp_path, 2, method="fork") as job:
        job.wait_until_training(0, 1)
        ranks = [job.pid(0), job.pid(1)]
        done = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, check=True, env=plain_environ())
    found = msgspec.json.decode(done.stdout, type=Processes)
    seen = job_of(ranks[0], found)
    assert found.uid == 65534
    assert found.closed >= 3
    assert pids(seen.ranks) == ranks
    for rank in seen.ranks:
        assert rank.user == "root"
        assert rank.settings == Unknown(f"/proc/{rank.pid}/environ: Permission denied")
        for hidden in (
            rank.executable,
            rank.devices,
            rank.listens,
            rank.shared_memory,
            rank.writes_to,
            rank.recent_bytes,
        ):
            assert isinstance(hidden, Unknown)
            assert hidden.reason.endswith("Permission denied")
        assert isinstance(rank.recent_cpu, float)


STARTS_AND_FORGETS = """
import os, subprocess, sys, time

ranks = [subprocess.Popen([sys.executable, "-c", "pass"], env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
print(*(one.pid for one in ranks), flush=True)
time.sleep(1000)
"""


def test_ranks_that_ended_under_a_script_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "UNCOLLECTED_SECONDS", 0.0)
    command = [sys.executable, "-c", STARTS_AND_FORGETS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environ()) as script:
        try:
            assert script.stdout
            ended = [int(word) for word in script.stdout.readline().split()]
            wait_until(lambda: all(state(pid) == "Z" for pid in ended), "their end")
            found = look()
        finally:
            script.kill()
    assert [(get(found, pid).state, get(found, pid).parent) for pid in ended] == [("Z", script.pid)] * 2
    # Of what ddpdoctor itself, here the test, has started, nothing is left over.
    others = msgspec.structs.replace(
        found, listed=tuple(msgspec.structs.replace(entry, ours=False) for entry in found.listed)
    )
    told = {process.pid: process for process in left_by_processes(others, Unknown("no GPU"))}
    assert [told[pid].kind for pid in ended] == [LeftoverKind.ENDED] * 2
    assert f"(pid {script.pid})" in told[ended[0]].why
