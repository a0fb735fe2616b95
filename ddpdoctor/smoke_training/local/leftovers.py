"""Ends and removes what the processes of a run leave behind, and says what stays: processes, ports, files, shared memory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Final, TypeVar

from ddpdoctor.base.text import masked
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.smoke import Leftovers
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.tcp_sockets import listening_ports
from ddpdoctor.probes.smoke_notes import dead_runs
from ddpdoctor.smoke_training.local.shared_memory import SHARED, Key, all_pids, free, mapped_memory, own_files, unused

TRAINING_MEMORY: Final = re.compile(r"nccl-|torch_|cuda\.shm\.")
"""The names that NCCL, torch's DataLoader and CUDA give their shared memory. Semaphores count only where our ranks had them: any job
has some."""

ENDING_SECONDS: Final = 2.0
"""For each kind of what is left, to go."""

Remains = TypeVar("Remains", bound=Sized)


class LeftoverTracker:
    """Record of what the processes of one run hold, and of what is left when they have ended. folder: the ranks' own, which the environment of
    all their processes names; shared: that of shared memory."""

    def __init__(self, folder: str, shared: str = SHARED) -> None:
        """Note what is there before the run."""
        self._folder = folder
        self._shared = shared
        self._before = frozenset(own_files(shared))
        self._mapped: set[Key] = set()
        """Shared memory that the run's processes mapped."""
        self._sockets: dict[int, int] = {}
        """By inode of a socket that listened: its port."""

    def record(self, pids: Iterable[int]) -> None:
        """Note what these processes hold now, as far as it can be read."""
        sockets: set[int] = set()
        for pid in pids:
            self._mapped |= set(mapped_memory(pid, self._shared))
            sockets |= sockets_of(pid)
        listening = listening_ports(Proc(), "net")
        self._sockets |= {inode: port for inode, port in listening.items() if inode in sockets}

    async def clear_up(self) -> Leftovers:
        """End and remove what is surely the run's, once all should have ended. Returns what is left then."""
        processes = tuple(f"{pid} {_command(pid)}" for pid in await _what_stays(self._kill_processes, 0.01))
        # Another job of this user may be about to use, or to remove, what only looks like ours.
        memory = await _what_stays(self._free_memory, 0.1)
        # The kernel closes ports a moment after their process was killed.
        ports = await _what_stays(self._ports, 0.05)
        return Leftovers(
            processes=processes,
            shared_memory=tuple(sorted(masked(name) for key, name in memory.items() if key in self._mapped)),
            unclaimed=tuple(sorted(masked(name) for key, name in memory.items() if key not in self._mapped)),
            ports=tuple(sorted(ports)),
            files=(self._folder,) if os.path.lexists(self._folder) else (),
        )

    def _ports(self) -> set[int]:
        """The ports on which the run still listens."""
        return {port for inode, port in listening_ports(Proc(), "net").items() if self._sockets.get(inode) == port}

    def _kill_processes(self) -> list[int]:
        """Kill the processes that the reaper could not end, or did not, since somebody had killed it. Returns them."""
        left = self._processes()
        for pid in left:
            self._kill(pid)
        return left

    def _kill(self, pid: int) -> None:
        """Kill a process by a pidfd, and only after another look: its number may be another process's since it was found."""
        with suppress(OSError):
            try:
                pidfd = os.pidfd_open(pid)
            except (AttributeError, OSError) as error:
                # Older kernels have none (ENOSYS).
                if not isinstance(error, ProcessLookupError) and self._is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
                return
            try:
                if self._is_ours(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)

    def _processes(self) -> list[int]:
        return [pid for pid in all_pids() if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is this user's and its environment names our folder, which other users could name in theirs."""
        mark = b"TMPDIR=" + os.fsencode(self._folder)
        process = Path(f"/proc/{pid}")
        try:
            return process.stat().st_uid == os.geteuid() and mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _free_memory(self) -> dict[Key, str]:
        """Remove what is new, used by nobody, and was mapped by the run. Returns the names of what of that stays nevertheless,
        and of what has such a name, but was never seen with a process of the run."""
        free(self._shared, self._before, self._mapped)
        left = unused(self._shared, self._before)
        return {key: name for key, name in left.items() if key in self._mapped or TRAINING_MEMORY.match(name)}


async def _what_stays(look: Callable[[], Remains], pause: float) -> Remains:
    """Look again and again, until nothing is left or ENDING_SECONDS have passed; others may do their work meanwhile."""
    until = time.monotonic() + ENDING_SECONDS
    while (left := look()) and time.monotonic() < until:
        await asyncio.sleep(pause)
    return left


def sockets_of(pid: int) -> set[int]:
    """The inodes of a process's sockets."""
    opened = Proc().descriptors(pid)
    links = [] if isinstance(opened, Unknown) else [link for _, link in opened]
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return masked(b" ".join(words).decode("utf-8", "replace").strip())[:200] or "?"


def clear_up_earlier_runs(environ: Mapping[str, str], shared: str = SHARED) -> None:
    """Remove the folders of this user's earlier runs that were killed with all that belonged to them; and of their shared memory what
    is still there by the same inode and name, and nobody uses."""
    for run in dead_runs(environ):
        there = own_files(shared)
        noted = {key for key, name in run.noted.items() if there.get(key) == name}
        free(shared, there.keys() - noted, noted)
        rmtree(run.folder, ignore_errors=True)


def merge_leftovers(runs: Sequence[Leftovers]) -> Leftovers:
    """Merge what several runs left behind, each thing once."""
    fields = {
        name: dict.fromkeys(left for run in runs for left in getattr(run, name)) for name in Leftovers.__struct_fields__
    }
    return Leftovers(**{name: tuple(values) for name, values in fields.items()})
