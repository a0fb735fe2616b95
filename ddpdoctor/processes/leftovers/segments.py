"""Judges shared memory that earlier runs left in /dev/shm. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.knowledge.segment_names import Maker, maker_of, may_be_chosen
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

UNUSED = "no process has it mapped or open"
BY_SMOKE = ", and an earlier `ddpdoctor smoke` that was killed had made it"
UNUSED_AS_SEEN = "no process that can be seen has it mapped or open"


def left_segments(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Leftover]:
    """List the segments that no process uses, and how sure that is."""
    if isinstance(shared_memory.stale, Unknown):
        return
    known = {segment.path: segment for segment in shared_memory.segments}
    own_uid = None if isinstance(processes, Unknown) else processes.uid
    for path in shared_memory.stale:
        segment = known.get(path, Segment(path=path))
        doubts = tuple(_doubts(segment, shared_memory, processes)) if path in known else ("whose it is isn't known",)
        certainty = Certainty.DOUBT if doubts else Certainty.PROVEN
        if path in known and own_uid is not None and segment.uid != own_uid:
            certainty, doubts = Certainty.NOT_OURS, (f"it is {segment.user or segment.uid}'s",)
        yield Leftover(
            kind=LeftoverKind.SEGMENT,
            certainty=certainty,
            what=path,
            why=(UNUSED_AS_SEEN if shared_memory.closed else UNUSED) + (BY_SMOKE if segment.by_smoke else ""),
            doubts=doubts,
            command="" if certainty is Certainty.NOT_OURS else f"rm -f {quoted(path)}",
            owner=segment.user,
            age=segment.age if segment.inode else None,
            path=path,
            inode=(segment.device, segment.inode),
            size=segment.size,
        )


def why_use_is_unknown(shared_memory: SharedMemory, what: str = "it") -> str:
    """Say why it can't be told whether somebody uses a segment; "" where all processes were looked into."""
    if not shared_memory.closed:
        return ""
    count = plural(shared_memory.closed, "process", "processes")
    return f"{count} can't be looked into with the rights of this user, and may use {what}"


def _doubts(segment: Segment, shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[str]:
    if isinstance(processes, Unknown):
        yield "whether it is yours isn't known"
    elif processes.unseen:
        yield f"not all processes can be seen: {processes.unseen}"
    if segment.wanted_by:
        yield f"{segment.wanted_by} still runs, and may come for it"
    if not segment.inode:
        yield "its inode isn't known"
    if closed := why_use_is_unknown(shared_memory):
        yield closed
    name = segment.path.removeprefix("/dev/shm/")
    maker = maker_of(name)
    if maker is None:
        yield "its name is none that NCCL, torch or Python gives"
    elif maker in (Maker.MEMORY, Maker.SEMAPHORE) and not segment.by_smoke:
        yield "Python keeps it for whoever knows its name, and a program may have left it there on purpose"
    elif may_be_chosen(name):
        yield "somebody may have chosen its name"
