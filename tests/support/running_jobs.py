"""Small real training jobs for tests: started by a launcher, by hand, by spawn and by fork, and ended whatever happens.

    with torchrun(tmp_path, ranks=2, does={1: ("sleep", 3)}) as job:
        job.wait_for("rank-1.there")

What a rank can be told to do at a step (all the others train on, and so wait for it): "sleep" before the collective, "spin"
there, call an "other" collective, be in an all_reduce "alone" while the others are in a barrier, wait for a "dataloader"
whose worker is stuck, "stop" or "kill" itself, "raise", "exit", have "fewer" batches than the others, write a "checkpoint"
slowly. It says so first by the marker "rank-N.there" ("worker.stuck" from the DataLoader's worker, "rank-N.finishing" where
batches are fewer). Other markers: "rank-N.pid" (its pid), "rank-N.training" (the first step is done), "rank-N.step" (the
last step done), "rank-N.done".

RUNNING_JOB_GROUPS=3 among the settings gives each rank three more process groups, RUNNING_JOB_STEPS the number of steps,
RUNNING_JOB_PAUSE_1=8 makes every step of rank 1 eight seconds long.

`by_hand(..., real=False)` and `launched(...)` start plain Pythons without torch, with a rank's settings, that only sleep: for
what is read from /proc alone.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.command import plain_environ
from tests.support.free_ports import free_port

SCRIPT = Path(__file__).with_name("training_script.py")
SECONDS = 90.0
"""How long a condition is waited for; they are met within a few seconds unless something is wrong."""

SLEEPER = """
import os, sys, time
from pathlib import Path

folder, name = Path(os.environ["RUNNING_JOB"]), "rank-" + os.environ.get("RANK", "x")
(folder / f".{name}").write_text(str(os.getpid()))
(folder / f".{name}").rename(folder / f"{name}.pid")
time.sleep(100_000)
"""

LAUNCHER = """
import os, subprocess, sys

count = int(sys.argv[1])
ranks = [
    subprocess.Popen(
        [sys.executable, "train.py"],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
             "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "none"},
    )
    for rank in range(count)
]
for one in ranks:
    one.wait()
