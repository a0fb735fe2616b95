"""Gathers what flight recorders tell of each member of each process group: how far it has come, what it has open. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.hang import Frame, Recorded, RecordedCollective, RecordedGroup
from ddpdoctor.hang.flight_recorder.dump_format import DEFAULT_GROUP
from ddpdoctor.knowledge.torch_frames import is_users_code

Key = tuple[str, tuple[int, ...]]
"""A group's name and members: groups of different members may have one name. () where no dump says who is in it."""
Order = tuple[int, float]
"""When a rank made a call, to be compared with its other calls."""
ROOTED_COLLECTIVES: Final = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "coalesced")
"""Collectives that may be done on some ranks before all have begun."""


class MadeCall(msgspec.Struct, frozen=True):
    """A call, and when its rank made it."""

    call: RecordedCollective
    order: Order

    @property
    def open(self) -> bool:
        return self.call.state != "completed"


class Dumped(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's dump over all groups."""

    dump: Recorded
    last: RecordedCollective | None = None
    """Its last call."""
    first_open: Order | None = None
    """Its first call that isn't done."""
    forgot_open: bool = False
    """Its first entry isn't done, and none is left out: what the full buffer has forgotten may be open as well."""
    complete: bool = False
    """It has all calls from the first on."""
    some_done: bool = False
    """It has calls that are done."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's dump says of one group."""

    dumped: Dumped
    collectives: dict[int, MadeCall] = {}
    pairs: tuple[MadeCall, ...] = ()
    last: int = 0
    """The number of its last collective; 0 where it has come to none."""
    first_open: int = 0
    """The number of its first collective that isn't done; 0 where all are."""
    done: int | None = None
    """The last collective that torch's status says is done; None where it doesn't say."""
    lists_members: bool = False
    """The dump says who is in the group."""

    def has_finished(self, number: int) -> bool:
        """Whether a collective that this rank has come to is done. A dump of what is open leaves the rest out."""
        made = self.collectives.get(number)
        if made:
            return not made.open
        return self.done >= number if self.done is not None else not self.dumped.forgot_open


def where_called(call: RecordedCollective) -> Frame | None:
    """Find the innermost frame of a call that isn't torch's or Python's."""
    return next(filter(is_users_code, call.frames), None)


def call_name(name: str) -> str:
    """Take the backend from a name: "nccl:all_reduce"."""
    return name.rpartition(":")[2]


def purpose_of(group: str) -> str:
    """Take the number from a group's name, "27:EXPERT": what all groups for one purpose share; "" for one without a purpose."""
    return group.partition(":")[2]


def all_ranks(recorded: Sequence[Recorded], world_size: int) -> tuple[int, ...]:
    """List the ranks that any dump tells of, and all below the highest."""
    members = (rank for dump in recorded for group in dump.groups for rank in group.ranks)
    highest = max((*members, *(dump.rank for dump in recorded)), default=-1)
    return tuple(range(max(world_size, highest + 1)))


def dumped_ranks(recorded: Sequence[Recorded]) -> dict[int, Dumped]:
    """Sum up each rank's dump."""
    found = {}
    for dump in recorded:
        made = sorted((call for group in dump.groups for call in made_calls(group)), key=lambda call: call.order)
        still_open = [call for call in made if call.open]
        first, last = (made[0].order[0], made[-1].order[0]) if made else (0, 0)
        unbroken = bool(made) and last - first + 1 == len(made)
        found[dump.rank] = Dumped(
            dump=dump, last=made[-1].call if made else None, first_open=still_open[0].order if still_open else None,
            forgot_open=unbroken and first > 0 and made[0].open, complete=unbroken and first == 0, some_done=len(still_open) < len(made),
        )  # fmt: skip
    return found


def members_of(recorded: Sequence[Recorded], world: tuple[int, ...]) -> dict[Key, dict[int, Member]]:
    """Gather each group's members that have a dump, by rank. world: all ranks."""
    dumped = dumped_ranks(recorded)
    return {
        key: _members(groups, {rank: dumped[rank] for rank in dumped if rank in key[1] or rank in groups})
        for key, groups in _by_key(recorded, world).items()
    }


def _by_key(recorded: Sequence[Recorded], world: tuple[int, ...]) -> dict[Key, dict[int, RecordedGroup]]:
    found: dict[Key, dict[int, RecordedGroup]] = defaultdict(dict)
    without: dict[str, dict[int, RecordedGroup]] = defaultdict(dict)
    for dump in recorded:
        for group in dump.groups:
            ranks = group.ranks or (world if group.group.partition(":")[0] in DEFAULT_GROUP else ())
            (found[group.group, ranks] if ranks else without[group.group])[dump.rank] = group
    for name, groups in without.items():
        # Some dumps don't say who is in it (none of gloo's do): others may.
        known = [key for key in found if key[0] == name]
        for rank, group in groups.items():
            found[next((key for key in known if rank in key[1]), (name, ()))][rank] = group
    return found


def _members(groups: Mapping[int, RecordedGroup], dumped: Mapping[int, Dumped]) -> dict[int, Member]:
    """Sum up each member; one whose dump has nothing of the group has not come to it."""
    calls = {rank: made_calls(group) for rank, group in groups.items()}
    collectives = {
        rank: {call.call.number: call for call in made if not call.call.point_to_point} for rank, made in calls.items()
    }
    mixed = any(_counts_pairs(group) for group in groups.values()) or _contradict(groups.values())
    found = {}
    for rank, dump in dumped.items():
        group = groups.get(rank, RecordedGroup(group=""))
        own = collectives.get(rank, {})
        status = 0 if mixed else group.last_enqueued or 0
        found[rank] = Member(
            dumped=dump, collectives=own, pairs=tuple(made for made in calls.get(rank, ()) if made.call.point_to_point),
            last=max(own, default=status), first_open=min((number for number, made in own.items() if made.open), default=0),
            done=None if mixed else group.last_completed, lists_members=bool(group.ranks),
        )  # fmt: skip
    return found


def _contradict(groups: Collection[RecordedGroup]) -> bool:
    """Whether by torch's status one member has done what another one hasn't called, and can't be done before: then it counts something
    else, too."""
    rooted = {call.number for group in groups for call in group.entries if call_name(call.name) in ROOTED_COLLECTIVES}
    done = [group.last_completed for group in groups if group.last_completed is not None]
    called = [group.last_enqueued for group in groups if group.last_enqueued is not None]
    return max(done, default=0) > min(called, default=0) and max(done, default=0) not in rooted


def _counts_pairs(group: RecordedGroup) -> bool:
    """Whether torch's status of this group has counted sends and receives among the collectives."""
    last = max((entry.number for entry in group.entries if not entry.point_to_point), default=None)
    if last is not None and group.last_enqueued not in (None, last):
        return True
    return any(entry.point_to_point for entry in group.entries)


def made_calls(group: RecordedGroup) -> list[MadeCall]:
    places = group.places if len(group.places) == len(group.entries) else (0,) * len(group.entries)
    return [
        MadeCall(call, (place, call.created or float(call.number)))
        for call, place in zip(group.entries, places, strict=True)
    ]
