"""How sure it is that a job hangs: a rank that was still for some seconds may be about to go on; a job of which something moved
doesn't hang, however slow it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import FAIL, WARN, Severity
from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown
from ddpdoctor.facts.hang import Hang, Watched
from ddpdoctor.hang.rank_states import (
    CHECKPOINTS,
    IDLE_CORES,
    RankActivity,
    RankState,
    bytes_moved,
    cores_used,
    states_of,
)
from ddpdoctor.hang.recorded_hang import record_of
from ddpdoctor.hang.verdict import HangVerdict, verdict_of
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.torch_frames import PlaceKind, worker_place

STALL_SECONDS: Final = 30.0
"""Batches that come over a network, start-ups and evaluations have pauses of several; few have such of half a minute."""
TOLD_BY_STILLNESS: Final = frozenset({
    HangCause.KERNEL, HangCause.LOADER, HangCause.LOCK, HangCause.SLOW_0, HangCause.BUSY, HangCause.RENDEZVOUS, HangCause.EXIT, HangCause.STALLED,
})  # fmt: skip
"""Causes that are only told from ranks that didn't go on while they were watched."""
WAITS_FOR_OTHERS: Final = (
    "sk_", "tcp_", "inet_", "wait_woken", "__skb_wait_for_more_packets", "unix_stream", "do_poll", "poll_schedule", "do_sys_poll",
    "do_select", "ep_poll", "do_epoll_wait", "pipe_read", "anon_pipe_read", "pipe_write", "anon_pipe_write", "do_wait",
    "flock_lock", "locks_lock", "fcntl_setlk",
)  # fmt: skip
"""Beginnings of the kernel functions in which a process waits for others that aren't watched: it sends or receives, or another
process is to write, to end, or to let a file's lock go."""
WORK_OF_OTHERS: Final = (*CHECKPOINTS, PlaceKind.REMOTE, PlaceKind.CHILD, PlaceKind.COMPILING)
"""Where the work is another process's or host's, or goes over a socket in a library's thread."""
HOPELESS_CAUSES: Final = (HangCause.STOPPED, HangCause.INPUT)
"""Nothing else is needed to say that it won't go on by itself."""


POLLED_PLACES: Final = (PlaceKind.LOADER,)
"""Where a main thread wakes up though nothing has come: a DataLoader asks every five seconds whether its workers live. What
comes through its pipe is among the bytes."""
PLACES_OF_OWN_THREADS: Final = (PlaceKind.LOCK, PlaceKind.LEAVING, PlaceKind.OWN, PlaceKind.DATA)
"""Where a main thread that waits for a futex waits for threads of its own."""


def rests_on_stillness(found: HangVerdict) -> bool:
    """Whether nothing but stillness speaks for the verdict. A rank that is stopped, gone, or in another collective won't come by waiting."""
    if found.kind in (HangCause.CRASHED, HangCause.RENDEZVOUS) and _are_gone(found):
        return not found.waiting  # The others may not need it any more.
    return found.kind in TOLD_BY_STILLNESS and not (
        found.kind is HangCause.LOADER and all(map(_has_no_live_worker, found.culprits))
    )


def is_definite(found: HangVerdict, hang: Hang) -> bool:
    """Whether it is so whatever moves: a rank that can't go on, or that is gone while others wait for it; or dumps alone speak."""
    if not hang.between or found.kind in HOPELESS_CAUSES or (_are_gone(found) and found.waiting):
        return True
    return found.kind is HangCause.LOADER and not rests_on_stillness(found)


def severity_of(found: HangVerdict, hang: Hang) -> Severity:
    """Rate a verdict: FAIL only where waiting can't mend it, by definite evidence, or where nothing moved all the while that would
    have shown if it had."""
    if is_definite(found, hang):
        return FAIL
    if found.moving or movements(hang) or any(map(_may_move_unseen, found.culprits)):
        return WARN
    if _are_gone(found) and any(state.progress for state in states_of(hang)):
        return WARN  # The others may compute on the processor, by themselves.
    everybody = 0 < hang.world_size <= len(hang.ranks)
    record = found.record or record_of(hang)
    if found.kind is HangCause.RENDEZVOUS and not everybody and not found.waiting:
        return WARN  # Another host's rank may still prepare its data.
    blocking = "nccl" not in hang.backend and not (hang.server and not hang.backend)
    if not rests_on_stillness(found) and (record is not None or (everybody and blocking)):
        # Over NCCL a call may wait for what was called long before.
        return FAIL
    return FAIL if hang.between >= STALL_SECONDS or (record is not None and record.waited >= STALL_SECONDS) else WARN


