"""Why a job hangs: one cause, with the ranks whose it is. Pure.

Where nothing tells the ranks apart, none is blamed: that is a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import listed, ranks_named
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.registry import JudgedElsewhere, requires
from ddpdoctor.facts.hang import NOT_FOUND, Frame, Hang
from ddpdoctor.hang.flight_recorder.wait_graph import RecordedHang, RecordedSign, behind
from ddpdoctor.hang.rank_states import (
    CHECKPOINTS,
    RankActivity,
    RankState,
    is_worker_moving,
    states_of,
    with_activity,
)
from ddpdoctor.hang.recorded_hang import counts_move, not_dumped, record_of
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.torch_frames import FORWARD, PlaceKind, StackPlace, file_line, where

ALONE_SECONDS: Final = 60.0
"""So long ranks may well wait for one that does something alone."""
BARRIERS: Final = ("barrier", "monitored_barrier")
GATHER_DUMP: Final = "gather it, or look at what is missing first: a rank that can't dump is often the culprit"
LOOK_AT_SILENT: Final = "look at it on its host first: a rank that can't answer is often the culprit"
CAUSE_OF_SIGN: Final = {
    RecordedSign.MISMATCH: HangCause.DESYNC,
    RecordedSign.FORK: HangCause.DESYNC,
    RecordedSign.BEHIND: HangCause.BEHIND,
    RecordedSign.CIRCLE: HangCause.DESYNC,
    RecordedSign.EVEN: HangCause.STALLED,
}

Places = tuple[tuple[StackPlace, tuple[RankState, ...]], ...]


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The one cause of a hang."""

    kind: HangCause
    culprits: tuple[RankState, ...] = ()
    """The ranks whose fault it is, as far as they are on this host; all that wait, where nothing tells them apart."""
    waiting: tuple[RankState, ...] = ()
    """Those that wait for the culprits."""
    places: Places = ()
    """With DESYNC, UNEVEN and STALLED where ranks stand together, the most first."""
    unseen: tuple[RankState, ...] = ()
    """Ranks of this host that could not be looked into."""
    record: RecordedHang | None = None
    """What the flight recorders or RAS say, if it fits."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits by number, also those of other hosts."""
        here = tuple(culprit.number for culprit in self.culprits)
        return here or (self.record.ranks if self.record else ())

    @property
    def frames(self) -> tuple[Frame | None, ...]:
        """The lines at which the culprits stand."""
        return tuple(culprit.place.frame for culprit in self.culprits)

    @property
    def lines(self) -> str:
        """The same in words: "train.py:40 and eval.py:12"."""
        return listed(dict.fromkeys(filter(None, map(file_line, self.frames))), most=3)

    @property
    def where(self) -> str:
        """What the culprits are in: "forward (train.py:40) and sleep (data.py:12)"."""
        return listed(dict.fromkeys(where(culprit.place) for culprit in self.culprits), most=2)

    def verb(self, singular: str, several: str) -> str:
        """Pick the verb that goes with the culprits."""
        return singular if len(self.culprits) == 1 else several

    def blamed_rank(self, hang: Hang) -> int | None:
        """Name the first rank to blame of which there is a process or a record; None where nothing tells the ranks apart."""
        if self.kind is HangCause.STALLED or (self.record and self.record.sign is RecordedSign.EVEN):
            return None
        known = {rank.rank for rank in hang.ranks} | {recorded.rank for recorded in hang.recorded}
        record = self.record if self.record and self.record.sign is RecordedSign.BEHIND else None
        if record is None:
            return self.ranks[0]
        return next((rank for rank in record.ranks if rank in known or not record.lags), None)

    @property
    def moving(self) -> bool:
        """Whether every culprit makes progress."""
        return bool(self.culprits) and all(culprit.progress for culprit in self.culprits)


def verdict_for(hang: Hang, kind: HangCause) -> HangVerdict | None:
    """Return the verdict to the check of that cause; None where the job moves on.

    Where no job was looked at, that check doesn't apply.

    Raises:
        JudgedElsewhere: it hangs for another reason.
    """
    requires(hang.asked, "no running job was looked at")
    found = verdict_of(hang)
    if found and found.kind is not kind:
        raise JudgedElsewhere("the ranks hang for another reason", found.kind)
    return found


