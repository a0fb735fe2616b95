"""Who waits for whom, over all process groups that flight recorders tell of. Pure.

A rank that has called something which is not done waits for the members that haven't called it; these may wait in another group.
Followed to its end, that leads to ranks that are waited for and wait for nobody. What is known of a member:

- It has come to a call if its recorder has it, or a later one of the same group. Numbers only grow, and a group's calls are done in
  their order.
- If its dump has nothing of the group, torch's status of the group tells its last number; without that it has not come.
- If it has no dump, nothing is known of it: it is waited for where all others have come.
- A call that all have made, and that others have finished, isn't done on one rank alone: its own GPU is what doesn't go on.

gloo's recorder has no sends and receives. A rank that waits in one has nothing open, like the one that all wait for: no dump tells
them apart. There, a rank that could not write a dump is suspected first, and without one all that have nothing open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.hang import Frame, Recorded
from ddpdoctor.hang.flight_recorder.dump_format import DEFAULT_GROUP
from ddpdoctor.hang.flight_recorder.group_members import (
    ROOTED_COLLECTIVES,
    Key,
    MadeCall,
    Member,
    Order,
    all_ranks,
    call_name,
    dumped_ranks,
    members_of,
    where_called,
)

PAIR_NAME: Final = compile_lazily(r"\w+:(?P<verb>send|recv) \d+(?:->|<-)(?P<peer>\d{1,9})")
"""A point-to-point call by its name, with ranks of the group, the caller's first: "nccl:send 0->3", "nccl:recv 0<-3"."""
ANSWERS: Final = {"send": "recv", "recv": "send"}
NCCL_TIMEOUT_SECONDS: Final = 290.0
"""So long a collective of NCCL has waited at least when its group's timeout wrote the dump: 600 by default; few set less than 300."""


class LagCause(Enum):
    """Why a rank keeps others waiting."""

    ABSENT = "it has not called what the others have"
    STUCK = "its GPU has not done what others have finished"
    SILENT = "it has left no dump"


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that keeps others waiting, and waits for nobody."""

    rank: int
    cause: LagCause
    group: str
    call: str
    number: int
    """What those in `others` have called, or with STUCK finished."""
    others: tuple[int, ...]
    frame: Frame | None = None
    """Where they called it."""
    last: Frame | None = None
    """Where its own last call was."""
    waited: float = 0.0
    nccl: bool = False


class RecordedSign(Enum):
    """What the records of one group come to."""

    MISMATCH = "at the same number, ranks called different collectives"
    FORK = "after the same call, ranks called different collectives"
    BEHIND = "some ranks have not called what others have, or not done it"
    CIRCLE = "ranks wait for each other in different groups"
    EVEN = "all have called the same, and it is not done"


class RecordedHang(msgspec.Struct, frozen=True, kw_only=True):
    """What the records tell of a hang, with the group that shows it."""

    sign: RecordedSign
    group: str
    ranks: tuple[int, ...]
    """Those that fell behind, or differ from the most; all of them, where there is no majority. With `unsure` those among them
    without a dump, if there are any."""
    others: tuple[int, ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """With MISMATCH what was called by whom, the majority first."""
    number: int = 0
    """Of the collective that is not done; 0 with RAS, which doesn't tell."""
    call: str = ""
    frame: Frame | None = None
    """Where the others called it."""
    last: Frame | None = None
    """Where the first of `ranks` made its last call."""
    missing: tuple[int, ...] = ()
    """Ranks without a record that aren't among `ranks`."""
    waited: float = 0.0
    """Seconds since the call when the dump was written."""
    nccl: bool = False
    source: str = "flight recorder"
    lags: tuple[Lag, ...] = ()
    """With BEHIND from dumps, each of `ranks` by itself."""
    waiting: tuple[int, ...] = ()
    """All that wait for them, also by way of others."""
    unsure: tuple[int, ...] = ()
    """All ranks that may be at fault, where some of them may wait for another of them in a way that isn't recorded."""

    @property
    def timed_out(self) -> bool:
        """Whether NCCL's watchdog wrote it. Over gloo no timeout does."""
        return self.nccl and self.waited > NCCL_TIMEOUT_SECONDS


