"""Which files of a folder are the logs of one run, and what keeps others from being read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

MAX_FILES: Final = 10_000
"""Of a folder."""
NO_LOGS: Final = "there is no log in this folder"
NOT_FILLED: Final = f"{NO_LOGS}: torchrun fills it only with --redirects 3 or --tee 3"
_ATTEMPT: Final = re.compile(r"attempt_\d+$")
_RANDOM: Final = re.compile(r"_[a-z0-9_]{8}$")
"""What torchrun puts behind the run's name, so that each launcher has a folder of its own."""
_SAME_RUN_SECONDS: Final = 0.5
"""Seconds between the last write of one launcher and the first of another's by which they may still be of one run: none starts as fast."""


class LogFolder(msgspec.Struct, frozen=True):
    """files: to be read, in order. problems: (path, why) of what can't be entered. notes: on what was left out."""

    files: Sequence[Path]
    problems: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def contents_of_all(paths: Iterable[Path], may_be_log: Callable[[Path], bool]) -> list[LogFolder]:
    """List for each name the logs that it stands for: those of a folder, or itself. What is there by several names or
    links is read once, by one that is no link where there is such a one."""
    contents: list[LogFolder] = []
    folders: set[object] = set()
    for path in paths:
        # Of a folder that may not be looked into nobody knows whether it is one: it is read as a file, which tells why it can't be.
        if not os.path.isdir(path):  # noqa: PTH112
            contents.append(LogFolder([path]))
        elif (folder := _identity(path)) in folders:
            contents.append(LogFolder([]))
        else:
            folders.add(folder)
            contents.append(contents_of(path, may_be_log))
    names: dict[object, Path] = {}
    for path in (path for found in contents for path in found.files):
        named = names.setdefault(identity := _identity(path), path)
        if named != path and named.is_symlink() and not path.is_symlink():
            names[identity] = path
    left = set(names.values())
    once: list[LogFolder] = []
    for found in contents:
        files = [path for path in dict.fromkeys(found.files) if path in left]
        left.difference_update(files)
        once.append(msgspec.structs.replace(found, files=files))
    return once


def contents_of(folder: Path, may_be_log: Callable[[Path], bool]) -> LogFolder:
    """The logs in a folder and its subfolders; of several runs of torchrun there the newest."""
    files: list[Path] = []
    problems: list[tuple[str, str]] = []
    notes: list[str] = []
    of_torchrun = False
    found = 0

    def failed(error: OSError) -> None:
        problems.append((str(error.filename), error.strerror or str(error)))

    for name, folders, names in os.walk(folder, onerror=failed):
        runs = [folder for folder in folders if _attempts(Path(name, folder))]
        of_torchrun |= bool(runs) or any(map(_ATTEMPT.match, folders))
        if len(runs) > 1 and len(newest := _newest(Path(name), runs)) < len(runs):
            folders[:] = [folder for folder in folders if folder not in runs or folder in newest]
            read = ", ".join(str(Path(name, folder)) for folder in sorted(newest))
            notes.append(f"{len(runs)} runs lie here; the newest is read: {read}")
        folders.sort()
        found += len(names)
        files += [path for file_name in sorted(names) if may_be_log(path := Path(name, file_name))]
        if found > MAX_FILES:
            notes.append(f"there are more than {MAX_FILES:,} files in {folder}; only the first ones are read")
            break
    if not files and not problems:
        why = NOT_FILLED if of_torchrun else NO_LOGS
        problems.append((str(folder), "; ".join([*notes, why])))
    return LogFolder(files[:MAX_FILES], problems, notes)


def _attempts(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(_ATTEMPT.match(entry.name) for entry in entries)
    except OSError:
        return False


def _newest(parent: Path, runs: Sequence[str]) -> list[str]:
    """The folders of the run that began last: of its launchers, where several nodes share the folder."""
    spans = {run: _span(parent / run) for run in runs}
    by_start = sorted(runs, key=lambda run: spans[run][0], reverse=True)
    newest = [by_start[0]]
    began = spans[by_start[0]][0]
    for folder in by_start[1:]:
        start, end = spans[folder]
        if _RANDOM.sub("", folder) == _RANDOM.sub("", newest[0]) and end + _SAME_RUN_SECONDS >= began:
            newest.append(folder)
            began = start
    return newest


def _span(run: Path) -> tuple[float, float]:
    """Tell from when to when something was written in it."""
    times = [run.stat().st_mtime]
    for name, folders, names in os.walk(run):
        for folder in (*folders, *names):
            try:
                times.append(Path(name, folder).lstat().st_mtime)
            except OSError:
                continue
    return min(times), max(times)


def _identity(path: Path) -> object:
    """Return what a file or folder has in common under all of its names."""
    try:
        status = path.stat()
    except OSError:
        return path
    return (status.st_dev, status.st_ino) if status.st_ino else path
