"""Whoever is ended or held up, and however: soon after that nothing of a smoke training is there any more. What kills the engine, the
ranks' parent or the keeper comes from a rank: see test_smoke_odd_ranks.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.smoke_training.local.rank_stacks import process_state
from tests.support.command import command
from tests.support.smoke_runs import Estate, rank_1_runs
from tests.support.waiting import slowdown, wait_for

SECONDS = 5.0
"""Within which all must be over."""

LIMIT = 8
"""Seconds that a stage may take."""

STAGES = "rendezvous,process group,all_reduce,shutdown"
FAULT = '{"rank": 1, "stage": "all_reduce", "kind": "sleep"}'

STOPPED = "Stopped. The ranks were ended; nothing is left running.\n"


SHARES_MEMORY_AND_STARTS_A_DAEMON = """
DAEMON = True
def main():
    # A daemon: of another session, its parent has gone, nothing of the job's is open in it.
    subprocess.run(["sh", "-c", "setsid sleep 600 < /dev/null > /dev/null 2>&1 &"], check=True)
    with open("/dev/shm/nccl-" + os.environ["DDPDOCTOR_TEST"], "w+b") as file:
        file.truncate(4096)
        globals()["kept"] = mmap.mmap(file.fileno(), 4096)
    time.sleep(600)
"""


STOPS_THE_DOCTOR = """
DAEMON = True
def parent_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
def threads():
    return [open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")]
def main():
    while not any("THREAD" in one for one in threads()):
        time.sleep(0.01)
    os.kill(parent_of(parent_of(multiprocessing.parent_process().pid)), signal.SIGSTOP)
"""


class End(msgspec.Struct, frozen=True):
    """Which signal ends the doctor, and with what it ends then."""

    number: signal.Signals
    code: int
    stderr: str


ENDS = (
    End(signal.SIGINT, 130, STOPPED),
    End(signal.SIGTERM, 143, STOPPED),
    End(signal.SIGKILL, -9, ""),
)


class Job:
    """`ddpdoctor smoke` whose rank 1 sleeps."""

    def __init__(self, folder: Path) -> None:
        self.estate = Estate(folder / "files")
        rank_1_runs(SHARES_MEMORY_AND_STARTS_A_DAEMON, folder / "library", self.estate)
        self.shared = Path(f"/dev/shm/nccl-{self.estate.mark}")
        self.doctor = subprocess.Popen(
            command("smoke", "--nproc", "2", "--backend", "gloo", "--stages", STAGES),
            env=self.estate.environ | {"DDPDOCTOR_SMOKE_FAULT": FAULT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def waits(self) -> bool:
        """Whether both ranks are there, with all that they need."""
        assert self.doctor.poll() is None, self.doctor.communicate()
        pids = self.estate.look()
        daemons = sum(_is_called("sleep", pid) for pid in pids)
        gloo = sum(_uses_gloo(pid) for pid in pids)
        # Ports are read before the processes: one that was opened in between is seen at the next look.
        return (gloo, daemons, self.shared.exists(), bool(self.estate.ports)) == (2, 1, True, True)


def _is_called(name: str, pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"
    return False


def _uses_gloo(pid: int) -> bool:
    with suppress(OSError):
        return any("gloo" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    return False


@pytest.mark.slow
def test_nothing_is_left_when_the_doctor_is_ended(short_path: Path) -> None:
    jobs = [Job(short_path / end.number.name) for end in ENDS]
    try:
        for job, end in zip(jobs, ENDS, strict=True):
            wait_for(job.waits, 60)
            assert job.estate.files
            assert job.estate.ports
            assert job.estate.shared
            slow = slowdown()
            os.kill(job.doctor.pid, end.number)
            ended = time.monotonic()
            if end.stderr:
                os.kill(job.doctor.pid, end.number)  # An impatient second one.
            _, stderr = job.doctor.communicate(timeout=90)
            assert job.estate.left_after(SECONDS) == {}, end
            assert not job.shared.exists()
            assert time.monotonic() - ended < 2 * SECONDS * max(slow, slowdown())
            assert (job.doctor.returncode, stderr[-len(end.stderr) or len(stderr) :]) == (end.code, end.stderr)
    finally:
        for job in jobs:
            job.doctor.kill()
            job.doctor.communicate()


@pytest.mark.slow
def test_what_a_run_left_that_was_killed_as_a_whole_goes_with_the_next(short_path: Path) -> None:
    """As by scancel, or a cgroup's out-of-memory kill: the tracker of the semaphores dies as well."""
    job = Job(short_path / "all")
    another = Path("/dev/shm/sem.mp-" + job.estate.mark[:8])
    try:
        wait_for(job.waits, 60)
        notes = job.estate.folder.glob
        wait_for(
            lambda: any(
                "sem.mp-" in (said := note.read_text()) and job.shared.name in said
                for note in notes("*/.shared-memory")
            ),
            20,
        )
        another.touch(mode=0o600)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in job.estate.pids():
                os.kill(pid, number)
        job.doctor.communicate(timeout=60)
        wait_for(lambda: not job.estate.pids(), 60)
        left = job.estate.left()
        assert any("sem.mp-" in name for name in left["shared memory"])  # type: ignore[attr-defined]
        assert left["files"]
        environ = job.estate.environ
        subprocess.run(
            command("smoke", "--nproc", "2", "--backend", "gloo", "--stages", STAGES),
            env=environ,
            check=True,
            timeout=120,
        )
        assert job.estate.left() == {}
        assert another.exists(), "nobody noted it"
    finally:
        another.unlink(missing_ok=True)
        job.shared.unlink(missing_ok=True)
        job.doctor.kill()
        job.doctor.communicate()


class Stopped:
    """`ddpdoctor smoke` that its rank 1 stops with SIGSTOP as soon as it has a thread of that name."""

    def __init__(self, thread: str, folder: Path) -> None:
        self.estate = Estate(folder / "files")
        rank_1_runs(STOPS_THE_DOCTOR.replace("THREAD", thread), folder / "library", self.estate)
        stages = ("--stages", "training,checkpoint", "--timeout", str(LIMIT))
        self.doctor = subprocess.Popen(
            command("smoke", "--nproc", "2", "--backend", "gloo", *stages, "--json"),
            env=self.estate.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_stopped(self) -> bool:
        assert self.doctor.poll() is None, self.doctor.communicate()
        return process_state(self.doctor.pid) == "stopped"


@pytest.mark.slow
def test_a_doctor_who_is_held_up_tells_what_happened_meanwhile(short_path: Path) -> None:
    """For longer than a stage may take, from a rank's first moment, or from when it has met the other. Without it they train."""
    jobs = [Stopped(thread, short_path / (thread or "first")) for thread in ("", "gloo")]
    try:
        for job in jobs:
            wait_for(job.is_stopped, 60)
            job.estate.look()
        time.sleep(LIMIT + 2)
        for job in jobs:
            os.kill(job.doctor.pid, signal.SIGCONT)
        for job in jobs:
            stdout, stderr = job.doctor.communicate(timeout=60)
            assert job.doctor.returncode == 0, stdout + stderr
            ranks = json.loads(stdout)["smoke"]["ranks"]
            assert [rank["ending"] for rank in ranks] == ["finished"] * 2
            assert max(stage["seconds"] or 0 for rank in ranks for stage in rank["stages"]) < LIMIT
            assert job.estate.left_after(SECONDS) == {}
    finally:
        for job in jobs:
            job.doctor.kill()
            job.doctor.communicate()