def verdict_of(hang: Hang) -> HangVerdict | None:
    """Judge why a job hangs; None where it moves on, or does nothing that could hang. Raises NotKnown where that can't be told."""
    states = states_of(hang)
    gone, unseen = with_activity(states, RankActivity.GONE), with_activity(states, RankActivity.UNSEEN)
    if len(gone) == len(states) or (hang.server and hang.recorded and len(gone) + len(unseen) == len(states)):
        return _judge_records(hang, gone)
    found = _judge_blocked(states) or _judge_waits(states, hang)
    return found and msgspec.structs.replace(found, unseen=unseen)


# --- dumps alone --------------------------------------------------------------------------------------------------------


def _judge_records(hang: Hang, gone: Sequence[RankState]) -> HangVerdict | None:
    record = record_of(hang)
    if record:
        culprits = tuple(state for state in gone if state.number in record.ranks)
        return HangVerdict(kind=_cause_of(record, hang), culprits=culprits, record=record)
    if gone:
        raise NotKnown("all ranks of this host are gone, and no flight recorder tells what they did: see the log")
    missing = not_dumped(hang)
    calls = [call for dump in hang.recorded for group in dump.groups for call in group.entries]
    all_done = bool(calls) and all(call.state == "completed" for call in calls)
    if counts_move(hang) or (all_done and not missing):
        return None
    if missing:
        raise NotKnown(f"{missing}: {ask_for_record(hang)}")
    if hang.recorded:
        ranks = ranks_named(recorded.rank for recorded in hang.recorded)
        raise NotKnown(
            f"by the flight recorders of {ranks}, none waits for another; gloo's don't record sends and receives"
        )
    raise NotKnown("all ranks have begun the same collectives, by NCCL's RAS: it doesn't say whether they are done")


def _cause_of(record: RecordedHang, hang: Hang) -> HangCause:
    cause = CAUSE_OF_SIGN[record.sign]
    # What a debug server tells, no timeout has written.
    timed_out = record.timed_out and not hang.server
    return HangCause.TIMED_OUT if timed_out and cause is not HangCause.DESYNC else cause


def ask_for_record(hang: Hang) -> str:
    """Say what to do about a rank of which there is no record, as the end of a sentence."""
    return LOOK_AT_SILENT if hang.server else GATHER_DUMP


# --- ranks that can do nothing ------------------------------------------------------------------------------------------


def _judge_blocked(states: Sequence[RankState]) -> HangVerdict | None:
    """Find ranks that are stopped, gone, held by the kernel, or in front of a debugger: all others wait for these."""
    waiting = with_activity(states, RankActivity.WAITS, RankActivity.PERHAPS)
    if stopped := with_activity(states, RankActivity.STOPPED):
        return HangVerdict(kind=HangCause.STOPPED, culprits=stopped, waiting=waiting)
    gone, sure = with_activity(states, RankActivity.GONE), with_activity(states, RankActivity.WAITS)
    if gone and sure:
        # One that the others still expect may never have been started, unless it was seen.
        in_rendezvous = all(state.where is PlaceKind.GROUP for state in sure)
        expected = in_rendezvous and all(state.rank.gone == NOT_FOUND for state in gone)
        kind = HangCause.RENDEZVOUS if expected else HangCause.CRASHED
        return HangVerdict(kind=kind, culprits=gone, waiting=waiting)
    if held := with_activity(states, RankActivity.HELD):
        return HangVerdict(kind=HangCause.KERNEL, culprits=held, waiting=waiting)
    elsewhere = with_activity(states, RankActivity.ELSEWHERE)
    if prompting := tuple(state for state in elsewhere if state.where is PlaceKind.INPUT):
        return HangVerdict(kind=HangCause.INPUT, culprits=prompting, waiting=waiting)
    moving = any(state.progress for state in elsewhere) or with_activity(states, RankActivity.MOVES)
    # Who waits for its GPU uses a core all the while, and looks like progress.
    if gone and not moving and (elsewhere or with_activity(states, RankActivity.PERHAPS)):
        return HangVerdict(kind=HangCause.CRASHED, culprits=gone)
    return None


# --- who waits for whom -------------------------------------------------------------------------------------------------


