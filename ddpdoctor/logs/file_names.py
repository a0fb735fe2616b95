"""What the name of a log's file tells of the rank and host that wrote it."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from ddpdoctor.logs.judging_lines import Place

_TORCHRUN: Final = re.compile(r"(?:^|/)attempt_\d+/(?P<local>\d{1,4})/(?:stderr|stdout|error)\.(?:log|json)(?:\.gz)?$")
_RANK: Final = re.compile(r"(?:^|[/_.-])(?:global_?)?rank[_.=-]?(?P<rank>\d{1,6})(?=[_.-]|$|/)", re.IGNORECASE)
_LOCAL: Final = re.compile(r"(?:^|[/_.-])local_?rank[_.=-]?(?P<rank>\d{1,6})(?=[_.-]|$|/)", re.IGNORECASE)
_SLURM: Final = re.compile(r"(?:^|/)[\w.-]*?\d+[_-](?P<rank>\d{1,6})\.(?:out|err)(?:\.gz)?$")
_HOST: Final = re.compile(r"(?:^|[/_.-])(?P<host>(?:worker|master|node|host|pod|compute|gpu)[-_]?\d{1,5})(?=[_.-]|$|/)")


def place_of(name: str) -> Place:
    """Of the file of that name."""
    path = PurePath(name).as_posix()
    host = found["host"] if (found := _HOST.search(path)) else ""
    if found := _TORCHRUN.search(path):
        return Place(local_rank=int(found["local"]), host=host)
    if found := _LOCAL.search(path):
        return Place(local_rank=int(found["rank"]), host=host)
    if found := _RANK.search(path) or _SLURM.search(path):
        return Place(rank=int(found["rank"]), host=host)
    return Place(host=host)