def behind(
    lags: Sequence[Lag], waiting: tuple[int, ...], silent: tuple[int, ...], unsure: tuple[int, ...] = ()
) -> RecordedHang:
    """Make the record of ranks that keep others waiting, of at least one.

    Args:
        lags: of each of them.
        waiting: all that wait for them.
        silent: all ranks without a dump.
        unsure: all ranks that may be at fault, where `lags` don't tell; one alone is sure.
    """
    first = lags[0]
    if len(unsure) < 2:
        unsure = ()
    ranks = tuple(rank for rank in unsure if rank in silent) or unsure or tuple(lag.rank for lag in lags)
    same = [lag for lag in lags if (lag.group, lag.call, lag.number) == (first.group, first.call, first.number)]
    return RecordedHang(
        sign=RecordedSign.BEHIND, group=first.group, ranks=ranks,
        others=tuple(sorted({rank for lag in same for rank in lag.others})), number=first.number, call=first.call,
        frame=first.frame, last=first.last if first.rank in ranks else None, missing=tuple(rank for rank in silent if rank not in ranks), waited=max(lag.waited for lag in lags), nccl=first.nccl,
        lags=tuple(lags), waiting=waiting, unsure=unsure,
    )  # fmt: skip


def waits_of(recorded: Sequence[Recorded], world_size: int) -> RecordedHang | None:
    """Follow all waits to their ends, over all groups: a rank may wait in one for a rank that waits in another."""
    return _Graph(recorded, world_size).judge()


class _Call(msgspec.Struct, frozen=True):
    """A call that isn't done."""

    rank: int
    key: Key
    made: MadeCall
    lacks: tuple[int, ...] = ()
    """Ranks known not to have come."""
    silent: tuple[int, ...] = ()
    """Ranks without a dump, where nobody else is known to lack."""
    behind: tuple[int, ...] = ()
    """Ranks that have come, and have something open that they called before."""

    @property
    def awaited(self) -> tuple[int, ...]:
        return (*self.lacks, *self.silent, *self.behind)

    @property
    def age(self) -> tuple[float, int, int]:
        """A key by which the oldest is the least."""
        return self.made.call.created, self.made.call.number, self.rank


