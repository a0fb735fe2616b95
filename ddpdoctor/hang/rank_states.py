"""Which ranks of a job wait for others, which do something else, and which can do nothing at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.facts.hang import Hang, RankLook, Watched, WatchedRank
from ddpdoctor.knowledge.torch_frames import PlaceKind, StackPlace, is_users_code, place_of, worker_place

CHECKPOINTS: Final = (PlaceKind.SAVING, PlaceKind.LOADING)
IDLE_CORES: Final = 0.05
BUSY_CORES: Final = 0.2
"""A rank that only waits uses less than 0.02: gloo's threads wake up a hundred times a second, and do nothing."""
MIN_PROGRESS_BYTES: Final = 64 << 10
"""A process that makes progress reads or writes so many between two looks. One that only waits has none."""
NO_GPU_WAITS: Final = frozenset({
    "hrtimer_nanosleep", "do_wait", "pipe_read", "anon_pipe_read", "pipe_write", "n_tty_read", "wait_woken",
    "unix_stream_read_generic", "__skb_wait_for_more_packets", "sk_wait_data", "inet_csk_accept", "fcntl_setlk", "locks_lock_inode_wait",
    "flock_lock_inode_wait", "do_sigtimedwait", "do_epoll_wait", "ep_poll",
})  # fmt: skip
"""Kernel functions in which no process waits for a GPU."""


class RankActivity(Enum):
    """What a rank is to the others."""

    WAITS = "waits for other ranks"
    PERHAPS = "waits, perhaps for other ranks"
    """Over NCCL collectives return at once: the line where a rank stands may wait for one that was called long before."""
    ELSEWHERE = "does something else"
    LEFT = "has left the training"
    MOVES = "moves on"
    STOPPED = "is stopped"
    HELD = "is held by the kernel"
    GONE = "is gone"
    UNSEEN = "could not be looked into"


class RankState(msgspec.Struct, frozen=True):
    """A rank, what it is to the others, and where it is."""

    rank: WatchedRank
    activity: RankActivity
    place: StackPlace
    progress: bool = False
    """It has used a processor, moved data, or changed its place between the looks; False also where only one look was taken."""

    @property
    def number(self) -> int:
        return self.rank.rank

    @property
    def where(self) -> PlaceKind:
        return self.place.where

    @property
    def pid(self) -> int:
        return self.rank.watched.pid if self.rank.watched else 0

    @property
    def last(self) -> RankLook:
        """The last look at it; an empty one where there was none."""
        return self.rank.watched.last if self.rank.watched else RankLook()

    @property
    def busy_workers(self) -> tuple[Watched, ...]:
        """Its DataLoader workers but for those that wait to be told what to load."""
        return tuple(worker for worker in self.rank.workers if not is_worker_idle(worker))


def states_of(hang: Hang) -> tuple[RankState, ...]:
    """Judge every rank of this host, in their order."""
    return tuple(_state_of(rank, hang) for rank in hang.ranks)


def with_activity(states: Iterable[RankState], *activities: RankActivity) -> tuple[RankState, ...]:
    """Pick the ranks with one of these activities."""
    return tuple(state for state in states if state.activity in activities)


def cores_used(watched: Watched) -> float:
    """Count the cores that a process used between the looks; 0.0 where there was only one look."""
    first, last = watched.looks[0], watched.looks[-1]
    seconds = last.seconds - first.seconds
    return max(0.0, last.cpu_seconds - first.cpu_seconds) / seconds if seconds > 0 else 0.0


def bytes_moved(watched: Watched) -> int:
    """Count the bytes that a process read and wrote between the looks."""
    return max(0, watched.looks[-1].transferred - watched.looks[0].transferred)


def is_worker_moving(worker: Watched) -> bool:
    """Whether a DataLoader's worker made progress, or has nothing to do."""
    if not worker.looks:
        return False
    first, last = worker_place(worker.looks[0]), worker_place(worker.last)
    return (
        _is_elsewhere(first, last)
        or _moved_between(worker)
        or cores_used(worker) > BUSY_CORES
        or bytes_moved(worker) > MIN_PROGRESS_BYTES
    )


