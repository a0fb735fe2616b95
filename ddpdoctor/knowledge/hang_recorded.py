"""What flight recorders and NCCL's RAS say of a hang: who called another collective, and who fell behind. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.facts.hang import Collective, Frame, Hang, RasCount, Recorded, RecordedGroup
from ddpdoctor.knowledge.hang_places import pythons, torchs
from ddpdoctor.wording import ranks_named

SAME_SHAPES: Final = (
    "all_reduce",
    "broadcast",
    "reduce_scatter_base",
    "_reduce_scatter_base",
    "all_gather_into_tensor",
    "_all_gather_base",
)
"""Collectives whose inputs have one shape on all ranks."""  # fmt: skip
RAS: Final = "NCCL's RAS"
LONG_AGO: Final = 290.0
"""Seconds that a collective of NCCL has waited when its group's timeout wrote the dump: 600 by default; few set less than 300."""


class Sign(Enum):
    """What the records of one group come to."""

    MISMATCH = "at the same number, ranks called different collectives"
    BEHIND = "some ranks have not called what others have"
    EVEN = "all have called the same, and it is not done"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one process group, or communicator, as far as they tell of a hang.

    ranks: those that fell behind, or differ from the most (all of them, if nobody is the majority). calls: with MISMATCH what was
    called by whom, the majority first. number: of the collective that is not done; 0 with RAS, which doesn't tell.
    call: its name. frame: where the others called it. last: where the first of `ranks` made its last call.
    missing: members of the group of which there is no record. waited: seconds since the call when the dump was written.
    """

    sign: Sign
    group: str
    ranks: tuple[int, ...]
    others: tuple[int, ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    number: int = 0
    call: str = ""
    frame: Frame | None = None
    last: Frame | None = None
    missing: tuple[int, ...] = ()
    waited: float = 0.0
    nccl: bool = False
    source: str = "flight recorder"

    @property
    def timed_out(self) -> bool:
        """Whether NCCL's watchdog wrote it. Over gloo no timeout does."""
        return self.nccl and self.waited > LONG_AGO


def record_of(hang: Hang) -> Record | None:
    """The group that tells most: where calls differ, else where ranks fell behind, else where all wait. None where no record
    tells of a hang: none is there, all is done, or the backend doesn't say whether it is (gloo's stay "scheduled")."""
    found = [one for one in (*_by_groups(hang), *_by_communicators(hang)) if one]
    order = list(Sign)
    return min(found, key=lambda one: (order.index(one.sign), one.number), default=None)


def not_dumped(hang: Hang) -> str:
    """Which members of the recorded groups have no dump, as the beginning of a sentence; "" where all have one, or none was read."""
    members = {rank for one in hang.recorded for group in one.groups for rank in group.ranks}
    missing = members - {one.rank for one in hang.recorded}
    return f"No dump of {ranks_named(missing)}, of {len(members)} ranks" if missing else ""


def counts_move(hang: Hang) -> bool:
    """Whether RAS was told of new collectives between its two answers."""
    return any(one.second and one.first != one.second for one in hang.counts)


def where_called(call: Collective) -> Frame | None:
    """The innermost frame that isn't torch's or Python's."""
    return next((one for one in call.frames if not torchs(one) and not pythons(one)), None)


def _by_groups(hang: Hang) -> Iterable[Record | None]:
    names = dict.fromkeys(group.group for one in hang.recorded for group in one.groups)
    for name in names:
        members = {
            one.rank: (one, group)
            for one in hang.recorded
            for group in one.groups
            if group.group == name and _tells(group)
        }
        yield _of_group(name, members, hang.world_size)


def _tells(group: RecordedGroup) -> bool:
    """An empty buffer may also mean that nothing was to be recorded."""
    return bool(group.entries) or group.last_enqueued is not None


