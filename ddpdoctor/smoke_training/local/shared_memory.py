"""Files in /dev/shm: the user's own, those that processes have mapped, and the removal of those that nobody uses any more. Imports
little: the reaper uses it, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import Final

SHARED: Final = "/dev/shm"

Key = tuple[int, int]
"""Device and inode of a file."""


def own_files(folder: str) -> Mapping[Key, str]:
    """The names of this user's own files in that folder."""
    found: dict[Key, str] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and entry.is_file(follow_symlinks=False):
                    found[status.st_dev, status.st_ino] = entry.name
    return found


def mapped_memory(pid: int, folder: str) -> Iterator[Key]:
    """The files in that folder that a process has mapped, also removed ones."""
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as maps:  # noqa: PTH123 (pathlib takes longer to import)
            lines = maps.read().splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith(folder + "/"):
            major, _, minor = parts[3].partition(":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(parts[4])


def mapped_by(pids: Iterable[int], folder: str) -> set[Key]:
    """The files in that folder that any of these processes has mapped."""
    return {key for pid in pids for key in mapped_memory(pid, folder)}


def unused(folder: str, before: Set[Key]) -> dict[Key, str]:
    """This user's files there that weren't there before, and that nobody has mapped whom we can see: of another container,
    that shares the folder with this one, we see the files and not the processes."""
    new = {key: name for key, name in own_files(folder).items() if key not in before}
    used = mapped_by(all_pids(), folder) if new else set()
    still = own_files(folder) if new else {}
    return {key: name for key, name in new.items() if key not in used and key in still}


def free(folder: str, before: Set[Key], ours: Set[Key]) -> None:
    """Remove the files that are in `ours`, weren't there before, and that nobody has mapped."""
    for key, name in unused(folder, before).items():
        if key in ours:
            with suppress(OSError):
                os.unlink(f"{folder}/{name}")  # noqa: PTH108 (pathlib takes longer to import)


def all_pids() -> list[int]:
    """The pids of all processes that we can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (pathlib takes longer to import)