def _are_gone(found: HangVerdict) -> bool:
    return bool(found.culprits) and all(culprit.activity is RankActivity.GONE for culprit in found.culprits)


def longer_may_tell(hang: Hang) -> bool:
    """Whether a longer look could tell more: not where it is a failure by now."""
    try:
        found = verdict_of(hang)
    except NotKnown:
        return True
    return found is None or severity_of(found, hang) is not FAIL


def _has_no_live_worker(state: RankState) -> bool:
    """Whether its DataLoader's workers are stopped, or gone."""
    if state.last.is_own_word:
        return False
    if state.where is not PlaceKind.LOADER or (state.rank.workers and not state.busy_workers):
        return False
    return all(watched.last.state in ("T", "t") for watched in state.busy_workers)


def _may_move_unseen(state: RankState) -> bool:
    """Whether others may work for it, which is in none of the kernel's figures of a process, nor is what goes over sockets."""
    if state.where in WORK_OF_OTHERS or (state.last.is_own_word and not state.place.meets):
        return True
    own = () if state.place.meets or state.where is PlaceKind.LOADER else (state.rank.watched,)
    looks = (look for process in (*own, *state.busy_workers) if process for look in process.looks)
    return any(look.waits_in.startswith(WAITS_FOR_OTHERS) for look in looks)


# --- what moved ---------------------------------------------------------------------------------------------------------


def movements(hang: Hang) -> tuple[str, ...]:
    """Say of each rank that moved, or of which that can't be told: "rank 0: moved 2 KiB, its main thread woke up 3 times"."""
    return tuple(
        f"rank {state.number}: {listed(words)}"
        for state in states_of(hang)
        if (words := list(_movements_of_rank(state)))
    )


def _movements_of_rank(state: RankState) -> Iterator[str]:
    watched = state.rank.watched
    if state.activity in (RankActivity.GONE, RankActivity.STOPPED):
        return
    if watched is None or len(watched.looks) < 2 or (watched.last.is_own_word and not watched.last.frames):
        yield "whether it moved can't be told"
        return
    yield from _movements_of_process(watched, state)
    if state.activity is RankActivity.ELSEWHERE and cores_used(watched) > IDLE_CORES:
        yield f"used {cores_used(watched):.1f} cores"
    for worker in state.busy_workers:
        if worker.looks:
            yield from (f"its worker {worker.pid} {text}" for text in _movements_of_worker(worker))


def _movements_of_process(watched: Watched, state: RankState) -> Iterator[str]:
    if moved := bytes_moved(watched):
        yield f"moved {human(moved)}"
    if state.where in POLLED_PLACES:
        if state.progress:
            yield "stood elsewhere in between"
        return
    if watched.last.frames and not watched.still:
        yield "stood elsewhere in between"
    if watched.last.is_own_word:
        return
    first, last = watched.looks[0], watched.looks[-1]
    yield from _wake_ups("its main thread", first.main_wakes, last.main_wakes)
    if state.where in PLACES_OF_OWN_THREADS and last.waits_in.startswith("futex"):
        yield from _wake_ups("its other threads", first.other_wakes, last.other_wakes)


def _movements_of_worker(worker: Watched) -> Iterator[str]:
    first, last = worker.looks[0], worker.last
    if moved := bytes_moved(worker):
        yield f"moved {human(moved)}"
    if cores_used(worker) > IDLE_CORES:
        yield f"used {cores_used(worker):.1f} cores"
    if (last.frames and not worker.still) or worker_place(first).call != worker_place(last).call:
        yield "stood elsewhere in between"
    yield from _wake_ups("", first.main_wakes, last.main_wakes)


def _wake_ups(whose: str, before: Maybe[int], after: Maybe[int]) -> Iterator[str]:
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        yield f"woke up nobody knows how often{f' ({whose})' if whose else ''}"
    elif after > before:
        yield f"{whose} woke up {plural(after - before, 'time')}".strip()
