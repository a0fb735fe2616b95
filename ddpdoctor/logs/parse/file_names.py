"""What the names of a run's files tell of the ranks and hosts that wrote them.

A number in a name may be that of an experiment, of an array's task or of a matrix's columns: it counts where the files that are read
differ in it as ranks or hosts do, and where what a file says doesn't contradict it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

_TORCHRUN: Final = re.compile(r"(?:^|/)attempt_\d+/(?P<local>\d{1,4})/(?:stderr|stdout|error)\.(?:log|json)(?:\.gz)?$")
_LOCAL: Final = re.compile(r"(?:^|[_.-])local_?rank[_.=-]?(?P<number>\d{1,6})(?=[_.-]|$)", re.IGNORECASE)
_RANK: Final = re.compile(
    r"(?:^|(?<!lora)(?<!local)(?<!node)(?<!group)(?<!machine)[_.-])(?:global_?)?rank[_.=-]?(?P<number>\d{1,6})(?=[_.-]|$)",
    re.IGNORECASE,
)
_TASK: Final = re.compile(r"^[\w.-]*?(?<!\d)\d+[_-](?P<number>\d{1,6})\.(?:out|err)(?:\.gz)?$")
"""Slurm's %j_%t; or its %A_%a, the tasks of an array, each of which is a run of its own."""
_HOST: Final = re.compile(
    r"(?:^|[_.-])(?P<host>(?:worker|master|node|host|pod|compute|gpu)[-_]?(?P<number>\d{1,5}))(?=[_.-]|$)"
)
_ENDS: Final = r"(?:[._-](?:log|txt|out|err|stdout|stderr|gz|zst))*$"
_NOTHING_ELSE: Final = re.compile(
    rf"(?:(?:global_?)?rank[_.=-]?\d{{1,6}}|(?:worker|master|node|host|pod|compute)[-_]?\d{{1,5}}){_ENDS}",
    re.IGNORECASE,
)
"""The whole name of a file that can't well mean anything else. GPUs have logs, too, and aren't hosts."""
_BEHIND_A_JOB: Final = re.compile(r"slurm[-_]\d+[-_.][A-Za-z]+[-_]?\d+(?:\.[\w-]+)*$")
"""Slurm's %j-%N."""
_DIGITS: Final = re.compile(r"\d+")
_SAYS_RANK: Final = (
    re.compile(
        rb"\[(?:rank(?=\d+\]:)|Rank |PG [^\]\n]{1,80} Rank |(?=\d+\] is setting up NCCL communicator))(\d{1,6})\]"
    ),
    re.compile(rb"rank[ ]*: (\d{1,6}) \(local_rank: \d"),
    re.compile(rb"GLOBAL_RANK: (\d{1,6}), MEMBER: "),
    re.compile(rb"distributed init \(rank (\d{1,6})\)"),
)
"""torch's label and its watchdog's, the word of a communicator, torchrun's table, Lightning's word, and fairseq's."""
_SAYS_LOCAL_RANK: Final = (
    re.compile(rb"\[default(\d{1,4})\]:"),
    re.compile(rb"local_rank: (\d{1,4}) \(pid: \d+\) of binary"),
)
"""Of the processes of a torchrun, whose output the file then is."""


class LinePlace(NamedTuple):
    """The owner of a file, as far as its name tells."""

    rank: int | None = None
    local_rank: int | None = None
    host: str = ""


def places_of(names: Sequence[str]) -> Mapping[str, LinePlace]:
    """Tell whose the files are that are read as one run."""
    paths = {name: PurePath(name).as_posix() for name in names}
    pieces = {piece for path in paths.values() for piece in path.split("/")}
    alone = {path.rpartition("/")[2] for path in paths.values()}
    alone = {file for file in alone if _NOTHING_ELSE.match(file) or _BEHIND_A_JOB.match(file)}
    local, rank, task, host = (_those_that_differ(pattern, pieces) for pattern in (_LOCAL, _RANK, _TASK, _HOST))
    ranks = {piece: number for piece, (number, others) in task.items() if 0 in others and len(others) > 1}
    ranks |= {piece: number for piece, (number, others) in rank.items() if _are_counted(others) or piece in alone}
    hosts = {piece for piece, (_, others) in host.items() if len(others) > 1 or piece in alone}
    return {name: _place(path, local, ranks, hosts) for name, path in paths.items()}


def place_of(name: str) -> LinePlace:
    """Tell whose a file is that is read alone."""
    return places_of((name,))[name]


def uncontradicted(place: LinePlace, text: bytes) -> LinePlace:
    """Return the place without a rank that a part of the file contradicts, as a launcher's of several ranks."""
    if place.rank is None:
        return place
    said, local = (
        {int(number) for pattern in patterns for number in pattern.findall(text)}
        for patterns in (_SAYS_RANK, _SAYS_LOCAL_RANK)
    )
    return place._replace(rank=None) if said - {place.rank} or local - {0, place.rank} else place


def _those_that_differ(pattern: re.Pattern[str], pieces: Iterable[str]) -> dict[str, tuple[int, set[int]]]:
    """Map each name of a file or folder that has such a number to that, and to those of all that are named alike."""
    alike: dict[str, set[int]] = {}
    found = {piece: match for piece in pieces if (match := pattern.search(piece))}
    for piece, match in found.items():
        alike.setdefault(_DIGITS.sub("#", piece), set()).add(int(match["number"]))
    return {piece: (int(match["number"]), alike[_DIGITS.sub("#", piece)]) for piece, match in found.items()}


def _are_counted(numbers: set[int]) -> bool:
    """Whether numbers are counted as ranks are; those of experiments are chosen."""
    return len(numbers) > 1 and (0 in numbers or max(numbers) - min(numbers) == len(numbers) - 1)


def _place(
    path: str, local: Mapping[str, tuple[int, set[int]]], ranks: Mapping[str, int], hosts: set[str]
) -> LinePlace:
    pieces = path.split("/")
    names = [found["host"] for piece in pieces if piece in hosts and (found := _HOST.search(piece))]
    host = names[0] if names else ""
    if found := _TORCHRUN.search(path):
        return LinePlace(local_rank=int(found["local"]), host=host)
    if pieces[-1] in local:
        return LinePlace(local_rank=local[pieces[-1]][0], host=host)
    of_ranks = [ranks[piece] for piece in pieces if piece in ranks]
    return LinePlace(rank=of_ranks[-1] if of_ranks else None, host=host)
