"""Judges what flight recorders and NCCL's RAS say of a hang: who called another collective, and who fell behind. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import ranks_named
from ddpdoctor.facts.hang import Hang, RasCount, RecordedCollective
from ddpdoctor.hang.flight_recorder.call_order import other_way
from ddpdoctor.hang.flight_recorder.group_members import (
    Key,
    Member,
    all_ranks,
    call_name,
    members_of,
    purpose_of,
    where_called,
)
from ddpdoctor.hang.flight_recorder.wait_graph import RecordedHang, RecordedSign, waits_of

SAME_SHAPE_COLLECTIVES: Final = (
    "all_reduce",
    "broadcast",
    "reduce_scatter_base",
    "_reduce_scatter_base",
    "all_gather_into_tensor",
    "_all_gather_base",
)
"""Collectives whose inputs have one shape on all ranks."""  # fmt: skip
RAS: Final = "NCCL's RAS"


def record_of(hang: Hang) -> RecordedHang | None:
    """Find what tells most: where calls differ, else who fell behind, else where all wait. None where no record tells of a hang: none
    is there, or all is done."""
    groups = members_of(hang.recorded, all_ranks(hang.recorded, hang.world_size))
    mismatches = filter(None, (_mismatch(key, members, groups) for key, members in groups.items()))
    found = filter(
        None, (_combine(list(mismatches)), waits_of(hang.recorded, hang.world_size), *_by_communicators(hang))
    )
    order = list(RecordedSign)
    first = min(found, key=lambda record: (order.index(record.sign), record.number), default=None)
    return first and (_by_other_ways(first, hang) or first)


def _combine(mismatches: Sequence[RecordedHang]) -> RecordedHang | None:
    """Take the first mismatch of those with a majority, if there are any, with the ranks that differ from one in other groups; without a
    majority, with those groups of its purpose in which the same was called instead of the same."""
    first = min(mismatches, key=lambda record: (not record.others, record.number), default=None)
    if first is None:
        return None
    if first.others:
        odd = {rank for record in mismatches if record.others for rank in record.ranks}
        return msgspec.structs.replace(first, ranks=tuple(sorted(odd)))
    alike = [record for record in mismatches if _what_differs(record) == _what_differs(first)]
    if len(alike) == 1:
        return first
    by_word = [(word, tuple(sorted(_callers(word, alike)))) for word, _ in first.calls]
    ranks = tuple(sorted({rank for record in alike for rank in record.ranks}))
    return msgspec.structs.replace(
        first, group=purpose_of(first.group) or first.group, ranks=ranks, calls=tuple(by_word)
    )


def _what_differs(record: RecordedHang) -> tuple[str, int, frozenset[str]]:
    return purpose_of(record.group) or record.group, record.number, frozenset(word for word, _ in record.calls)


def _callers(called: str, records: Iterable[RecordedHang]) -> Iterator[int]:
    return (rank for record in records for word, ranks in record.calls if word == called for rank in ranks)


def _by_other_ways(record: RecordedHang, hang: Hang) -> RecordedHang | None:
    """Tell by the order of all calls who is wrong, where that isn't known, or who else is."""
    waiting = {
        dump.rank
        for dump in hang.recorded
        if any(call.state != "completed" for group in dump.groups for call in group.entries)
    }
    found = other_way(hang.recorded, (*record.ranks, *record.others)) if waiting.issuperset(record.ranks) else None
    return found if found and (not record.others or set(found.ranks) > set(record.ranks)) else None


def not_dumped(hang: Hang) -> str:
    """Say which ranks have no dump, as the beginning of a sentence; "" where all have one, or none was read."""
    members = set(all_ranks(hang.recorded, hang.world_size)) if hang.recorded else set()
    missing = members - {recorded.rank for recorded in hang.recorded}
    what = "No answer from the flight recorder" if hang.server else "No dump"
    return f"{what} of {ranks_named(missing)}, of {len(members)} ranks" if missing else ""


def counts_move(hang: Hang) -> bool:
    """Whether RAS was told of new collectives between its two answers."""
    return any(count.moved for count in hang.counts)


def _mismatch(
    key: Key, members: Mapping[int, Member], groups: Mapping[Key, Mapping[int, Member]]
) -> RecordedHang | None:
    """Find the first number at which ranks of a group have called different things."""
    for number in sorted({number for member in members.values() for number in member.collectives}):
        by_rank = _calls_at(number, members)
        words = _distinguish(by_rank)
        if len(set(words.values())) < 2:
            continue
        plain = len({call_name(collective.name) for collective in by_rank.values()}) > 1
        calls, odd = _majority(words, _elsewhere(key, number, groups, plain=plain))
        most = calls[0][1]
        return RecordedHang(
            sign=RecordedSign.MISMATCH, group=key[0], ranks=odd, others=tuple(rank for rank in most if rank not in odd), calls=calls,
            number=number, call=calls[0][0], frame=where_called(by_rank[most[0]]), last=where_called(by_rank[odd[-1]]),
            missing=tuple(rank for rank in key[1] if rank not in members),
        )  # fmt: skip
    return None