class _Graph:
    def __init__(self, recorded: Sequence[Recorded], world_size: int) -> None:
        world = all_ranks(recorded, world_size)
        self.world_size = world_size
        self.dumped = dumped_ranks(recorded)
        self.groups = members_of(recorded, world)
        self.silent = tuple(rank for rank in world if rank not in self.dumped)
        self.calls: dict[int, list[_Call]] = defaultdict(list)
        self.stuck: dict[int, _Call] = {}
        self.even: list[_Call] = []
        for key, members in self.groups.items():
            self._add_collectives(key, members)
            self._add_pairs(key, members)

    # --- what lacks -------------------------------------------------------------------------------------------------------

    def _add_collectives(self, key: Key, members: Mapping[int, Member]) -> None:
        opened: dict[int, list[int]] = defaultdict(list)
        for rank, member in members.items():
            for number, made in member.collectives.items():
                if made.open:
                    opened[number].append(rank)
        for number, ranks in opened.items():
            lacks = tuple(rank for rank, member in members.items() if member.last < number)
            for rank in ranks:
                made = members[rank].collectives[number]
                if lacks:
                    self.calls[rank].append(_Call(rank, key, made, lacks=lacks))
                elif not made.call.name.startswith("gloo:") or members[rank].dumped.some_done:
                    # Some dumps of gloo don't say what is done.
                    self._add_complete_call(key, members, rank, made)

    def _add_complete_call(self, key: Key, members: Mapping[int, Member], rank: int, made: MadeCall) -> None:
        number = made.call.number
        if call_name(made.call.name) not in ROOTED_COLLECTIVES and any(
            member.has_finished(number) for other, member in members.items() if other != rank
        ):
            self._add_stuck(_Call(rank, key, made))
            return
        if members[rank].first_open != number:
            # What keeps an earlier one from being done keeps this, too.
            return
        behind = tuple(
            other
            for other, member in members.items()
            if other != rank and self._has_older_open(other, member.collectives.get(number))
        )
        silent: tuple[int, ...] = ()
        if not behind:
            silent = tuple(member for member in key[1] if member not in self.dumped)
            if not silent and not any(member.lists_members for member in members.values()):
                silent = self._unknown_members(key, members, number)
        self._add_wait(_Call(rank, key, made, silent=silent, behind=behind))

    def _add_stuck(self, call: _Call) -> None:
        before = self.stuck.get(call.rank)
        if before is None or call.made.order < before.made.order:
            self.stuck[call.rank] = call

    def _add_wait(self, call: _Call) -> None:
        self.calls[call.rank].append(call)
        if not call.awaited and not self._has_older_open(call.rank, call.made):
            self.even.append(call)

    def _has_older_open(self, rank: int, made: MadeCall | None) -> bool:
        """Whether a rank has something open that it called before."""
        first: Order | None = self.dumped[rank].first_open
        return made is not None and first is not None and first < made.order

    def _unknown_members(self, key: Key, members: Mapping[int, Member], number: int) -> tuple[int, ...]:
        """Guess who else is in a group of which no dump says who is in it, where all that are known to be have come.

        Of the default group, and of any from its second call on, only ranks without a dump are not known: at least the one above all
        others, where nobody says how many there are. Calls of different sizes need nobody else to be never done.
        """
        if self.silent:
            return self.silent
        if number > 1 or key[0].partition(":")[0] in DEFAULT_GROUP:
            sizes = {
                member.collectives[number].call.shapes for member in members.values() if number in member.collectives
            }
            return () if self.world_size or len(sizes) > 1 else (max(self.dumped) + 1,)
        return tuple(rank for rank, dump in self.dumped.items() if dump.first_open is None and rank not in members)

    def _add_pairs(self, key: Key, members: Mapping[int, Member]) -> None:
        made: dict[tuple[int, int, str], list[MadeCall]] = defaultdict(list)
        for rank, member in members.items():
            for pair in member.pairs:
                found = PAIR_NAME.match(pair.call.name)
                if found:
                    place = int(found["peer"])
                    made[rank, key[1][place] if place < len(key[1]) else -1, found["verb"]].append(pair)
        for (rank, peer, verb), calls in made.items():
            answers = made.get((peer, rank, ANSWERS[verb]), [])
            if not (self._has_all_calls(rank) and self._has_all_calls(peer)):
                # The calls of which one side says nothing any more are done.
                calls, answers = [call for call in calls if call.open], [answer for answer in answers if answer.open]
            # What two ranks send each other is done in its order: what comes after the first has no say yet.
            first = next((index for index, call in enumerate(calls) if call.open), None)
            if first is not None:
                self._add_pair(key, rank, peer, calls[first], answers[first] if first < len(answers) else None)

    def _add_pair(self, key: Key, rank: int, peer: int, made: MadeCall, answer: MadeCall | None) -> None:
        if peer not in self.dumped:
            self._add_wait(_Call(rank, key, made, silent=(peer,) if peer >= 0 else ()))
        elif answer is None:
            self._add_wait(_Call(rank, key, made, lacks=(peer,)))
        elif not answer.open:
            self._add_stuck(_Call(rank, key, made))
        else:
            self._add_wait(_Call(rank, key, made, behind=(peer,) if self._has_older_open(peer, answer) else ()))

    def _has_all_calls(self, rank: int) -> bool:
        """Whether its dump has all calls from the first on."""
        return rank in self.dumped and self.dumped[rank].complete

    # --- followed to its end ----------------------------------------------------------------------------------------------

    def judge(self) -> RecordedHang | None:
        """Find the ends of all waits, or why there are none."""
        edges = {rank: self._waits_for(rank) for rank in self.dumped}
        # Where what is known has no end, a rank without a dump, for which some of them wait, may be where that began.
        all_edges = {rank: self._may_wait_for(rank) for rank in self.dumped}
        if found := self._judge_ends(edges) or self._judge_ends(all_edges):
            return found
        if self.even:
            return self._first_even()
        return self._judge_circle(self._first_waits()) or self._judge_circle(edges)

    def _judge_ends(self, edges: Mapping[int, frozenset[int]]) -> RecordedHang | None:
        """Judge those who are waited for and wait for nobody, if there are any."""
        waited = {rank for ends in edges.values() for rank in ends}
        ends = {rank for rank in waited if not edges.get(rank) and not self.calls.get(rank)} | set(self.stuck)
        lags = tuple(self._lag(rank) for rank in sorted(ends))
        return behind(lags, self._waiting(ends), self.silent, self._possible_ends(lags)) if lags else None

    def _waiting(self, ends: Collection[int] = ()) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, calls in self.calls.items() if calls and rank not in ends))

    def _possible_ends(self, lags: Sequence[Lag]) -> tuple[int, ...]:
        """List over gloo, which records no sends and receives, all ranks that may be waited for: those of `lags`, those that wait in
        nothing that is recorded, and those without a dump unless the default group is the only one: then there is no pipeline."""
        if any(lag.nccl for lag in lags):
            return ()
        idle = {rank for rank, dump in self.dumped.items() if dump.first_open is None}
        silent = () if all(name.partition(":")[0] in DEFAULT_GROUP for name, _ in self.groups) else self.silent
        return tuple(sorted(idle.union(silent, (lag.rank for lag in lags))))

    def _waits_for(self, rank: int) -> frozenset[int]:
        if rank in self.stuck:
            return frozenset()
        sure = {lack for call in self.calls.get(rank, ()) for lack in call.lacks}
        return frozenset(sure - {rank}) if sure else self._may_wait_for(rank)

    def _first_waits(self) -> dict[int, frozenset[int]]:
        """Map each rank to those for whom it waits in its first call that isn't done: what it called after that may hang for that alone."""
        first = {rank: min(calls, key=lambda call: call.made.order) for rank, calls in self.calls.items() if calls}
        return {rank: frozenset(call.awaited) - {rank} for rank, call in first.items()}

    def _may_wait_for(self, rank: int) -> frozenset[int]:
        return frozenset(other for call in self.calls.get(rank, ()) for other in call.awaited) - {rank}

    def _lag(self, rank: int) -> Lag:
        own = self.stuck.get(rank)
        if own:
            number = own.made.call.number
            members = self.groups[own.key]
            pair = PAIR_NAME.match(own.made.call.name) if own.made.call.point_to_point else None
            if pair:
                return self._lag_of(rank, LagCause.STUCK, own, [own.key[1][int(pair["peer"])]])
            done = (other for other, member in members.items() if other != rank and member.has_finished(number))
            return self._lag_of(rank, LagCause.STUCK, own, done)
        wanted = [
            call for calls in self.calls.values() for call in calls
            if call.rank not in self.stuck and rank in call.awaited
        ]  # fmt: skip
        callers: dict[tuple[Key, bool, int], list[_Call]] = defaultdict(list)
        for call in wanted:
            callers[call.key, call.made.call.point_to_point, call.made.call.number].append(call)
        # The one that shows most, and of these the one where it began.
        same = min(callers.values(), key=lambda calls: (calls[0].made.call.point_to_point, -len(calls), *calls[0].age))
        first = min(same, key=lambda call: call.age)
        return self._lag_of(
            rank, LagCause.ABSENT if rank in self.dumped else LagCause.SILENT, first, (call.rank for call in same)
        )

    def _lag_of(self, rank: int, cause: LagCause, call: _Call, others: Iterable[int]) -> Lag:
        made = call.made.call
        own = self.dumped.get(rank)
        return Lag(
            rank=rank, cause=cause, group=call.key[0], call=call_name(made.name), number=made.number,
            others=tuple(sorted(set(others))), frame=where_called(made),
            last=where_called(own.last) if own and own.last else None,
            waited=self._waited(call), nccl=made.name.startswith("nccl:"),
        )  # fmt: skip

    def _waited(self, call: _Call) -> float:
        """Return for how many seconds a call had waited when the dump was written; 0.0 where that isn't known."""
        written = self.dumped[call.rank].dump.written
        return written - call.made.call.created if written and call.made.call.created else 0.0

    def _first_even(self) -> RecordedHang:
        """Judge the first call that all have made and none has finished, with nothing before it that is open."""
        first = min(self.even, key=lambda call: call.age)
        made = first.made.call
        same = [call for call in self.even if call.key == first.key and call.made.call.number == made.number]
        ranks = {call.rank for call in same} if made.point_to_point else {*first.key[1], *self.groups[first.key]}
        return RecordedHang(
            sign=RecordedSign.EVEN, group=first.key[0], ranks=tuple(sorted(ranks)), number=made.number, call=call_name(made.name),
            frame=where_called(made), missing=self.silent, waited=max(map(self._waited, same)), nccl=made.name.startswith("nccl:"),
        )  # fmt: skip

    def _judge_circle(self, edges: Mapping[int, frozenset[int]]) -> RecordedHang | None:
        """Judge ranks that all wait for each other: one without whom there is no circle has taken another way than the others."""
        circle = _in_last_circles(edges)
        within = {rank: edges[rank] & set(circle) for rank in circle}
        alone = [
            rank
            for rank in _one_circle(within, circle)
            if not _in_circles({start: ends - {rank} for start, ends in within.items() if start != rank})
        ]
        if len(alone) == 1:
            return behind((self._lag(alone[0]),), self._waiting(alone), self.silent)
        if not circle:
            return None
        return RecordedHang(
            sign=RecordedSign.CIRCLE, group="", ranks=circle, waiting=self._waiting(), missing=self.silent
        )


