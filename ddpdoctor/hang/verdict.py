"""Why a job hangs: one cause, with whose it is. Pure.

Where nobody can be told apart, nobody is blamed: that is a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import ranks_named
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.registry import JudgedElsewhere, requires
from ddpdoctor.facts.hang import NOT_FOUND, Hang
from ddpdoctor.hang.flight_recorder.wait_graph import LagCause
from ddpdoctor.hang.rank_states import (
    CHECKPOINTS,
    RankActivity,
    RankState,
    is_worker_idle,
    is_worker_moving,
    states_of,
    with_activity,
)
from ddpdoctor.hang.recorded_hang import RecordedHang, RecordedSign, behind, counts_move, not_dumped, record_of
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.stack_places import FORWARD, PlaceKind, StackPlace

SOON: Final = 60.0
"""Seconds that ranks may well wait for one that does something alone."""
BARRIERS: Final = ("barrier", "monitored_barrier")
ITS_DUMP: Final = "gather it, or look at what is missing first: a rank that can't dump is often the culprit"


KIND_OF: Final = {
    RecordedSign.MISMATCH: HangCause.DESYNC, RecordedSign.BEHIND: HangCause.BEHIND, RecordedSign.CIRCLE: HangCause.DESYNC, RecordedSign.EVEN: HangCause.STALLED,
}  # fmt: skip


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The one cause.

    culprits: whose fault it is, as far as they are on this host; all that wait, where nobody can be told apart.
    waiting: those that wait for them. places: with DESYNC, UNEVEN and STALLED where ranks stand together, the most first.
    unseen: ranks of this host that could not be looked into. record: what the flight recorders or RAS say, if it fits.
    """

    kind: HangCause
    culprits: tuple[RankState, ...] = ()
    waiting: tuple[RankState, ...] = ()
    places: tuple[tuple[StackPlace, tuple[RankState, ...]], ...] = ()
    unseen: tuple[RankState, ...] = ()
    record: RecordedHang | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits by number, also those of other hosts."""
        here = tuple(culprit.number for culprit in self.culprits)
        return here or (self.record.ranks if self.record else ())

    @property
    def moving(self) -> bool:
        """Whether every culprit makes progress."""
        return bool(self.culprits) and all(culprit.progress for culprit in self.culprits)


def verdict_for(hang: Hang, kind: HangCause) -> HangVerdict | None:
    """The verdict, for the check that speaks of that kind; None where the job moves on.

    Raises:
        NotApplicable: no job was looked at, or it hangs for another reason.
        NotKnown: it can't be told whether it hangs.
    """
    requires(hang.asked, "no running job was looked at")
    found = verdict_of(hang)
    if found and found.kind is not kind:
        raise JudgedElsewhere("the ranks hang for another reason", found.kind)
    return found


def verdict_of(hang: Hang) -> HangVerdict | None:
    """Why it hangs; None where it moves on, or does nothing that could hang.

    Raises:
        NotKnown: it can't be told.
    """
    states = states_of(hang)
    here = [state for state in states if state.activity is not RankActivity.GONE]
    if not here:
        return _recorded_only(hang, states)
    return _who_can_do_nothing(states) or _who_waits(states, hang)


# --- dumps alone --------------------------------------------------------------------------------------------------------


def _recorded_only(hang: Hang, states: Sequence[RankState]) -> HangVerdict | None:
    record = record_of(hang)
    if record is None:
        if states:
            raise NotKnown("all ranks of this host are gone, and no flight recorder tells what they did: see the log")
        missing = not_dumped(hang)
        if counts_move(hang) or (_all_done(hang) and not missing):
            return None
        raise NotKnown(f"{missing}: {ITS_DUMP}" if missing else _even_words(hang))
    culprits = tuple(state for state in states if state.number in record.ranks)
    kind = KIND_OF[record.sign]
    if record.timed_out and kind is not HangCause.DESYNC:
        kind = HangCause.TIMED_OUT
    return HangVerdict(kind=kind, culprits=culprits, record=record)


def _all_done(hang: Hang) -> bool:
    calls = [entry for dump in hang.recorded for group in dump.groups for entry in group.entries]
    return bool(calls) and all(call.state == "completed" for call in calls)


def _even_words(hang: Hang) -> str:
    if hang.recorded:
        ranks = ranks_named(recorded.rank for recorded in hang.recorded)
        return f"by the flight recorders of {ranks}, none waits for another; gloo's don't record sends and receives"
    return "all ranks have begun the same collectives, by NCCL's RAS: it doesn't say whether they are done"


# --- ranks that can do nothing ------------------------------------------------------------------------------------------


def _who_can_do_nothing(states: Sequence[RankState]) -> HangVerdict | None:
    """Stopped, gone, held by the kernel, in front of a debugger: whatever the others do, they wait for these."""
    waiting = with_activity(states, RankActivity.WAITS, RankActivity.PERHAPS)
    unseen = with_activity(states, RankActivity.UNSEEN)
    stopped = with_activity(states, RankActivity.STOPPED)
    gone = with_activity(states, RankActivity.GONE)
    held = with_activity(states, RankActivity.HELD)
    typing = tuple(
        state for state in with_activity(states, RankActivity.ELSEWHERE) if state.place.where is PlaceKind.INPUT
    )
    if stopped:
        return HangVerdict(kind=HangCause.STOPPED, culprits=stopped, waiting=waiting, unseen=unseen)
    sure = with_activity(states, RankActivity.WAITS)
    if gone and sure:
        # One that the others still expect may never have been started, unless it was seen.
        expected = all(state.place.where is PlaceKind.GROUP for state in sure) and not any(
            _ended(state) for state in gone
        )
        kind = HangCause.RENDEZVOUS if expected else HangCause.CRASHED
        return HangVerdict(kind=kind, culprits=gone, waiting=waiting, unseen=unseen)
    if held:
        return HangVerdict(kind=HangCause.KERNEL, culprits=held, waiting=waiting, unseen=unseen)
    if typing:
        return HangVerdict(kind=HangCause.INPUT, culprits=typing, waiting=waiting, unseen=unseen)
    others = with_activity(states, RankActivity.ELSEWHERE, RankActivity.PERHAPS)
    if gone and others and not any(state.progress or state.activity is RankActivity.MOVES for state in states):
        return HangVerdict(kind=HangCause.CRASHED, culprits=gone, unseen=unseen)
    return None


def _ended(state: RankState) -> bool:
    return state.rank.gone != NOT_FOUND


# --- who waits for whom -------------------------------------------------------------------------------------------------


def _who_waits(states: Sequence[RankState], hang: Hang) -> HangVerdict | None:
    unseen = with_activity(states, RankActivity.UNSEEN)
    if len(unseen) == len([state for state in states if state.activity is not RankActivity.GONE]):
        raise NotKnown(hang.hidden[0] if hang.hidden else "no rank could be looked into")
    if with_activity(states, RankActivity.MOVES) or counts_move(hang):
        return None
    waiting = with_activity(states, RankActivity.WAITS)
    perhaps = with_activity(states, RankActivity.PERHAPS)
    elsewhere = with_activity(states, RankActivity.ELSEWHERE)
    left = with_activity(states, RankActivity.LEFT)
    if not waiting and any(is_worker_moving(worker) for state in perhaps for worker in state.rank.workers):
        return None
    if elsewhere and waiting:
        return _elsewhere(elsewhere, (*waiting, *perhaps), unseen, hang)
    if elsewhere:
        return _all_elsewhere(elsewhere, perhaps, unseen)
    return _all_wait(states, left, unseen, hang)


def _elsewhere(
    elsewhere: Sequence[RankState], waiting: Sequence[RankState], unseen: tuple[RankState, ...], hang: Hang
) -> HangVerdict | None:
    """Of those that don't wait for other ranks, first those that can't go on by themselves."""
    for kind, chosen in (
        (HangCause.LOADER, [state for state in elsewhere if _loader_stuck(state)]),
        (
            HangCause.LOCK,
            [state for state in elsewhere if state.place.where is PlaceKind.LOCK and not state.progress],
        ),
    ):
        if chosen:
            return HangVerdict(kind=kind, culprits=tuple(chosen), waiting=tuple(waiting), unseen=unseen)
    rest = [state for state in elsewhere if state.place.where is not PlaceKind.LOADER]
    if not rest:
        return None  # A DataLoader that is slow, and moves.
    still = [state for state in rest if not state.progress] or rest
    record = record_of(hang)
    if still[0].progress and record and record.sign is RecordedSign.BEHIND and 0.0 < record.waited < SOON:
        return None
    kind = HangCause.BUSY
    if [state.number for state in still] == [0] and (still[0].progress or still[0].place.where in CHECKPOINTS):
        kind = HangCause.SLOW_0
    elif all(state.place.where is PlaceKind.GROUP for state in waiting):
        kind = HangCause.RENDEZVOUS
    return HangVerdict(kind=kind, culprits=tuple(still), waiting=tuple(waiting), unseen=unseen)


def _loader_stuck(state: RankState) -> bool:
    """Its worker stays where it is, or is gone. Without workers, the data set runs in the rank itself."""
    if state.place.where is PlaceKind.DATA:
        return not state.progress
    if state.place.where is not PlaceKind.LOADER or state.progress:
        return False
    busy = [worker for worker in state.rank.workers if not is_worker_idle(worker)]
    return not any(is_worker_moving(watched) for watched in busy)


def _all_elsewhere(
    elsewhere: tuple[RankState, ...], perhaps: tuple[RankState, ...], unseen: tuple[RankState, ...]
) -> HangVerdict | None:
    """Nobody surely waits for another: all compute, or none can go on."""
    stuck = tuple(state for state in elsewhere if _loader_stuck(state))
    if stuck:
        return HangVerdict(kind=HangCause.LOADER, culprits=stuck, waiting=perhaps, unseen=unseen)
    locked = tuple(state for state in elsewhere if state.place.where is PlaceKind.LOCK and not state.progress)
    if locked and not any(state.progress for state in elsewhere):
        return HangVerdict(kind=HangCause.LOCK, culprits=locked, waiting=perhaps, unseen=unseen)
    if any(state.progress for state in elsewhere):
        return None
    if perhaps:
        return HangVerdict(kind=HangCause.BUSY, culprits=elsewhere, waiting=perhaps, unseen=unseen)
    if len(elsewhere) < 2:
        return None
    return HangVerdict(kind=HangCause.STALLED, culprits=elsewhere, places=_places(elsewhere), unseen=unseen)


def _all_wait(
    states: Sequence[RankState], left: tuple[RankState, ...], unseen: tuple[RankState, ...], hang: Hang
) -> HangVerdict | None:
    waiting = with_activity(states, RankActivity.WAITS, RankActivity.PERHAPS)
    record = _without_those_that_wait(record_of(hang), waiting)
    if not waiting:
        still = left and not any(state.progress for state in left)
        return HangVerdict(kind=HangCause.EXIT, culprits=left, unseen=unseen) if still else None
    if left:
        return HangVerdict(kind=HangCause.UNEVEN, culprits=left, waiting=waiting, unseen=unseen)
    if record and record.sign is not RecordedSign.EVEN:
        return _by_record(record, waiting, unseen)
    places = _places(waiting)
    lines = [
        state for state in waiting if state.activity is RankActivity.PERHAPS and state.place.where is not PlaceKind.STEP
    ]
    if lines or not with_activity(waiting, RankActivity.WAITS):
        return HangVerdict(kind=HangCause.STALLED, culprits=waiting, places=places, unseen=unseen, record=record)
    if all(state.place.where is PlaceKind.GROUP for state in waiting):
        return HangVerdict(kind=HangCause.RENDEZVOUS, culprits=waiting, places=places, unseen=unseen)
    if len(places) == 1 or all(state.place.where is PlaceKind.PAIR for state in waiting):
        kind = HangCause.TIMED_OUT if record and record.timed_out else HangCause.STALLED
        return HangVerdict(kind=kind, culprits=waiting, places=places, unseen=unseen, record=record)
    if hang.groups > 1:
        # Different calls may belong to different groups by design: then most ranks say nothing about which is wrong.
        return HangVerdict(kind=HangCause.STALLED, culprits=waiting, places=places, unseen=unseen, record=record)
    return _apart(waiting, places, unseen)


def _without_those_that_wait(record: RecordedHang | None, waiting: tuple[RankState, ...]) -> RecordedHang | None:
    """Without ranks that only seem to keep the others waiting: their stacks show that they wait themselves, in what no dump tells
    of. gloo doesn't record sends, receives and the making of groups; a rank without a dump may not have come to write it."""
    if record is None or not record.lags:
        return record
    unrecorded = {state.number for state in waiting if state.place.where in (PlaceKind.PAIR, PlaceKind.GROUP)}
    here = {state.number for state in waiting}
    lags = tuple(
        lag for lag in record.lags
        if lag.rank not in (here if lag.cause is LagCause.SILENT else unrecorded if not lag.nccl else ())
    )  # fmt: skip
    if len(lags) == len(record.lags):
        return record
    return behind(lags, record.waiting, record.missing) if lags else None