def _of_group(name: str, members: Mapping[int, tuple[Recorded, RecordedGroup]], world_size: int) -> Record | None:
    called = {
        rank: {one.number: one for one in group.entries if not one.point_to_point}
        for rank, (_, group) in members.items()
    }
    should = next((group.ranks for _, group in members.values() if group.ranks), ()) or (
        tuple(range(world_size)) if name.startswith("0:") or name == "0" else ()
    )
    missing = tuple(rank for rank in should if rank not in members)
    differ = _mismatch(name, called, missing)
    if differ:
        return differ
    lasts = {rank: max(group.last_enqueued or 0, max(called[rank], default=0)) for rank, (_, group) in members.items()}
    if not any(lasts.values()):
        return None
    least, most = min(lasts.values()), max(lasts.values())
    if least < most:
        return _behind(name, members, called, lasts, missing)
    return _even(name, members, called, most, missing)


def _mismatch(name: str, called: Mapping[int, Mapping[int, Collective]], missing: tuple[int, ...]) -> Record | None:
    for number in sorted({number for calls in called.values() for number in calls}):
        by_rank = {rank: calls[number] for rank, calls in called.items() if number in calls}
        words = _told_apart(by_rank)
        if len(set(words.values())) < 2:
            continue
        calls, odd = _majority(words)
        most = calls[0][1]
        return Record(
            sign=Sign.MISMATCH, group=name, ranks=odd, others=tuple(one for one in most if one not in odd), calls=calls,
            number=number, call=calls[0][0], frame=where_called(by_rank[most[0]]), last=where_called(by_rank[odd[-1]]),
            missing=missing,
        )  # fmt: skip
    return None


def _majority(words: Mapping[int, str]) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[int, ...]]:
    """What was called by whom, the majority first; and those that differ from it, or all if there is none."""
    counted = Counter(words.values()).most_common()
    calls = tuple((word, tuple(sorted(rank for rank in words if words[rank] == word))) for word, _ in counted)
    tied = counted[0][1] == counted[1][1]
    return calls, tuple(sorted(rank for word, ranks in calls for rank in ranks if tied or word != calls[0][0]))


def _told_apart(by_rank: Mapping[int, Collective]) -> dict[int, str]:
    """Each call by its name; with shape and type where all must have the same."""
    names = {rank: call_name(one.name) for rank, one in by_rank.items()}
    if len(set(names.values())) > 1 or next(iter(names.values())) not in SAME_SHAPES:
        return names
    return {rank: f"{names[rank]} {_shape(one)}".strip() for rank, one in by_rank.items()}


def call_name(name: str) -> str:
    """ "nccl:all_reduce" without the backend."""
    return name.rpartition(":")[2]


def _shape(call: Collective) -> str:
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in call.shapes]
    types = list(dict.fromkeys(call.dtypes))
    return f"{'/'.join(types)}[{', '.join(shapes[:3])}{', ...' if len(shapes) > 3 else ''}]" if shapes or types else ""


def _behind(
    name: str,
    members: Mapping[int, tuple[Recorded, RecordedGroup]],
    called: Mapping[int, Mapping[int, Collective]],
    lasts: Mapping[int, int],
    missing: tuple[int, ...],
) -> Record:
    least = min(lasts.values())
    ranks = tuple(sorted(rank for rank in lasts if lasts[rank] == least))
    others = tuple(sorted(rank for rank in lasts if lasts[rank] > least))
    next_call = next((called[rank][least + 1] for rank in others if least + 1 in called[rank]), None)
    own = next((called[rank][least] for rank in ranks if least in called[rank]), None)
    return Record(
        sign=Sign.BEHIND, group=name, ranks=ranks, others=others, number=least + 1,
        call=call_name(next_call.name) if next_call else "",
        frame=where_called(next_call) if next_call else None,
        last=where_called(own) if own else None,
        missing=missing, waited=_waited(least + 1, others, members, called),
        nccl=next_call is not None and _open(next_call),
    )  # fmt: skip