def _judge_waits(states: Sequence[RankState], hang: Hang) -> HangVerdict | None:
    if all(state.activity in (RankActivity.UNSEEN, RankActivity.GONE) for state in states):
        own_words = next((state.last.source for state in states if state.last.is_own_word), "")
        raise NotKnown(own_words or (hang.hidden[0] if hang.hidden else "no rank could be looked into"))
    if with_activity(states, RankActivity.MOVES) or counts_move(hang):
        return None
    waiting = with_activity(states, RankActivity.WAITS)
    perhaps = with_activity(states, RankActivity.PERHAPS)
    elsewhere = with_activity(states, RankActivity.ELSEWHERE)
    if not waiting and any(is_worker_moving(worker) for state in perhaps for worker in state.rank.workers):
        return None
    if elsewhere and waiting:
        return _judge_elsewhere(elsewhere, (*waiting, *perhaps), hang)
    return _judge_all_elsewhere(elsewhere, perhaps) if elsewhere else _judge_all_waiting(states, hang)


def _judge_elsewhere(elsewhere: Sequence[RankState], waiting: tuple[RankState, ...], hang: Hang) -> HangVerdict | None:
    """Judge ranks that don't wait for others: those first that can't go on by themselves."""
    if stuck := tuple(filter(_is_loader_stuck, elsewhere)):
        return HangVerdict(kind=HangCause.LOADER, culprits=stuck, waiting=waiting)
    if locked := tuple(filter(_is_locked, elsewhere)):
        return HangVerdict(kind=HangCause.LOCK, culprits=locked, waiting=waiting)
    rest = [state for state in elsewhere if state.where is not PlaceKind.LOADER]
    if not rest:
        return None  # A DataLoader that is slow, and moves.
    still = tuple(state for state in rest if not state.progress) or tuple(rest)
    first = still[0]
    record = record_of(hang)
    if first.progress and record and record.sign is RecordedSign.BEHIND and 0.0 < record.waited < ALONE_SECONDS:
        return None
    kind = HangCause.BUSY
    if [state.number for state in still] == [0] and (first.progress or first.where in CHECKPOINTS):
        kind = HangCause.SLOW_0
    elif all(state.where is PlaceKind.GROUP for state in waiting):
        kind = HangCause.RENDEZVOUS
    fits = record and record.sign is RecordedSign.BEHIND and {state.number for state in still}.issuperset(record.ranks)
    return HangVerdict(kind=kind, culprits=still, waiting=waiting, record=record if fits else None)


def _is_loader_stuck(state: RankState) -> bool:
    """Whether its worker stays where it is, or is gone. Without workers, the data set runs in the rank itself."""
    if state.where is PlaceKind.DATA:
        return not state.progress
    if state.where is not PlaceKind.LOADER or state.progress:
        return False
    return not any(map(is_worker_moving, state.busy_workers))


def _is_locked(state: RankState) -> bool:
    return state.where is PlaceKind.LOCK and not state.progress


def _judge_all_elsewhere(elsewhere: tuple[RankState, ...], perhaps: tuple[RankState, ...]) -> HangVerdict | None:
    """Judge ranks none of which surely waits for another: all compute, or none can go on."""
    if stuck := tuple(filter(_is_loader_stuck, elsewhere)):
        return HangVerdict(kind=HangCause.LOADER, culprits=stuck, waiting=perhaps)
    if any(state.progress for state in elsewhere):
        return None
    if locked := tuple(filter(_is_locked, elsewhere)):
        return HangVerdict(kind=HangCause.LOCK, culprits=locked, waiting=perhaps)
    if perhaps:
        return HangVerdict(kind=HangCause.BUSY, culprits=elsewhere, waiting=perhaps)
    if len(elsewhere) < 2:
        return None
    return HangVerdict(kind=HangCause.STALLED, culprits=elsewhere, places=_by_place(elsewhere))


def _judge_all_waiting(states: Sequence[RankState], hang: Hang) -> HangVerdict | None:
    waiting = with_activity(states, RankActivity.WAITS, RankActivity.PERHAPS)
    left = with_activity(states, RankActivity.LEFT)
    if not waiting:
        is_still = left and not any(state.progress for state in left)
        return HangVerdict(kind=HangCause.EXIT, culprits=left) if is_still else None
    if left:
        return HangVerdict(kind=HangCause.UNEVEN, culprits=left, waiting=waiting)
    record = _without_those_that_wait(record_of(hang), waiting, hang)
    places = _by_place(waiting)
    if record and record.sign is not RecordedSign.EVEN:
        culprits = tuple(state for state in waiting if state.number in record.ranks)
        others = tuple(state for state in waiting if state.number not in record.ranks)
        return HangVerdict(
            kind=_cause_of(record, hang), culprits=culprits, waiting=others, places=places, record=record
        )
    stalled = HangVerdict(kind=HangCause.STALLED, culprits=waiting, places=places, record=record)
    sure = with_activity(waiting, RankActivity.WAITS)
    unsure = with_activity(waiting, RankActivity.PERHAPS)
    if not sure or any(state.where is not PlaceKind.STEP for state in unsure):
        return stalled
    if all(state.where is PlaceKind.GROUP for state in waiting):
        return HangVerdict(kind=HangCause.RENDEZVOUS, culprits=waiting, places=places)
    if len(places) == 1 or all(state.where is PlaceKind.PAIR for state in waiting):
        return msgspec.structs.replace(stalled, kind=_cause_of(record, hang)) if record else stalled
    # Different calls may belong to different groups by design: then most ranks say nothing about which is wrong.
    return stalled if hang.groups > 1 else _judge_different_calls(waiting, places)