"""

Does = Mapping[int, tuple[str, int]]


class RunningJob:
    """A started job.

    process: what the test started: the launcher, the script that spawns, or, by hand, rank 0. started: all of these.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.started[0]

    def pid(self, rank: int) -> int:
        """Of that rank, once it has said so."""
        return int(self.wait_for(f"rank-{rank}.pid"))

    def wait_for(self, marker: str, seconds: float = SECONDS) -> str:
        """Waits until somebody has left that marker; its text, usually the pid of who left it."""
        wait_until(lambda: self.marked(marker) is not None, lambda: f"{marker}: {self.output()}", seconds)
        return self.marked(marker) or ""

    def wait_until_training(self, *ranks: int) -> None:
        """Until these ranks have done their first step together."""
        for rank in ranks:
            self.wait_for(f"rank-{rank}.training")

    def marked(self, marker: str) -> str | None:
        """That marker's text, None where nobody has left it."""
        try:
            return (self.folder / marker).read_text()
        except FileNotFoundError:
            return None

    def step(self, rank: int) -> int:
        """The last step that rank has done, -1 before the first."""
        return int(self.marked(f"rank-{rank}.step") or -1)

    def output(self) -> str:
        """What all of it has printed."""
        with suppress(FileNotFoundError):
            return (self.folder / "output.txt").read_text(errors="replace")
        return ""

    def pids(self) -> list[int]:
        """All that belongs to it and still runs, orphans too: they have its folder in their environment."""
        mark = f"RUNNING_JOB={self.folder}\0".encode()
        return [pid for pid in _all_pids() if mark in _environ(pid)]

    def start(self, command: Sequence[str], settings: Mapping[str, str], prefix: Sequence[str] = ()) -> int:
        """Starts one process of it; its pid."""
        with (self.folder / "output.txt").open("ab") as output:
            started = subprocess.Popen(
                [*prefix, *command],
                cwd=self.folder,
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.started.append(started)
        return started.pid

    def end(self) -> None:
        """Kills all of it, and waits until none is left. multiprocessing's resource tracker goes by itself after all others,
        and takes their semaphores out of /dev/shm."""
        killed = {process.pid for process in self.started}
        until = time.monotonic() + 10

        def gone() -> bool:
            pids = self.pids()
            for pid in pids:
                killed.add(pid)
                if time.monotonic() > until or not _tracks_resources(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()
            # One that is dying has no environment any more.
            return not pids and all(state(pid) in ("", "Z") for pid in killed)

        wait_until(gone, "the job's end")


@contextmanager
def torchrun(
    folder: Path,
    ranks: int = 2,
    *,
    does: Does | None = None,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    flags: Sequence[str] = (),
    wrapped: bool = False,
) -> Iterator[RunningJob]:
    """Under torch's own launcher. prefix: a command that runs it ("unshare", "--net"). flags: more of torchrun's. wrapped: each
    rank is started by a shell of its own."""
    with _job(folder) as job:
        given = ("--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(job.port), *flags)
        script = ["train.py"]
        if wrapped:
            (job.folder / "train.sh").write_text(f"#!/bin/bash\n{shlex.quote(sys.executable)} train.py\necho done\n")
            (job.folder / "train.sh").chmod(0o755)
            script = ["--no-python", "./train.sh"]
        command = [sys.executable, "-m", "torch.distributed.run", *given, *script]
        job.start(command, _settings(job, does, settings, master=False), prefix)
        yield job


@contextmanager
def by_hand(
    folder: Path,
    ranks: int = 2,
    *,
    does: Does | None = None,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
    real: bool = True,
    world_size: int | None = None,
) -> Iterator[RunningJob]:
    """Each rank for itself, as in a shell: RANK=0 WORLD_SIZE=2 ... python train.py. real: False for Pythons without torch
    that only sleep. world_size: where it isn't the number of ranks that are started."""
    with _job(folder) as job:
        if not real:
            (job.folder / "train.py").write_text(SLEEPER)
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size or ranks)}
            job.start([python, "train.py"], _settings(job, does, {**place, **(settings or {})}), prefix)
        yield job


@contextmanager
def scripted(folder: Path, script: Path, ranks: int, settings: Mapping[str, str]) -> Iterator[RunningJob]:
    """Each rank for itself, with another script."""
    with _job(folder) as job:
        shutil.copy(script, job.folder / "train.py")
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            job.start([sys.executable, "train.py"], _settings(job, None, {**place, **settings}))
        yield job


@contextmanager
def started_by_itself(
    folder: Path,
    ranks: int = 2,
    *,
    method: str = "spawn",
    does: Does | None = None,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[RunningJob]:
    """A script that starts its own ranks. method: "spawn" (torch.multiprocessing.spawn), "fork" or "forkserver"; the pid of
    what the ranks were forked from is the script's but for "forkserver"."""
    with _job(folder) as job:
        job.start([sys.executable, "train.py", method, str(ranks)], _settings(job, does, settings), prefix)
        yield job


@contextmanager
def launched(
    folder: Path, ranks: int = 2, *, settings: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[RunningJob]:
    """Sleeping Pythons without torch under a launcher by the name of torchrun. Start-up takes some hundredths of a second."""
    with _job(folder) as job:
        (job.folder / "train.py").write_text(SLEEPER)
        (job.folder / "torchrun").write_text(LAUNCHER)
        job.start([sys.executable, "torchrun", str(ranks), "train.py"], _settings(job, None, settings), prefix)
        for rank in range(ranks):
            job.pid(rank)
        yield job


@contextmanager
def _job(folder: Path) -> Iterator[RunningJob]:
    """One more job below that folder."""
    port = free_port()
    own = folder / f"job-{port}"
    own.mkdir()
    shutil.copy(SCRIPT, own / "train.py")
    job = RunningJob(own, port)
    try:
        yield job
    finally:
        job.end()


def _settings(
    job: RunningJob, does: Does | None, settings: Mapping[str, str] | None, *, master: bool = True
) -> dict[str, str]:
    """A plain shell's, without this test's own launcher, over loopback alone."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port)} if master else {}
    told = json.dumps({str(rank): order for rank, order in (does or {}).items()})
    plain = {name: value for name, value in plain_environ().items() if name != "PYTHONPATH"}
    return {
        **plain,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **own,
        "RUNNING_JOB": str(job.folder),
        "RUNNING_JOB_DOES": told,
        **(settings or {}),
    }


def wait_until(met: Callable[[], bool], what: str | Callable[[], str] = "", seconds: float = SECONDS) -> None:
    """Waits for a condition; fails where it isn't met in time.

    Args:
        met: the condition.
        what: its name; a function where that tells how things stand, which they do once the time is up.
        seconds: how long it is waited for.
    """
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what() if callable(what) else what or met}"
        time.sleep(0.02)


def start_time(pid: int) -> int:
    """The start of a process in clock ticks since boot, as in /proc/PID/stat; 0 where there is none."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return 0


def state(pid: int) -> str:
    """The kernel's letter for it; "" where there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def _tracks_resources(pid: int) -> bool:
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _environ(pid: int) -> bytes:
    """Empty for a zombie, as for one that may not be looked into."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