def _by_record(record: RecordedHang, waiting: tuple[RankState, ...], unseen: tuple[RankState, ...]) -> HangVerdict:
    culprits = tuple(state for state in waiting if state.number in record.ranks)
    others = tuple(state for state in waiting if state.number not in record.ranks)
    kind = KIND_OF[record.sign]
    if record.timed_out and kind is not HangCause.DESYNC:
        kind = HangCause.TIMED_OUT
    return HangVerdict(
        kind=kind, culprits=culprits, waiting=others, places=_places(waiting), unseen=unseen, record=record
    )


def _apart(
    waiting: tuple[RankState, ...],
    places: tuple[tuple[StackPlace, tuple[RankState, ...]], ...],
    unseen: tuple[RankState, ...],
) -> HangVerdict:
    """Ranks wait in different calls: some have left the loop in which others are, or they call different things."""
    beyond = tuple(state for state in waiting if state.place.what in BARRIERS)
    within = tuple(state for state in waiting if state not in beyond)
    # A backward is in a loop. The forward, to validate, or a collective of one's own may also be what one rank alone does: there
    # most ranks decide what the way through the script is.
    own = any(state.place.where is PlaceKind.COLLECTIVE or state.place.what == FORWARD for state in within)
    looping = {state.place.where for state in within} in ({PlaceKind.STEP}, {PlaceKind.COLLECTIVE}) and (
        not own or len(beyond) < len(within)
    )
    if (
        beyond
        and within
        and looping
        and all(_further(state.place, other.place) for state in beyond for other in within)
    ):
        return HangVerdict(kind=HangCause.UNEVEN, culprits=beyond, waiting=within, places=places, unseen=unseen)
    places = _places_by_their_lines(places)
    tied = len(places[0][1]) == len(places[1][1])
    odd = tuple(member for place, members in places for member in members if tied or place is not places[0][0])
    others = () if tied else places[0][1]
    return HangVerdict(kind=HangCause.DESYNC, culprits=odd, waiting=others, places=places, unseen=unseen)