def _even(
    name: str,
    members: Mapping[int, tuple[Recorded, RecordedGroup]],
    called: Mapping[int, Mapping[int, Collective]],
    number: int,
    missing: tuple[int, ...],
) -> Record | None:
    """NCCL's entries say whether they are done; the first that isn't is the one that all wait in."""
    open_calls = {
        rank: min((one.number for one in calls.values() if _open(one)), default=0) for rank, calls in called.items()
    }
    waiting = {rank: first for rank, first in open_calls.items() if first}
    if not waiting:
        return None
    first = min(waiting.values())
    rank = min(rank for rank in waiting if waiting[rank] == first)
    call = called[rank][first]
    return Record(
        sign=Sign.EVEN, group=name, ranks=tuple(sorted(members)), number=first, call=call_name(call.name),
        frame=where_called(call), missing=missing, waited=_waited(first, waiting, members, called), nccl=True,
    )  # fmt: skip


def _open(call: Collective) -> bool:
    return call.name.startswith("nccl:") and call.state != "completed"


def _waited(
    number: int,
    ranks: Iterable[int],
    members: Mapping[int, tuple[Recorded, RecordedGroup]],
    called: Mapping[int, Mapping[int, Collective]],
) -> float:
    """The longest that one of them had been in that collective when its dump was written."""
    calls = [(members[rank][0], called[rank][number]) for rank in ranks if number in called[rank]]
    return max((dump.written - one.created for dump, one in calls if dump.written and one.created), default=0.0)


def _by_communicators(hang: Hang) -> Iterable[Record | None]:
    """Of RAS, which counts the operations of each kind that a rank has begun."""
    if counts_move(hang):
        return
    for name in dict.fromkeys(one.communicator for one in hang.counts):
        counts = [one for one in hang.counts if one.communicator == name and one.second]
        by_rank = _by_global_rank(counts, hang)
        if len(by_rank) > 1 and len(by_rank) == len(counts):
            yield _of_counts(name, by_rank)


def _by_global_rank(counts: Sequence[RasCount], hang: Hang) -> dict[int, tuple[tuple[str, int], ...]]:
    """RAS counts the ranks of each communicator from 0. Whose pid isn't known is a rank of the job by that number only where
    all are in the communicator."""
    pids = {(one.host, one.watched.pid): one.rank for one in hang.ranks if one.watched}
    of_pid = {pid: rank for (_, pid), rank in pids.items()} if len({host for host, _ in pids}) < 2 else {}
    hosts = {one.host for one in counts}
    found: dict[int, tuple[tuple[str, int], ...]] = {}
    for one in counts:
        rank = pids.get((one.host, one.pid))
        if rank is None and len(hosts) < 2:
            rank = of_pid.get(one.pid)
        if rank is None and len(counts) == hang.world_size:
            rank = one.rank
        if rank is not None:
            found[rank] = tuple(sorted(one.second))
    return found


def _of_counts(name: str, kinds: Mapping[int, tuple[tuple[str, int], ...]]) -> Record | None:
    total = {rank: sum(count for _, count in begun) for rank, begun in kinds.items()}
    if len(set(kinds.values())) == 1:
        return None
    least = min(total.values())
    others = tuple(sorted(rank for rank in total if total[rank] > least))
    if others:
        ranks = tuple(sorted(rank for rank in total if total[rank] == least))
        call = _ahead_in(kinds[ranks[0]], kinds[others[0]])
        return Record(sign=Sign.BEHIND, group=name, ranks=ranks, others=others, call=call, source=RAS)
    words = {rank: ", ".join(f"{kind} {count}" for kind, count in begun) for rank, begun in kinds.items()}
    calls, odd = _majority(words)
    return Record(sign=Sign.MISMATCH, group=name, ranks=odd, calls=calls, source=RAS)


def _ahead_in(behind: Iterable[tuple[str, int]], ahead: Iterable[tuple[str, int]]) -> str:
    """The kind of operation of which the others have begun more."""
    own = dict(behind)
    return next((kind for kind, count in ahead if count > own.get(kind, 0)), "")
