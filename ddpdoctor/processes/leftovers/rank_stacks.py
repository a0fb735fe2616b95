"""Where the ranks of a job stand that may be left over. Only those that wait for each other for ever do nothing for anybody:
a rank that sleeps, sends or receives is as quiet, and may go on. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Frame, RankLook
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.knowledge.stack_places import PlaceKind, place_of, where
from ddpdoctor.processes.jobs import jobs_of
from ddpdoctor.processes.leftovers.orphans import ProcessTree
from ddpdoctor.processes.signs_of_life import signs_of_life

WAITING: Final = (PlaceKind.COLLECTIVE, PlaceKind.STEP)
"""Where a rank goes on only when the other ranks of its job do. A group that is being made waits for whoever comes."""
IDLE: Final = (*WAITING, PlaceKind.LOCK)
"""The same of a thread beside the main one, which may also wait for another."""
ENDED: Final = ("Z", "X")

Frames = tuple[Frame, ...]


def whose_stacks(processes: Processes) -> tuple[Process, ...]:
    """The ranks whose stacks tell whether they are left over: of each job that has a quiet orphan."""
    scene = ProcessTree(processes, Unknown("not asked"))
    return tuple(
        rank
        for job in jobs_of(processes)
        if any(scene.lost_its_parent(one) and not any(signs_of_life(one, processes.watched)) for one in job.ranks)
        for rank in job.ranks
        if rank.state not in ENDED and not rank.ours
    )


def busy_thread(others: tuple[tuple[str, Frames], ...]) -> str:
    """Which thread beside the main one may be at work, a checkpoint's upload, in words; "" where none is."""
    for name, frames in others:
        place = place_of(RankLook(frames=frames))
        if frames and place.where not in IDLE:
            return f"its thread {name or 'without a name'} is in {where(place)}"
    return ""


def not_waiting(rank: Process, named: str, watched: float) -> str:
    """Why that rank may go on by itself, "" where it waits in a collective. named: how it is called in the sentence."""
    if rank.state in ENDED:
        return ""
    if isinstance(rank.stack, Unknown):
        seen_alive = any(signs_of_life(rank, watched))
        return "" if seen_alive else f"where {named} stands can't be told: {rank.stack.reason}"
    place = place_of(RankLook(frames=rank.stack, waits_in=rank.waits_in))
    if place.where in WAITING:
        return ""
    return f"{named} is in {where(place)}, and not in a collective"