def _in_circles(edges: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Find the ranks that are left when all that wait for nobody, and all for whom nobody waits, are taken away again and again."""
    left = {rank: set(ends) & set(edges) for rank, ends in edges.items()}
    while True:
        waited = {end for ends in left.values() for end in ends}
        gone = {rank for rank, ends in left.items() if not ends or rank not in waited}
        if not gone:
            return tuple(sorted(left))
        left = {rank: ends - gone for rank, ends in left.items() if rank not in gone}


def _in_last_circles(edges: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Find the ranks that wait for each other, also by way of others, and for nobody else who waits in a circle."""
    left = _in_circles(edges)
    reached = {rank: _reached(rank, edges) & set(left) for rank in left}
    return tuple(rank for rank in left if all(reached[end] == reached[rank] for end in reached[rank]))


def _reached(start: int, edges: Mapping[int, frozenset[int]]) -> set[int]:
    found: set[int] = set()
    new = set(edges.get(start, ()))
    while new:
        found |= new
        new = {end for rank in new for end in edges.get(rank, ())} - found
    return found


def _one_circle(edges: Mapping[int, frozenset[int]], ranks: Sequence[int]) -> tuple[int, ...]:
    """Find a short circle. Who is in all circles is in this one."""
    # From anywhere, the first rank that comes again closes a circle.
    path = list(ranks[:1])
    while path:
        following = min(edges[path[-1]] & set(ranks), key=lambda rank: rank not in path)
        if following in path:
            return tuple(path[path.index(following) :])
        path.append(following)
    return ()