def _calls_at(number: int, members: Mapping[int, Member]) -> dict[int, RecordedCollective]:
    return {rank: member.collectives[number].call for rank, member in members.items() if number in member.collectives}


def _elsewhere(key: Key, number: int, groups: Mapping[Key, Mapping[int, Member]], *, plain: bool) -> Counter[str]:
    """Count what groups of the same purpose and size have called at this number: they do the same for other ranks. plain: by name alone."""
    purpose = purpose_of(key[0])
    counted: Counter[str] = Counter()
    for other, members in groups.items():
        if other == key or not purpose or purpose_of(other[0]) != purpose or len(other[1]) != len(key[1]):
            continue
        calls = _calls_at(number, members)
        if plain:
            words = {call_name(call.name) for call in calls.values()}
        else:
            words = set(_distinguish(calls).values()) if calls else set()
        counted.update(words if len(words) == 1 else ())
    return counted


def _majority(
    words: Mapping[int, str], elsewhere: Mapping[str, int]
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[int, ...]]:
    """Sort out what was called by whom, the majority first; and those that differ from it, or all if there is none.

    elsewhere: how often other groups have called each, which decides where as many have called one thing as another.
    """
    weights = {word: (count, elsewhere.get(word, 0)) for word, count in Counter(words.values()).items()}
    counted = sorted(weights, key=lambda word: weights[word], reverse=True)
    calls = tuple((word, tuple(sorted(rank for rank in words if words[rank] == word))) for word in counted)
    tied = weights[counted[0]] == weights[counted[1]]
    return calls, tuple(sorted(rank for word, ranks in calls for rank in ranks if tied or word != calls[0][0]))


def _distinguish(by_rank: Mapping[int, RecordedCollective]) -> dict[int, str]:
    """Word each call: by its name; with shape and type where all must have the same."""
    names = {rank: call_name(call.name) for rank, call in by_rank.items()}
    if len(set(names.values())) > 1 or next(iter(names.values())) not in SAME_SHAPE_COLLECTIVES:
        return names
    return {rank: f"{names[rank]} {shape_of(call)}".strip() for rank, call in by_rank.items()}


def shape_of(call: RecordedCollective) -> str:
    """Word the type and the sizes of what a call was given: "Float[4, 2x3]"; "" where they weren't recorded."""
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in call.shapes]
    types = list(dict.fromkeys(call.dtypes))
    return f"{'/'.join(types)}[{', '.join(shapes[:3])}{', ...' if len(shapes) > 3 else ''}]" if shapes or types else ""


def _by_communicators(hang: Hang) -> Iterable[RecordedHang | None]:
    """Judge by RAS, which counts the operations of each kind that a rank has begun."""
    if counts_move(hang):
        return
    for name in dict.fromkeys(count.communicator for count in hang.counts):
        counts = [count for count in hang.counts if count.communicator == name and count.second]
        by_rank = _by_global_rank(counts, hang)
        if len(by_rank) > 1 and len(by_rank) == len(counts):
            yield _of_counts(name, by_rank)


def _by_global_rank(counts: Sequence[RasCount], hang: Hang) -> dict[int, tuple[tuple[str, int], ...]]:
    """Map counts to ranks of the job: RAS counts those of each communicator from 0. Whose pid isn't known is a rank of the job by that number only where
    all are in the communicator."""
    pids = {(rank.host, rank.watched.pid): rank.rank for rank in hang.ranks if rank.watched}
    of_pid = {pid: rank for (_, pid), rank in pids.items()} if len({host for host, _ in pids}) < 2 else {}
    hosts = {count.host for count in counts}
    found: dict[int, tuple[tuple[str, int], ...]] = {}
    for count in counts:
        rank = pids.get((count.host, count.pid))
        if rank is None and len(hosts) < 2:
            rank = of_pid.get(count.pid)
        if rank is None and len(counts) == hang.world_size:
            rank = count.rank
        if rank is not None:
            found[rank] = tuple(sorted(count.second))
    return found


def _of_counts(name: str, kinds: Mapping[int, tuple[tuple[str, int], ...]]) -> RecordedHang | None:
    total = {rank: sum(count for _, count in begun) for rank, begun in kinds.items()}
    if len(set(kinds.values())) == 1:
        return None
    least = min(total.values())
    others = tuple(sorted(rank for rank in total if total[rank] > least))
    if others:
        ranks = tuple(sorted(rank for rank in total if total[rank] == least))
        # The kind of operation of which the others have begun more.
        own = dict(kinds[ranks[0]])
        call = next((kind for kind, count in kinds[others[0]] if count > own.get(kind, 0)), "")
        return RecordedHang(sign=RecordedSign.BEHIND, group=name, ranks=ranks, others=others, call=call, source=RAS)
    words = {rank: ", ".join(f"{kind} {count}" for kind, count in begun) for rank, begun in kinds.items()}
    calls, odd = _majority(words, {})
    return RecordedHang(sign=RecordedSign.MISMATCH, group=name, ranks=odd, calls=calls, source=RAS)
