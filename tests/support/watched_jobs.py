"""Jobs of `watched_training.py` with a watch beside them, and the faults that are played.

with training(tmp_path, {"step": 0.05}) as job:
    watching = watch(job.pid, "--confirm", "8", output=tmp_path / "watched")
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.command import command, plain_environ
from tests.support.free_ports import free_port

TRAINING = Path(__file__).with_name("watched_training.py")
ALARM = " has not moved for "

EVERYBODY = "everybody polls"
FAULTS: Mapping[str, str] = {
    "stopped": "rank 1 .*stopped",
    "sleep": "rank 1 (stands|sleeps) in fault_of_one",
    "polls for a file": "rank 1 (stands|sleeps) in until_told",
    EVERYBODY: "ranks 0-2 (stand|sleep) in until_told",
    "lock held": "rank 1 (stands|sleeps) in fault_of_one",
    "lock of a thread": "rank 1 (stands|sleeps) in fault_of_one",
    "GIL held": "rank 1 (stands|sleeps) in fault_of_one",
    "endless loop": "rank 1 .*fault_of_one",
    "debugger": "rank 1 .*(keyboard|debugger)",
    "reads a pipe": "rank 1 (stands|sleeps) in fault_of_one",
    "waits for a process": "rank 1 .*process",
    "waits for a server": "rank 1 ",
    "empty queue": "rank 1 .*queue",
    "exits": "rank 1 .*(gone|ended)",
    "receives what nobody sends": "rank 1 .*recv",
    "barrier on one branch": "rank 1 .*barrier",
    "another collective": "rank 1 .*broadcast",
    "another group first": "rank 1 ",
    "fewer steps": "rank 1 .*barrier",
    "waits at its end": "rank 1 ",
    "worker stopped": "rank 1 waits for data",
    "worker stuck": "rank 1 waits for data",
    "worker reads a pipe": "rank 1 waits for data",
}
"""Each with what the alarm must say."""
FAULT_RANKS = 3
LATEST_TIMES = 2.0
LATEST_SECONDS = 30.0
"""So many times of confirmation after the fault, and so many seconds more for looks on a busy host, the alarm must have come."""


def latest_seconds(confirm: float) -> float:
    """So long after the fault the alarm must have come."""
    return LATEST_TIMES * confirm + LATEST_SECONDS


@contextmanager
def training(
    folder: Path, wish: Mapping[str, Any], ranks: int = 2, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A job of torchrun's, ended at the end. settings: of its environment."""
    folder.mkdir(parents=True, exist_ok=True)
    line = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port()),
        str(TRAINING), str(folder), json.dumps(wish),
    ]  # fmt: skip
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            line,
            env={**plain_environ(), "OMP_NUM_THREADS": "1", **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End what was started, with all that it has started, stopped ones as well: torchrun gives each rank a session of its own."""
    pids = descendants(process.pid)
    for pid in (process.pid, *pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """What a process has started, and what that has."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for above in found:
        found += children.get(above, ())
    return found[1:]


def watch(job: int | str, *options: str, output: Path) -> subprocess.Popen[bytes]:
    """Start a watch over that job, by the pid of any process of it; over all by "--all". In a session of its own, as the job: a kernel that shares
    processors out by sessions starves it else for what the tests do beside, and it comes late."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command("watch", str(job), *options),
            env=plain_environ(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(path: Path, process: subprocess.Popen[bytes], seconds: float = 400.0) -> None:
    """Wait until the job has made that file."""
    until = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"no {path.name}: {(path.parent / 'output').read_text()[-3000:]}")
        time.sleep(0.1)


def steps_done(folder: Path) -> int:
    """What the job there has done."""
    path = folder / "steps"
    return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0


class Played(NamedTuple):
    """What came of a fault. confirm: the time of confirmation. after: seconds from the fault to the evidence; nan without. said: the alarm,
    "" without. blamed: the ranks that `--on-hang` is handed."""

    name: str
    confirm: float
    after: float
    said: str
    blamed: str

    @property
    def is_named(self) -> bool:
        """Whether the rank that does it, and nobody else, is blamed (nobody, where all do the same), and what it does is told."""
        blamed = "" if self.name == EVERYBODY else "1"
        return self.blamed == blamed and bool(re.search(FAULTS[self.name], self.said))

    @property
    def is_in_time(self) -> bool:
        """Whether it was told neither before nothing had moved for the time of confirmation, nor long after."""
        return self.confirm <= self.after <= latest_seconds(self.confirm)


def play(name: str, folder: Path, confirm: float, every: float) -> Played:
    """Have a rank of a job do it, with a watch beside it, until that says something."""
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    for pipe in ("pipe", "terminal"):
        os.mkfifo(place / pipe)
    # A pipe that has a writer, who writes nothing: else its reader waits already for somebody to open it.
    held = [os.open(place / pipe, os.O_RDWR) for pipe in ("pipe", "terminal")]
    wish = {"fault": name, "loader": int(name.startswith("worker")), "step": 0.05, "fault_at": 40}
    output = place / "watched"
    with training(place, wish, FAULT_RANKS) as job:
        blamed = place / "blamed"
        options = (
            "--confirm", str(confirm), "--every", str(every), "--evidence", str(place / "evidence"),
            "--on-hang", f'printf %s "$DDPDOCTOR_RANKS" >{blamed}.new && mv {blamed}.new {blamed}',
        )  # fmt: skip
        watching = watch(job.pid, *options, output=output)
        try:
            wait_for(place / "fault", job)
            until = time.monotonic() + 3 * confirm + 120
            while time.monotonic() < until and not (ALARM in output.read_text() and blamed.exists()):
                time.sleep(0.2)
        finally:
            watching.terminate()
            watching.wait()
    for pipe in held:
        os.close(pipe)
    said = next((line[20:] for line in output.read_text().splitlines() if ALARM in line), "")
    written = next(iter((place / "evidence").glob("*/report.md")), None)
    after = written.stat().st_mtime - (place / "fault").stat().st_mtime if written else math.nan
    return Played(name, confirm, after, said, blamed.read_text() if blamed.exists() else "")
