"""A leftover as JSON tells it. Memory in bytes, times in seconds; null is what could not be learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ddpdoctor.processes.ending import Ending, Fate
from ddpdoctor.processes.leftovers import Certainty, Kind, Leftover


class ReportedLeftover(msgspec.Struct, frozen=True, kw_only=True):
    """kind: what sort of thing it is. certainty: whether it is surely left over, and the caller's to end. what: its name for
    people; why: what speaks for its being left over; doubts: why it isn't certain, or whose it is; empty where it is proven.
    command: what ends it, or in doubt looks at it; "" where it is not the caller's. owner: the user's name; age: since it was
    started or made. pid: null where it is no process, and then path is that of a segment in /dev/shm, or "" where GPU memory has
    no owner. start: clock ticks since boot; with the pid it names one process for ever. children: pids of those that end with it.
    size: of the segment or of the memory without an owner. memory: resident, with its children's. gpus: NVML's index of those that
    it holds, and gpu_memory how much; ports: those on which it listens; segments: paths in /dev/shm that it has mapped or open.
    With --kill fate says what became of it, and reason why."""

    kind: Kind
    certainty: Certainty
    what: str
    why: str
    doubts: tuple[str, ...]
    command: str
    owner: str
    age: float | None
    pid: int | None
    start: int | None
    children: tuple[int, ...]
    path: str
    size: int
    memory: int
    gpus: tuple[int, ...]
    gpu_memory: int
    ports: tuple[int, ...]
    segments: tuple[str, ...]
    fate: Fate | UnsetType = UNSET
    reason: str | UnsetType = UNSET


def reported_leftovers(leftovers: Iterable[Leftover], endings: Sequence[Ending] = ()) -> tuple[ReportedLeftover, ...]:
    """endings: what became of those that were chosen."""
    fates = {one.leftover: one for one in endings}
    return tuple(_reported(one, fates.get(one)) for one in leftovers)


def _reported(one: Leftover, ending: Ending | None) -> ReportedLeftover:
    return ReportedLeftover(
        kind=one.kind,
        certainty=one.certainty,
        what=one.what,
        why=one.why,
        doubts=one.doubts,
        command=one.command,
        owner=one.owner,
        age=one.age,
        pid=one.identity.pid if one.identity else None,
        start=one.identity.start if one.identity else None,
        children=tuple(child.pid for child in one.children),
        path=one.path,
        size=one.size,
        memory=one.memory,
        gpus=one.gpus,
        gpu_memory=one.gpu_memory,
        ports=one.ports,
        segments=one.segments,
        fate=ending.fate if ending else UNSET,
        reason=ending.reason if ending else UNSET,
    )
