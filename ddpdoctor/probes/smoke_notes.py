"""Finds what earlier runs of `ddpdoctor smoke` left in /dev/shm, by their own notes. Where all of a run is killed at once (scancel, a
cgroup's out-of-memory kill) nobody is left to clear up; its folder stays as well, and in it stands what its processes had mapped."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.private_folders import temporary_places

PREFIX: Final = "ddpdoctor-smoke-"
NOTES: Final = ".shared-memory"
"""In the run's folder. The keeper holds a lock on it for as long as it lives."""
MAX_NOTES: Final = 1 << 20
_LINE: Final = re.compile(r"(\d+) (\d+) ([^/\n]+)")


class DeadRun(msgspec.Struct, frozen=True):
    """A run of which nobody lives any more. noted: names in /dev/shm by device and inode."""

    folder: str
    noted: Mapping[tuple[int, int], str]


def dead_runs(environ: Mapping[str, str]) -> Iterator[DeadRun]:
    """This user's own alone: the folder and the notes are theirs, and nobody else can write there."""
    alive: str | None = None
    for place in dict.fromkeys(temporary_places(environ)):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(PREFIX) or (noted := _noted(entry.path)) is None:
                    continue
                alive = _words_of_all() if alive is None else alive
                if entry.path not in alive:
                    yield DeadRun(entry.path, noted)


def _noted(folder: str) -> Mapping[tuple[int, int], str] | None:
    """None where it is another's, still in use, or has no notes."""
    try:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        state = os.fstat(inside)
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
            return None
        notes = os.open(NOTES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
    except OSError:
        return None
    finally:
        os.close(inside)
    try:
        state = os.fstat(notes)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink != 1:
            return None
        fcntl.flock(notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lines = os.pread(notes, MAX_NOTES, 0).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    finally:
        os.close(notes)
    return {(int(found[1]), int(found[2])): found[3] for line in lines if (found := _LINE.fullmatch(line))}


def _words_of_all() -> str:
    """Commands and environments of all processes that can be looked into: a run's name its folder."""
    words = []
    for name in os.listdir("/proc"):  # noqa: PTH208 (names are enough)
        if name.isdecimal() and int(name) != os.getpid():
            for file in ("cmdline", "environ"):
                with suppress(OSError):
                    words.append(Path(f"/proc/{name}/{file}").read_bytes())
    return b"\0".join(words).decode("utf-8", "surrogateescape")
