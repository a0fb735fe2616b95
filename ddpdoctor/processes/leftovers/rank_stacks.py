"""Judges by their stacks whether ranks may be left over. Only those that wait for each other for ever do nothing for anybody:
a rank that sleeps, sends or receives is as quiet, and may go on. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Frame, RankLook
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.knowledge.torch_frames import PlaceKind, place_of, where
from ddpdoctor.processes.jobs import jobs_of
from ddpdoctor.processes.leftovers.orphans import ProcessTree
from ddpdoctor.processes.signs_of_life import signs_of_life

PLACES_OF_WAITING: Final = (PlaceKind.COLLECTIVE, PlaceKind.STEP)
"""Where a rank goes on only when the other ranks of its job do. A group that is being made waits for whoever comes."""
PLACES_OF_IDLE_THREADS: Final = (*PLACES_OF_WAITING, PlaceKind.LOCK)
"""The same of a thread beside the main one, which may also wait for another."""

Frames = tuple[Frame, ...]


def ranks_to_look_at(processes: Processes) -> tuple[Process, ...]:
    """Pick the ranks whose stacks tell whether they are left over: those of each job that has a quiet orphan."""
    tree = ProcessTree(processes, Unknown("not asked"))
    return tuple(
        rank
        for job in jobs_of(processes)
        if any(tree.lost_its_parent(rank) and not any(signs_of_life(rank, processes.watched)) for rank in job.ranks)
        for rank in job.ranks
        if not rank.has_ended and not rank.ours
    )


def busy_thread(others: tuple[tuple[str, Frames], ...]) -> str:
    """Say which thread beside the main one may be at work, a checkpoint's upload; "" where none is."""
    for name, frames in others:
        place = place_of(RankLook(frames=frames))
        if frames and place.where not in PLACES_OF_IDLE_THREADS:
            return f"its thread {name or 'without a name'} is in {where(place)}"
    return ""


def why_not_waiting(rank: Process, named: str, watched: float) -> str:
    """Say why that rank, called so in the sentence, may go on by itself; "" where it waits in a collective."""
    if rank.has_ended:
        return ""
    if isinstance(rank.stack, Unknown):
        seen_alive = any(signs_of_life(rank, watched))
        return "" if seen_alive else f"where {named} stands can't be told: {rank.stack.reason}"
    place = place_of(RankLook(frames=rank.stack, waits_in=rank.waits_in))
    if place.where in PLACES_OF_WAITING:
        return ""
    return f"{named} is in {where(place)}, and not in a collective"
