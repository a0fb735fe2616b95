"""What moved while a job was watched: a job that goes on, however slowly, doesn't hang. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.hang import Hang, Watched
from ddpdoctor.hang.rank_states import (
    IDLE,
    RankActivity,
    RankState,
    bytes_moved,
    cores_used,
    stands_of,
    worker_idle,
)
from ddpdoctor.knowledge.stack_places import PlaceKind, worker_place

POLLING: Final = (PlaceKind.LOADER,)
"""Where a main thread wakes up though nothing has come: a DataLoader asks every five seconds whether its workers live. What
comes through its pipe is among the bytes."""
OWN_THREADS: Final = (PlaceKind.LOCK, PlaceKind.LEAVING, PlaceKind.OWN, PlaceKind.DATA)
"""Where a main thread that waits for a futex waits for threads of its own."""


def movements(hang: Hang) -> tuple[str, ...]:
    """ "rank 0: moved 2 KiB, its main thread woke up 3 times" for each rank that moved, or of which that can't be told."""
    return tuple(
        f"rank {stand.number}: {listed(words)}" for stand in stands_of(hang) if (words := list(_of_rank(stand)))
    )


def _of_rank(stand: RankState) -> Iterator[str]:
    watched = stand.rank.watched
    if stand.standing in (RankActivity.GONE, RankActivity.STOPPED):
        return
    if watched is None or len(watched.looks) < 2:
        yield "whether it moved can't be told"
        return
    yield from _of_process(watched, stand)
    if stand.standing is RankActivity.ELSEWHERE and cores_used(watched) > IDLE:
        yield f"used {cores_used(watched):.1f} cores"
    for worker in stand.rank.workers:
        if worker.looks and not worker_idle(worker):
            yield from (f"its worker {worker.pid} {text}" for text in _of_worker(worker))


def _of_process(watched: Watched, stand: RankState) -> Iterator[str]:
    if moved := bytes_moved(watched):
        yield f"moved {human(moved)}"
    if stand.place.where in POLLING:
        if stand.progress:
            yield "stood elsewhere in between"
        return
    if watched.last.frames and not watched.still:
        yield "stood elsewhere in between"
    first, last = watched.looks[0], watched.looks[-1]
    yield from _woke("its main thread", first.main_wakes, last.main_wakes)
    if stand.place.where in OWN_THREADS and last.waits_in.startswith("futex"):
        yield from _woke("its other threads", first.other_wakes, last.other_wakes)


def _of_worker(worker: Watched) -> Iterator[str]:
    first, last = worker.looks[0], worker.last
    if moved := bytes_moved(worker):
        yield f"moved {human(moved)}"
    if cores_used(worker) > IDLE:
        yield f"used {cores_used(worker):.1f} cores"
    if (last.frames and not worker.still) or not worker_place(first).same_as(worker_place(last)):
        yield "stood elsewhere in between"
    yield from _woke("", first.main_wakes, last.main_wakes)


def _woke(whose: str, before: Maybe[int], after: Maybe[int]) -> Iterator[str]:
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        yield f"woke up nobody knows how often{f' ({whose})' if whose else ''}"
    elif after > before:
        yield f"{whose} woke up {plural(after - before, 'time')}".strip()