def _places_by_their_lines(
    places: tuple[tuple[StackPlace, tuple[RankState, ...]], ...],
) -> tuple[tuple[StackPlace, tuple[RankState, ...]], ...]:
    """Where a helper of the user's own is called from several lines, those are the ones to look at."""
    told = []
    for place, members in places:
        alike = [
            one.path for one, _ in places if one is not place and (one.what, one.frame) == (place.what, place.frame)
        ]
        apart = next((frame for frame in place.path if all(frame not in path for path in alike)), place.frame)
        shown = msgspec.structs.replace(place, frame=apart if alike else place.frame)
        told.append((shown, tuple(msgspec.structs.replace(member, place=shown) for member in members)))
    return tuple(told)


def _further(one: StackPlace, other: StackPlace) -> bool:
    """Whether a place comes later in the same function than another; with no function in common, nobody can say."""
    for mine, theirs in zip(reversed(one.path), reversed(other.path), strict=False):
        if (mine.path, mine.function) != (theirs.path, theirs.function):
            return False
        if mine.line != theirs.line:
            return mine.line > theirs.line
    return False


def _places(states: Iterable[RankState]) -> tuple[tuple[StackPlace, tuple[RankState, ...]], ...]:
    """Ranks that stand at the same call, the most first."""
    groups: list[tuple[StackPlace, list[RankState]]] = []
    for state in states:
        group = next((members for place, members in groups if place.same_as(state.place)), None)
        if group is None:
            groups.append((state.place, [state]))
        else:
            group.append(state)
    return tuple((place, tuple(members)) for place, members in sorted(groups, key=lambda group: -len(group[1])))