def _without_those_that_wait(
    record: RecordedHang | None, waiting: tuple[RankState, ...], hang: Hang
) -> RecordedHang | None:
    """Leave out ranks that only seem to keep the others waiting: their stacks show that they wait themselves, in what no dump tells
    of. gloo doesn't record sends, receives and the making of groups; a rank without a dump may not have come to write it."""
    if record is None or not record.lags:
        return record
    dumped = {recorded.rank for recorded in hang.recorded}
    without_dump = {state.number for state in waiting} - dumped
    over_gloo = without_dump | {state.number for state in waiting if state.where in (PlaceKind.PAIR, PlaceKind.GROUP)}
    lags = tuple(lag for lag in record.lags if lag.rank not in (without_dump if lag.nccl else over_gloo))
    if not lags:
        return None
    silent = tuple(rank for rank in (*record.ranks, *record.missing) if rank not in dumped)
    unsure = tuple(rank for rank in record.unsure if rank not in over_gloo)
    return behind(lags, record.waiting, silent, unsure)


def _judge_different_calls(waiting: tuple[RankState, ...], places: Places) -> HangVerdict:
    """Judge ranks that wait in different calls: some have left the loop in which others are, or they call different things."""
    beyond = tuple(state for state in waiting if state.place.what in BARRIERS)
    within = tuple(state for state in waiting if state not in beyond)
    # A backward is in a loop. The forward, to validate, or a collective of one's own may also be what one rank alone does: there
    # most ranks decide what the way through the script is.
    own = any(state.where is PlaceKind.COLLECTIVE or state.place.what == FORWARD for state in within)
    in_loop = {state.where for state in within} in ({PlaceKind.STEP}, {PlaceKind.COLLECTIVE})
    looping = in_loop and (not own or len(beyond) < len(within))
    further = all(_is_further(state.place, other.place) for state in beyond for other in within)
    if beyond and within and looping and further:
        return HangVerdict(kind=HangCause.UNEVEN, culprits=beyond, waiting=within, places=places)
    places = _with_telling_lines(places)
    tied = len(places[0][1]) == len(places[1][1])
    odd = tuple(member for place, members in places for member in members if tied or place is not places[0][0])
    others = () if tied else places[0][1]
    return HangVerdict(kind=HangCause.DESYNC, culprits=odd, waiting=others, places=places)


def _with_telling_lines(places: Places) -> Places:
    """Replace each place's line by the one in which it differs: a helper of the user's own may be called from several."""
    found = []
    for place, members in places:
        alike = [
            other.path
            for other, _ in places
            if other is not place and (other.what, other.frame) == (place.what, place.frame)
        ]
        apart = next((frame for frame in place.path if all(frame not in path for path in alike)), place.frame)
        shown = msgspec.structs.replace(place, frame=apart if alike else place.frame)
        found.append((shown, tuple(msgspec.structs.replace(member, place=shown) for member in members)))
    return tuple(found)


def _is_further(place: StackPlace, other: StackPlace) -> bool:
    """Whether a place comes later in the same function than another; with no function in common, nothing tells."""
    for frame, others in zip(reversed(place.path), reversed(other.path), strict=False):
        if (frame.path, frame.function) != (others.path, others.function):
            return False
        if frame.line != others.line:
            return frame.line > others.line
    return False


def _by_place(states: Iterable[RankState]) -> Places:
    """Group ranks by the call at which they stand, the most first."""
    groups = grouped(states, lambda state: state.place.call).values()
    return tuple((members[0].place, tuple(members)) for members in sorted(groups, key=len, reverse=True))
