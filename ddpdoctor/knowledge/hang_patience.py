"""How sure it is that a job hangs: a rank that was still for some seconds may be about to go on. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.facts.base import NotKnown
from ddpdoctor.facts.hang import Hang
from ddpdoctor.findings import FAIL, WARN, Severity
from ddpdoctor.knowledge.hang_company import CHECKPOINTS, Stand, worker_idle
from ddpdoctor.knowledge.hang_places import Where
from ddpdoctor.knowledge.hang_recorded import record_of
from ddpdoctor.knowledge.hang_verdict import Kind, Verdict, verdict_of

LONG: Final = 30.0
"""Seconds. Batches that come over a network, start-ups and evaluations have pauses of several; few have such of half a minute."""
STILLNESS: Final = frozenset({
    Kind.KERNEL, Kind.LOADER, Kind.LOCK, Kind.SLOW_0, Kind.BUSY, Kind.RENDEZVOUS, Kind.EXIT, Kind.STALLED,
})  # fmt: skip
"""What is only told from ranks that didn't go on while they were watched."""
SOCKET_WAITS: Final = (
    "sk_", "tcp_", "inet_", "wait_woken", "__skb_wait_for_more_packets", "unix_stream", "do_poll", "poll_schedule", "do_sys_poll",
    "do_select", "ep_poll", "do_epoll_wait",
)  # fmt: skip
"""Beginnings of the kernel functions in which a process sends, receives or waits for that."""
WAITS_FOR_OWN: Final = (Where.LOADER, Where.LOCK, Where.CHILD)
"""Where a rank waits for its own threads and processes, by a pipe or socket perhaps: what these do is what counts."""


def rests_on_stillness(found: Verdict) -> bool:
    """Whether nothing else speaks for it. A rank that is stopped, gone, or in another collective won't come by waiting."""
    if found.kind is Kind.CRASHED:
        return not found.waiting  # The others may not need it any more.
    return found.kind in STILLNESS and not (found.kind is Kind.LOADER and all(map(_no_worker_can, found.culprits)))


def severity_of(found: Verdict, hang: Hang) -> Severity:
    """FAIL only of what waiting can't mend: definite evidence, or ranks that were still for long and would have shown if they
    had moved."""
    if not rests_on_stillness(found):
        return FAIL
    if found.moving or any(map(_may_move_unseen, found.culprits)):
        return WARN
    record = found.record or record_of(hang)
    return FAIL if hang.between >= LONG or (record is not None and record.waited >= LONG) else WARN


def longer_may_tell(hang: Hang) -> bool:
    """Whether to look longer could tell more: not where the evidence is definite."""
    try:
        found = verdict_of(hang)
    except NotKnown:
        return True
    return found is None or rests_on_stillness(found)


def _no_worker_can(stand: Stand) -> bool:
    """Its DataLoader's workers are stopped, or gone."""
    busy = [one for one in stand.rank.workers if not worker_idle(one)]
    if stand.place.where is not Where.LOADER or (stand.rank.workers and not busy):
        return False
    return all(one.last.state in ("T", "t") for one in busy)


def _may_move_unseen(stand: Stand) -> bool:
    """What goes over sockets is in none of the kernel's figures of a process; a checkpoint may go over one in a library's thread."""
    if stand.place.where in (*CHECKPOINTS, Where.REMOTE):
        return True
    own = () if stand.place.meets or stand.place.where in WAITS_FOR_OWN else (stand.rank.watched,)
    watched = [*own, *(one for one in stand.rank.workers if not worker_idle(one))]
    return any(look.waits_in.startswith(SOCKET_WAITS) for one in watched if one for look in one.looks)