def is_worker_idle(worker: Watched) -> bool:
    """Whether a DataLoader's worker waits to be told what to load."""
    place = worker_place(worker.last)
    return place.where is PlaceKind.LOCK and place.what == "an empty queue" and not place.path


def _state_of(rank: WatchedRank, hang: Hang) -> RankState:
    watched = rank.watched
    if rank.gone or watched is None or watched.last.has_ended:
        activity = RankActivity.GONE if rank.gone or watched is not None else RankActivity.UNSEEN
        return RankState(rank, activity, StackPlace(PlaceKind.UNSEEN))
    place = place_of(watched.last)
    kernel_states = {look.state for look in watched.looks}
    if watched.last.state == "T" or kernel_states == {"t"}:
        # Whoever traces a process stops it for moments: a debugger holds it all the while.
        return RankState(rank, RankActivity.STOPPED, place)
    if len(watched.looks) < 2:
        return RankState(rank, RankActivity.UNSEEN, place)
    if watched.last.is_own_word and watched.moved and place.where is PlaceKind.UNSEEN:
        return RankState(rank, RankActivity.MOVES, place, progress=True)  # Its recorder tells so.
    before = place_of(watched.looks[0])
    works = bytes_moved(watched) > MIN_PROGRESS_BYTES
    changed = _is_elsewhere(before, place) or _moved_between(watched)
    if kernel_states == {"D"} and not works and not changed:
        return RankState(rank, RankActivity.HELD, place)
    computes = cores_used(watched) > BUSY_CORES
    activity = _activity(watched, before, place, hang, works=works, computes=computes, changed=changed)
    # One that waits for something in a loop changes its place, too, and does nothing; a checkpoint that goes to a slow disk or
    # over a network needs no processor; of who tells its own stack nobody knows the processor time.
    telling = cores_used(watched) > IDLE_CORES or place.where in CHECKPOINTS or watched.last.is_own_word
    progress = works or computes or _is_elsewhere(before, place) or (changed and telling)
    return RankState(rank, activity, _with_constant_frame(place, watched), progress)


def _moved_between(watched: Watched) -> bool:
    """Whether its stack was another one in between."""
    return watched.samples > 0 and not watched.still


def _with_constant_frame(place: StackPlace, watched: Watched) -> StackPlace:
    """Replace, in code of its own that calls others, where it is just now by the function in which it was all the while."""
    within = list(filter(is_users_code, watched.within))
    if place.where is not PlaceKind.OWN or watched.still or not within:
        return place
    own = next((frame for frame in within if "-packages/" not in frame.path), within[0])
    return msgspec.structs.replace(place, frame=own)


def _is_elsewhere(before: StackPlace, place: StackPlace) -> bool:
    return PlaceKind.UNSEEN not in (before.where, place.where) and before.call != place.call


def _activity(
    watched: Watched, before: StackPlace, place: StackPlace, hang: Hang, *, works: bool, computes: bool, changed: bool
) -> RankActivity:
    nccl = "nccl" in hang.backend
    if PlaceKind.UNSEEN in (before.where, place.where):
        return RankActivity.UNSEEN
    if place.where is PlaceKind.LEAVING:
        return RankActivity.LEFT
    if place.meets or before.meets:
        if works or changed:
            return RankActivity.MOVES
        if nccl:
            return RankActivity.PERHAPS if place.where is PlaceKind.STEP else RankActivity.WAITS
        # What DDP waits for, another thread does: one that computes in backward is not there yet.
        return RankActivity.ELSEWHERE if computes else RankActivity.WAITS
    if changed:
        return RankActivity.ELSEWHERE
    if place.where is PlaceKind.DEVICE or (
        nccl and place.where is PlaceKind.OWN and watched.last.waits_in not in NO_GPU_WAITS
    ):
        return RankActivity.MOVES if works else RankActivity.PERHAPS
    return RankActivity.ELSEWHERE
