"""Real smoke trainings for tests, with a count of all that they have while they run and of what is there afterwards."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.facts.smoke import Leftovers, RankRun, Smoke
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.tcp_sockets import listening_ports
from ddpdoctor.smoke_training.local.leftovers import sockets_of
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.local.shared_memory import mapped_memory, own_files
from ddpdoctor.smoke_training.training_order import Fault, TrainingOrder
from tests.support.command import plain_environ
from tests.support.waiting import slowdown

STAGES = (
    "import",
    "device",
    "rendezvous",
    "process group",
    "barrier",
    "all_reduce",
    "training",
    "shutdown",
)

CUSTOM = r"""
import gc, mmap, multiprocessing, os, signal, subprocess, sys, threading, time

def ranks_doctor():
    while threading.main_thread().is_alive():
        for one in gc.get_objects():
            if type(one).__name__ == "Doctor" and getattr(one, "who", None) == 1:
                return one
        time.sleep(0.05)

def wait_until_it_sleeps():
    while True:
        frame = sys._current_frames().get(threading.main_thread().ident)
        if frame is not None and frame.f_code.co_name == "_end_or_wait":
            return
        time.sleep(0.01)

def act():
    while "RANK" not in os.environ:
        time.sleep(0.01)
    if os.environ["RANK"] == "1":
        main()

os.register_at_fork(after_in_child=lambda: threading.Thread(target=act, daemon=DAEMON).start())
"""
"""As a package of the user would: code that each of their Pythons runs. In rank 1 `main` is called, in a thread."""


class Estate:
    """All that the processes of one job have: their environment carries its mark, their temporary files go to its folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.environ = plain_environ() | {"TMPDIR": os.fspath(folder), "DDPDOCTOR_TEST": self.mark}
        self.ports: dict[int, int] = {}
        self.shared: set[tuple[int, int]] = set()
        self.most_processes = 0
        self.files: set[str] = set()
        self.late_turns: list[tuple[float, float]] = []
        """When, and by how many seconds, a thread of its own came too late to a turn: for want of a core, and for nothing that the doctor's
        loop waits for."""

    def pids(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"DDPDOCTOR_TEST={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def look(self) -> list[int]:
        """Takes note of what they have now."""
        pids = self.pids()
        self.most_processes = max(self.most_processes, len(pids))
        self.files |= {path.name for path in self.folder.iterdir()}
        listening = listening_ports(Proc(), "net")
        for pid in pids:
            self.ports |= {inode: listening[inode] for inode in sockets_of(pid) if inode in listening}
            self.shared |= set(mapped_memory(pid, "/dev/shm"))
        return pids

    async def watched(
        self, work: Coroutine[Any, Any, Smoke], message: str = "", when: asyncio.Event | None = None
    ) -> Smoke:
        """Its result. When that event comes it is cancelled with that message."""
        task = asyncio.ensure_future(work)
        over = threading.Event()
        threading.Thread(target=self._note_late_turns, args=(over,), daemon=True).start()
        try:
            while not task.done():
                await asyncio.to_thread(self.look)
                await asyncio.sleep(0.05)
                if when is not None and when.is_set():
                    task.cancel(message)
                    when = None
                await asyncio.wait({task}, timeout=1.0)
        finally:
            over.set()
        return task.result()

    def _note_late_turns(self, over: threading.Event) -> None:
        while not over.is_set():
            asked = time.monotonic()
            time.sleep(0.05)
            self.late_turns.append((time.monotonic(), time.monotonic() - asked - 0.05))

    def behind(self, seconds: float) -> float:
        """For how many of the run's last seconds whoever is ready to run waited for a core: so much later than it should a machine that is busy may
        let it notice something, and no more."""
        since = max((moment for moment, _ in self.late_turns), default=0.0) - seconds
        return sum(late for moment, late in self.late_turns if moment > since)

    def left(self) -> dict[str, object]:
        """What is still there, by kind."""
        listening = listening_ports(Proc(), "net")
        found = {
            "processes": [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in self.pids()],
            "ports": [port for inode, port in self.ports.items() if listening.get(inode) == port],
            "shared memory": [name for key, name in own_files("/dev/shm").items() if key in self.shared],
            "files": sorted(path.name for path in self.folder.iterdir()),
        }
        return {kind: some for kind, some in found.items() if some}

    def left_after(self, seconds: float) -> dict[str, object]:
        """The same, as soon as there is nothing, or after as many looks as are taken in so long where a core is free: who needs one to
        end gets it no sooner than we do. Looks that take longer by themselves go on for five times as long."""
        left: dict[str, object] = {}
        began, slow = time.monotonic(), slowdown()
        for _ in range(round(seconds / 0.05)):
            left = {"an end": "that is going on"}
            with suppress(OSError):
                left = self.left()
            if not left or time.monotonic() - began > 5 * seconds * slow:
                break
            time.sleep(0.05)
        return left


def rank_1_runs(main: str, library: Path, estate: Estate) -> None:
    """From now on. main: source with `DAEMON`, for the thread, and `main()`. library: a folder to be made."""
    library.mkdir()
    (library / "sitecustomize.py").write_text(main + CUSTOM)
    estate.environ["PYTHONPATH"] += f":{library}"


def order(
    fault: Fault | None = None, nproc: int = 3, seconds: float = 5.0, stages: tuple[str, ...] = STAGES
) -> TrainingOrder:
    return TrainingOrder(nproc=nproc, world_size=nproc, fault=fault, seconds=seconds, stages=stages)


async def run_ranks(
    one: TrainingOrder,
    *,
    environ: Mapping[str, str],
    python: str = sys.executable,
    on_progress: Callable[[RankMonitor], None] = lambda monitor: None,
) -> Smoke:
    """One run of this host's ranks."""
    return await RankRunner(one, python, environ, on_progress).run()


async def train(estate: Estate, one: TrainingOrder, python: str = sys.executable, **settings: str) -> Smoke:
    """One run, with nothing left behind."""
    ran = await estate.watched(run_ranks(one, python=python, environ=estate.environ | settings))
    assert estate.left_after(1.0) == {}
    # Another test's shared memory may come to be meanwhile.
    assert msgspec.structs.replace(ran.leftovers, unclaimed=()) == Leftovers(), ran.leftovers
    return ran


def by_rank(ran: Smoke) -> dict[int, RankRun]:
    return {rank.rank: rank for rank in ran.ranks}
