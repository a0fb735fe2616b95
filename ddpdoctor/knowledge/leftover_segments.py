"""Shared memory that earlier runs left in /dev/shm."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.facts.base import Maybe, Unknown
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.knowledge.leftovers import Certainty, Kind, Leftover

WHY = "no process has it mapped or open"


def left_segments(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Leftover]:
    """One a segment."""
    if isinstance(shared_memory.stale, Unknown):
        return
    known = {one.path: one for one in shared_memory.segments}
    me = None if isinstance(processes, Unknown) else processes.uid
    for path in shared_memory.stale:
        segment = known.get(path)
        if segment is None:
            yield _unclear(path, "whose it is isn't known")
        elif me is None:
            yield _leftover(segment, Certainty.DOUBT, "whether it is yours isn't known")
        elif segment.uid != me:
            yield _leftover(segment, Certainty.NOT_OURS, f"it is {segment.user or segment.uid}'s")
        elif segment.wanted_by:
            yield _leftover(segment, Certainty.DOUBT, f"{segment.wanted_by} still runs, and may come for it")
        elif not segment.inode:
            yield _leftover(segment, Certainty.DOUBT, "its inode isn't known")
        else:
            yield _leftover(segment, Certainty.PROVEN)


def _unclear(path: str, doubt: str) -> Leftover:
    return _leftover(Segment(path=path), Certainty.DOUBT, doubt)


def _leftover(segment: Segment, certainty: Certainty, doubt: str = "") -> Leftover:
    return Leftover(
        kind=Kind.SEGMENT,
        certainty=certainty,
        what=segment.path,
        why=WHY,
        doubts=(doubt,) if doubt else (),
        command="" if certainty is Certainty.NOT_OURS else shlex.join(["rm", "-f", segment.path]),
        owner=segment.user,
        age=segment.age if segment.inode else None,
        path=segment.path,
        inode=(segment.device, segment.inode),
        size=segment.size,
    )
