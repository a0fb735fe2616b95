"""Tells who has taken another way, by the order in which ranks called the collectives of all their groups. Pure.

Ranks of one place in the script go the same way, also where each is in groups of its own: what one calls after all_reduce number 3 of
its tensor group, they all call. So others tell which of two ranks is wrong that call different things, or wait for each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddpdoctor.facts.hang import Recorded
from ddpdoctor.hang.flight_recorder.group_members import call_name, made_calls, purpose_of
from ddpdoctor.hang.flight_recorder.wait_graph import PAIR_NAME, RecordedHang, RecordedSign

Step = tuple[str, int, str]
"""A collective: its group's purpose, its number there, its name."""
Way = dict[Step, Step]
"""What a rank called after each step."""


class Fork(NamedTuple):
    """A step after which ranks called different things."""

    step: Step
    usual: Step
    """What the most called next."""
    most: tuple[int, ...]
    other: Step
    odd: tuple[int, ...]
    """Those that called `other` next."""


def other_way(recorded: Sequence[Recorded], suspects: Collection[int]) -> RecordedHang | None:
    """Find the suspects whose way the fewest ranks of their place go, and all that left the others' way with them. None where nothing
    tells them apart."""
    ways = {dump.rank: dict(_steps(dump)) for dump in recorded}
    if not all(ways.get(rank) for rank in suspects):
        return None
    places = _places(recorded)
    alike = {rank: _count_alike(ways[rank], [ways[mate] for mate in places[rank]]) for rank in suspects}
    forks = {
        rank: _fork(rank, {mate: ways[mate] for mate in places[rank]})
        for rank, count in alike.items()
        if count == min(alike.values())
    }
    told = [fork for fork in forks.values() if fork]
    odd = {rank for fork in told for rank in fork.odd}
    if not odd.issuperset(forks) or odd.issuperset(suspects):
        return None
    return _record(tuple(sorted(odd)), told[0])


def _places(recorded: Sequence[Recorded]) -> dict[int, set[int]]:
    """Map each rank to those with a dump that run the same part of the model, as far as groups tell: ranks that send to each other run
    different parts, and so do the members of a group in which such ranks are."""
    groups = [(dump.rank, group) for dump in recorded for group in dump.groups]
    members = {group.ranks for _, group in groups if group.ranks}
    places = {dump.rank: {dump.rank} for dump in recorded}
    if not members:
        everybody = set(places)
        return dict.fromkeys(places, everybody)
    peers: dict[int, set[int]] = defaultdict(set)
    for rank, group in groups:
        found = (PAIR_NAME.match(call.name) for call in group.entries if call.point_to_point)
        peers[rank].update(
            group.ranks[int(pair["peer"])] for pair in found if pair and int(pair["peer"]) < len(group.ranks)
        )
    for ranks in members:
        if not any(peers[rank].intersection(ranks) for rank in ranks):
            together = set().union(*(places[rank] for rank in ranks if rank in places))
            places.update(dict.fromkeys(together, together))
    return places


def _steps(dump: Recorded) -> Iterator[tuple[Step, Step]]:
    """Pair each collective with the next one, where nothing between them is left out."""
    purposes = Counter(purpose_of(group.group) for group in dump.groups)
    calls = []
    for group in dump.groups:
        purpose = purpose_of(group.group)
        # Of two groups for one purpose nobody knows which is another rank's first.
        name = purpose if purposes[purpose] == 1 else group.group
        calls += [(made.order, name, made.call) for made in made_calls(group)]
    calls.sort(key=lambda call: call[0])
    before: Step | None = None
    last = 0
    for (place, _), name, call in calls:
        if place > last + 1:
            before = None
        if not call.point_to_point:
            step = (name, call.number, call_name(call.name))
            if before:
                yield before, step
            before = step
        last = place


def _count_alike(way: Way, ways: Iterable[Way]) -> int:
    """Count how many go a way, as far as both tell of the same steps, and of one at least."""
    return sum(0 < len(way.keys() & other.keys()) == len(way.items() & other.items()) for other in ways)


def _fork(rank: int, ways: Mapping[int, Way]) -> Fork | None:
    """Find where fewest went a rank's way, of all steps after which most went another."""
    forks = (_fork_at(step, following, ways) for step, following in ways[rank].items())
    return min((fork for fork in forks if len(fork.odd) < len(fork.most)), key=lambda fork: len(fork.odd), default=None)


def _fork_at(step: Step, following: Step, ways: Mapping[int, Way]) -> Fork:
    went: dict[Step, list[int]] = defaultdict(list)
    for rank, way in ways.items():
        if step in way:
            went[way[step]].append(rank)
    first = max(went, key=lambda after: len(went[after]))
    return Fork(step, first, tuple(sorted(went[first])), following, tuple(sorted(went[following])))


def _record(odd: tuple[int, ...], fork: Fork) -> RecordedHang:
    calls = ((fork.usual, fork.most), (fork.other, fork.odd))
    return RecordedHang(
        sign=RecordedSign.FORK, group=fork.step[0], ranks=odd, others=fork.most, number=fork.step[1], call=fork.step[2],
        calls=tuple((f"{name} number {number} of {group}", ranks) for (group, number, name), ranks in calls),
    )  # fmt: skip
