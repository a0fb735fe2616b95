"""Ends and removes what the processes of a run leave behind, and says what stays: processes, ports, files, shared memory."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Final

from ddpdoctor.base.text import masked
from ddpdoctor.facts.smoke import Leftovers
from ddpdoctor.probes.smoke_notes import dead_runs
from ddpdoctor.smoke_training.local.shared_memory import SHARED, Key, all_pids, free, mapped_memory, own_files, unused

TRAINING_MEMORY: Final = re.compile(r"nccl-|torch_|cuda\.shm\.")
"""The names that NCCL, torch's DataLoader and CUDA give their shared memory. Semaphores count only where our ranks had them: any job
has some."""

LISTEN_STATE: Final = "0A"
ENDING_SECONDS: Final = 2.0


class LeftoverTracker:
    """What the processes of one run hold, and what of it is left when they have ended."""

    def __init__(self, folder: str, shared: str = SHARED) -> None:
        """Note what is there before the run.

        Args:
            folder: the ranks' own, which the environment of all their processes names.
            shared: the folder of shared memory.
        """
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
            sockets |= set(sockets_of(pid))
        self._sockets |= {inode: port for inode, port in listening_sockets().items() if inode in sockets}

    def clear_up(self) -> Leftovers:
        """End and remove what is surely the run's, once all should have ended. Returns what is left then."""
        processes = tuple(f"{pid} {_command(pid)}" for pid in self._end_processes())
        ours, unclaimed = self._free_memory()
        return Leftovers(
            processes=processes,
            shared_memory=ours,
            unclaimed=unclaimed,
            ports=self._ports(),
            files=(self._folder,) if os.path.lexists(self._folder) else (),
        )

    def _ports(self) -> tuple[int, ...]:
        """The ports on which the run still listens. The kernel closes them a moment after their process was killed."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            left = {port for inode, port in listening_sockets().items() if self._sockets.get(inode) == port}
            if not left or time.monotonic() > until:
                return tuple(sorted(left))
            time.sleep(0.05)

    def _end_processes(self) -> list[int]:
        """Kill the processes that the reaper could not end, or did not, since somebody had killed it. Returns those that stay."""
        until = time.monotonic() + ENDING_SECONDS
        while left := self._processes():
            for pid in left:
                self._kill(pid)
            if time.monotonic() > until:
                return left
            time.sleep(0.01)
        return []

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

    def _free_memory(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Remove what is new, used by nobody, and was mapped by the run. Returns the names of what of that stays nevertheless,
        and of what has such a name, but was never seen with a process of the run."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            free(self._shared, self._before, self._mapped)
            left = unused(self._shared, self._before)
            ours = [name for key, name in left.items() if key in self._mapped]
            unclaimed = [name for key, name in left.items() if key not in self._mapped and TRAINING_MEMORY.match(name)]
            # Another job of this user may be about to use, or to remove, what is its own.
            if not ours + unclaimed or time.monotonic() > until:
                return _names(ours), _names(unclaimed)
            time.sleep(0.1)


def _names(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(masked(name) for name in files))


def sockets_of(pid: int) -> Iterator[int]:
    """The inodes of a process's sockets."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.fspath(path.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def listening_sockets() -> dict[int, int]:
    """The ports of all TCP sockets that listen in this network namespace, by inode."""
    found: dict[int, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                parts = line.split()
                if len(parts) > 9 and parts[3] == LISTEN_STATE:
                    found[int(parts[9])] = int(parts[1].rpartition(":")[2], 16)
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return masked(b" ".join(words).decode("utf-8", "replace").strip())[:200] or "?"


def clear_up_earlier_runs(environ: Mapping[str, str], shared: str = SHARED) -> None:
    """Remove the folders of this user's earlier runs that were killed with all that belonged to them; and of their shared memory what
    is still there by the same inode and name, and nobody uses.

    Args:
        environ: names the folders for temporary files.
        shared: the folder of shared memory.
    """
    for run in dead_runs(environ):
        there = own_files(shared)
        noted = {key for key, name in run.noted.items() if there.get(key) == name}
        free(shared, there.keys() - noted, noted)
        rmtree(run.folder, ignore_errors=True)


def merge_leftovers(runs: Sequence[Leftovers]) -> Leftovers:
    """What several runs left behind, each thing once."""
    fields = {
        name: dict.fromkeys(left for run in runs for left in getattr(run, name)) for name in Leftovers.__struct_fields__
    }
    return Leftovers(**{name: tuple(values) for name, values in fields.items()})
