"""What the processes of a run hold while they run, and what of it is still there when they have ended."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddpdoctor.base.text import masked
from ddpdoctor.facts.smoke import Leftovers
from ddpdoctor.smoke_training.local.shared_memory import SHARED, Key, all_pids, free, mapped_memory, own_files, unused

TRAINING_MEMORY: Final = re.compile(r"nccl-|torch_|cuda\.shm\.")
"""How shared memory is named by NCCL, torch's DataLoader and CUDA. Semaphores count only where ours had them: any job has some."""

LISTENING: Final = "0A"
ENDING_SECONDS: Final = 2.0


class LeftoverTracker:
    """Of one run. folder: the ranks' own, which the environment of all its processes names."""

    def __init__(self, folder: str, shared: str = SHARED) -> None:
        self._folder = folder
        self._shared = shared
        self._before = frozenset(own_files(shared))
        self._mapped: set[Key] = set()
        """Shared memory that they mapped."""
        self._sockets: dict[int, int] = {}
        """Inode of a socket that listened to its port."""

    def note(self, pids: Iterable[int]) -> None:
        """What these hold now; of each what can be read."""
        sockets: set[int] = set()
        for pid in pids:
            self._mapped |= set(mapped_memory(pid, self._shared))
            sockets |= set(sockets_of(pid))
        self._sockets |= {inode: port for inode, port in listening_sockets().items() if inode in sockets}

    def clear_up(self) -> Leftovers:
        """Ends and removes what is surely ours, once all should have ended; gives what is left then."""
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
        """Those on which ours still listen. The kernel closes them a moment after their process was killed."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            left = {port for inode, port in listening_sockets().items() if self._sockets.get(inode) == port}
            if not left or time.monotonic() > until:
                return tuple(sorted(left))
            time.sleep(0.05)

    def _end_processes(self) -> list[int]:
        """Those that the keeper could not end, or did not, since somebody had killed it."""
        until = time.monotonic() + ENDING_SECONDS
        while left := self._processes():
            for pid in left:
                self._kill(pid)
            if time.monotonic() > until:
                return left
            time.sleep(0.01)
        return []

    def _kill(self, pid: int) -> None:
        """By a pidfd, and looked at once more: its number may be another process's since it was found."""
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
        """Whether it is this user's, and our folder is named in its settings, which anybody could name in theirs."""
        mark = b"TMPDIR=" + os.fsencode(self._folder)
        process = Path(f"/proc/{pid}")
        try:
            return process.stat().st_uid == os.geteuid() and mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _free_memory(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of what is new and used by nobody what our processes had mapped is removed. Names of that which stays nevertheless;
        and of what is named like ours, but nobody of ours was seen to have."""
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
    """Inodes of its sockets."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.fspath(path.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def listening_sockets() -> dict[int, int]:
    """Inode and port of all TCP sockets that listen in this network namespace."""
    found: dict[int, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                parts = line.split()
                if len(parts) > 9 and parts[3] == LISTENING:
                    found[int(parts[9])] = int(parts[1].rpartition(":")[2], 16)
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return masked(b" ".join(words).decode("utf-8", "replace").strip())[:200] or "?"
