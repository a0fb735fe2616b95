"""Finds files that may be dumps, and reads them: never a FIFO or a device, never more than is allowed."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.base.ownership import who_misleads
from ddpdoctor.hang.flight_recorder.plain_pickles import MAX_BYTES, NotRead
from ddpdoctor.probes.files import isdir, open_regular

MAX_LISTED = 50_000
"""Names that are looked at in one folder."""
MAX_DEPTH = 2
"""Folders within the folder: dumps are often gathered into one of each host."""
HIGHEST_RANK = 999_999

_RANK = re.compile(r"(?<!\d)(\d+)(?:\.(?:pkl|pickle|json|bin|dump|txt|pt|log|gz|fr))*$", re.IGNORECASE)
_DUMPS = re.compile(r"rank|trace|dump|flight", re.IGNORECASE)


class CandidateDump(NamedTuple):
    """A file that may be a dump."""

    path: str
    certain: bool
    """It was named, or is called as dumps are. Of others in a folder nothing is said where they are something else."""


class DumpContents(NamedTuple):
    """A file as it was read."""

    data: bytes
    written: float
    owner: int
    identity: tuple[int, int]
    """Device and inode."""


def rank_in(path: str) -> int | None:
    """Read the number at the end of a file's name: 3 of "nccl_trace_rank_3" and of "rank_3.pkl". A longer one is a date or the like."""
    found = _RANK.search(Path(path).name)
    return int(found[1]) if found and int(found[1]) <= HIGHEST_RANK else None


def candidates(given: str) -> list[CandidateDump]:
    """List the files that a path means: a file; those in a folder; those whose names match a pattern, or are the path and a number.

    Raises:
        NotRead: there are none.
    """
    try:
        if isdir(given):
            found = list(_in_folder(given))
        elif os.path.lexists(given):
            found = [CandidateDump(given, True)]
        else:
            found = [CandidateDump(path, True) for path in sorted(_by_pattern(given), key=_by_rank)]
    except (OSError, ValueError) as error:
        raise NotRead(_why(error)) from None
    if not found:
        raise NotRead(
            "no dumps in this folder" if isdir(given) else "there is no such file, nor any whose name begins so"
        )
    return found


def _in_folder(folder: str) -> Iterator[CandidateDump]:
    found = []
    left = MAX_LISTED
    # os.walk would keep it for itself that it may not be entered.
    next(Path(folder).iterdir(), None)
    for inner, below, names in os.walk(folder):
        if inner[len(folder) :].strip("/").count("/") >= MAX_DEPTH - 1 and inner != folder:
            below.clear()
        below.sort()
        found += [f"{inner}/{name}" for name in names[:left] if rank_in(name) is not None]
        left -= len(names)
        if left <= 0:
            break
    for path in sorted(found, key=_by_rank):
        yield CandidateDump(path, bool(_DUMPS.search(Path(path).name)))


def _by_pattern(given: str) -> Iterator[str]:
    if glob.has_magic(given):
        yield from islice(glob.iglob(given), MAX_LISTED)  # noqa: PTH207 (Path.glob takes no whole path)
        return
    folder, slash, prefix = given.rpartition("/")
    if not isdir(folder + slash or "."):
        return
    with os.scandir(folder + slash or ".") as entries:
        for entry in islice(entries, MAX_LISTED):
            rest = entry.name[len(prefix) :]
            if prefix and entry.name.startswith(prefix) and rank_in(rest) is not None:
                yield f"{folder}{slash}{entry.name}"


def _by_rank(path: str) -> tuple[str, int, str]:
    number = rank_in(path)
    return path.rpartition("/")[0], HIGHEST_RANK + 1 if number is None else number, path


def read_dump_file(path: str) -> DumpContents:
    """Read a regular file.

    Raises:
        NotRead: it isn't one, is empty or too large, or may not be read.
    """
    try:
        _check(Path(path).stat())
        descriptor = open_regular(path)
        with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor is no path)
            facts = os.fstat(descriptor)
            _check(facts)
            if foothold := who_misleads(descriptor, path):
                raise NotRead(f"it is not for everybody's eyes, and {foothold.words}")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise NotRead(_why(error)) from None
    if len(data) > MAX_BYTES:
        raise NotRead(f"it is larger than {MAX_BYTES >> 20} MiB")
    return DumpContents(data, facts.st_mtime, facts.st_uid, (facts.st_dev, facts.st_ino))


def _check(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        raise NotRead(f"it is {kinds.get(stat.S_IFMT(facts.st_mode), 'a device')}")
    if not facts.st_size:
        raise NotRead("it is empty: the disk was full, or the rank was ended before it had written it")
    if facts.st_size > MAX_BYTES:
        raise NotRead(f"it is larger than {MAX_BYTES >> 20} MiB")


def _why(error: OSError | ValueError) -> str:
    """Word the errno alone: the path is told beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or "no name that a file can have"
