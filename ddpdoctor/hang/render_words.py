"""The words of `jobs --hang`: where the ranks of a job stand, those first that keep the others waiting."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import capital, listed, one_line, plural, ranks_named
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.hang import Frame, Hang, Watched
from ddpdoctor.hang.certainty import STALL_SECONDS, longer_may_tell, movements
from ddpdoctor.hang.evidence import named
from ddpdoctor.hang.fixes import look_again
from ddpdoctor.hang.judging import hang_of, job_of
from ddpdoctor.hang.rank_states import (
    RankActivity,
    RankState,
    cores_used,
    is_worker_moving,
    states_of,
    with_activity,
)
from ddpdoctor.hang.recorded_hang import not_dumped
from ddpdoctor.hang.told_calls import describe_calls
from ddpdoctor.knowledge.torch_frames import PlaceKind, StackPlace, file_line, is_users_code, where, worker_place
from ddpdoctor.processes.render_jobs import described

MAX_CALLERS: Final = 5
MAX_PIDS: Final = 4
MAX_WORKERS: Final = 4
MAX_SECONDS: Final = 600
LONGER_FACTOR: Final = 10
"""Times as long as the last look: a step may take longer than that."""

PLURALS: Final = (
    ("it has", "they have"),
    ("it ended", "they ended"),
    ("it was", "they were"),
    ("is this rank", "is any of these ranks"),
    ("its parent has", "their parents have"),
    ("its stack", "their stacks"),
    ("its", "their"),
    ("holds it", "holds them"),
    ("in it", "in them"),
)
"""Words of a reason for one rank, and those for several."""

STATES: Final = {"R": "running", "S": "waiting", "D": "in the kernel", "T": "stopped", "t": "traced", "Z": "ended"}
LAUNCHER_STATES: Final = {
    "T": "is stopped: it takes no note of a rank's end",
    "t": "is held by a debugger",
    "D": "is held by the kernel",
}
"""Words for what a launcher does but wait."""
GROUP_ORDER: Final = (
    RankActivity.STOPPED, RankActivity.GONE, RankActivity.HELD, RankActivity.LEFT, RankActivity.ELSEWHERE, RankActivity.UNSEEN, RankActivity.PERHAPS, RankActivity.WAITS,
    RankActivity.MOVES,
)  # fmt: skip
"""Ranks that keep others waiting come before those that wait."""


class Group(msgspec.Struct, frozen=True):
    """Ranks that stand in the same place. words: what they do there. details: more of it, a line each. frames: the whole stack
    of the first of them."""

    ranks: str
    words: str
    details: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()


def headline(examination: Examination) -> str:
    """The whole in a sentence; it never says that all is well with what was not seen."""
    found = examination.findings
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0][2].summary}{more}"
    hang = hang_of(examination)
    stands = states_of(hang)
    if not stands and hang.job:
        return "No rank of this job could be looked at"
    if not stands:
        missing = not_dumped(hang)
        if hang.recorded and not missing:
            return f"The dumps don't tell why it hangs: {hang.dumps}"
        return missing or f"Nothing was seen: {hang.dumps}"
    return how_many_move(stands, hang)


def how_many_move(stands: Sequence[RankState], hang: Hang) -> str:
    """ "All 4 ranks move", "2 of 4 ranks move; rank 3 could not be looked into"."""
    unseen, gone = with_activity(stands, RankActivity.UNSEEN), with_activity(stands, RankActivity.GONE)
    moving = [state for state in stands if state not in (*unseen, *gone) and moves(state)]
    waiting = [state for state in with_activity(stands, RankActivity.WAITS) if moving and not moves(state)]
    still = [state for state in stands if state not in (*unseen, *gone, *moving, *waiting)]
    everybody = {1: f"Rank {stands[0].number}", 2: "Both ranks"}.get(len(stands), f"All {len(stands)} ranks")
    if len(moving) == len(stands):
        return f"{everybody} move{'s' if len(stands) == 1 else ''}"
    if len(gone) == len(stands):
        return f"{everybody} {'has' if len(stands) == 1 else 'have'} ended: the first error in the job's log says why"
    parts = []
    if moving:
        parts.append(f"{len(moving)} of {plural(len(stands), 'rank')} {'moves' if len(moving) == 1 else 'move'}")
    if waiting:
        s, works = "s" if len(waiting) == 1 else "", "works" if len(moving) == 1 else "work"
        parts.append(f"{named(waiting, hang)} wait{s} for {named(moving, hang)}, which {works}")
    if still:
        parts.append(f"{named(still, hang)} stay{'s' if len(still) == 1 else ''} in one place")
    if gone:
        parts.append(f"{named(gone, hang)} {'is' if len(gone) == 1 else 'are'} gone")
    if unseen:
        parts.append(f"{named(unseen, hang)} could not be looked into")
    return capital("; ".join(parts))


def moves(stand: RankState) -> bool:
    """Also one that computes in one place."""
    return stand.activity is RankActivity.MOVES or stand.progress


def _goes_on(stand: RankState) -> bool:
    """It was in other places meanwhile, and not only in those of a loop that waits."""
    watched = stand.rank.watched
    wandered = watched is not None and watched.samples > 0 and not watched.still
    return stand.activity is RankActivity.MOVES or (
        stand.activity is RankActivity.ELSEWHERE and stand.progress and wandered
    )


def rows(examination: Examination) -> list[tuple[str, str]]:
    """(label, text): which job, for how long it was watched, and what else was asked."""
    hang, job = hang_of(examination), job_of(examination)
    found = []
    if job:
        first = job.launcher or job.ranks[0]
        state = LAUNCHER_STATES.get(job.launcher.state, "") if job.launcher else ""
        found = [
            ("job", f"{job.name}: {first.command or first.name}"),
            ("", described(job)),
            ("launcher", f"pid {first.pid} {state}" if state else ""),
        ]
    if hang.server:
        found += [
            ("asked", f"torch's debug server at {hang.server}, {_where_ranks_run(hang)}"),
            ("recorders", hang.dumps),
        ]
    elif any(rank.watched for rank in hang.ranks):
        found.append(("watched", _watched(hang)))
    found.append(
        ("dumps", "" if hang.server else hang.dumps if hang.recorded or not hang.job or "nccl" in hang.backend else "")
    )
    found += [("refused", text) for text in hang.refused]
    if "nccl" in hang.backend:
        asked = f"{plural(len(hang.counts), 'count')} of operations, asked twice" if hang.counts else hang.ras
        found.append(("RAS", asked))
    return [(label, one_line(text)) for label, text in found if text]


def _where_ranks_run(hang: Hang) -> str:
    hosts = {rank.host for rank in hang.ranks} - {""}
    on = f" on {plural(len(hosts), 'host')}" if hosts else ""
    return f"{plural(len(hang.ranks), 'rank')}{on}, for {hang.between:.1f} s"


def _watched(hang: Hang) -> str:
    counts = [rank.watched.samples for rank in hang.ranks if rank.watched and rank.watched.samples]
    read = f", each stack read some {round(min(counts), -1) or min(counts)} times" if counts else ""
    held = "no rank was held up" if not hang.paused else f"a rank was held up for at most {hang.paused:.1f} s"
    return f"for {hang.between:.1f} s{read}; {held}"


# --- who stands where -------------------------------------------------------------------------------------------------------


def groups(examination: Examination) -> list[Group]:
    """Those first whom a finding names, then those that keep others waiting; of equals the fewest first."""
    hang = hang_of(examination)
    blamed = {finding.rank for _, _, finding in examination.findings if finding.rank is not None}
    gathered = sorted(
        grouped(states_of(hang), _group_key).values(),
        key=lambda members: (
            blamed.isdisjoint(member.number for member in members),
            GROUP_ORDER.index(members[0].activity),
            len(members),
            members[0].number,
        ),
    )
    return [_group(members, hang) for members in gathered]


def _group_key(state: RankState) -> object:
    if _goes_on(state):
        return _place_within(state.rank.watched)
    if state.activity is RankActivity.GONE:
        return state.rank.gone, state.activity
    return state.activity, state.place.call, state.progress


def _group(members: Sequence[RankState], hang: Hang) -> Group:
    first = members[0]
    details = [*_processes(members)]
    if not _goes_on(first):
        called_from = "" if first.activity is RankActivity.GONE else _called_from(first.place)
        details = [*([called_from] if called_from else []), *details, *_workers(members)]
    if hang.server:
        details += describe_calls(members, hang)
    return Group(named(members, hang), one_line(_words(members)), tuple(map(one_line, details)), first.last.frames)


def _words(members: Sequence[RankState]) -> str:
    first = members[0]
    s = "s" if len(members) == 1 else ""
    are = "is" if len(members) == 1 else "are"
    place = where(first.place)
    if _goes_on(first):
        return f"move{s} on{_place_within(first.rank.watched)}"
    if first.activity is RankActivity.GONE:
        return f"{are} gone{f': {_of(members, first.rank.gone)}' if first.rank.gone else ''}"
    if first.activity is RankActivity.UNSEEN:
        why = f": {_of(members, first.last.source)}" if first.rank.watched and not first.last.frames else ""
        return f"could not be looked into{why}"
    in_place = "" if first.place.where is PlaceKind.UNSEEN else f" in {place}"
    if first.activity is RankActivity.STOPPED:
        source = first.last.source
        return f"{are} stopped{in_place}" + (f": {source}" if source.startswith("a debugger") else "")
    if first.activity is RankActivity.HELD:
        return f"{are} held by the kernel{in_place}"
    if first.activity in (RankActivity.WAITS, RankActivity.PERHAPS):
        return f"wait{s} in {place}"
    if first.progress:
        return f"{are} busy in {place}"
    return f"stay{s} in {place}"


def _of(members: Sequence[RankState], reason: str) -> str:
    """Why there is nothing of a rank, of as many as there are."""
    for single, several in PLURALS if len(members) > 1 else ():
        reason = re.sub(rf"\b{single}\b", several, reason)
    return reason


def _place_within(watched: Watched | None) -> str:
    """ ", within train (train.py)": the innermost function of the user's that it never left; "" where that isn't known."""
    own = next(filter(is_users_code, watched.within), None) if watched else None
    return f", within {own.function.rpartition('.')[2]} ({file_line(own).rpartition(':')[0]})" if own else ""


def _called_from(place: StackPlace) -> str:
    others = place.path[1:]
    shown = [f"{frame.function.rpartition('.')[2]} ({file_line(frame)})" for frame in others[:MAX_CALLERS]]
    more = f", and {len(others) - MAX_CALLERS} more" if len(others) > MAX_CALLERS else ""
    return f"called from {', '.join(shown)}{more}" if shown else ""


def _processes(members: Sequence[RankState]) -> Iterator[str]:
    pids = [member.pid for member in members if member.pid]
    if not pids:
        return
    if len(pids) > 1:
        yield f"pid {listed(pids, MAX_PIDS + 1)}"
        return
    watched = members[0].rank.watched
    assert watched is not None
    cores, last = cores_used(watched), watched.last
    state = STATES.get(last.state, last.state)
    state += f" in {last.waits_in}" if last.waits_in and last.state != "R" else ""
    yield f"pid {pids[0]}, {state}, used {f'{cores:.1f} cores' if cores >= 0.05 else 'no processor'} meanwhile"


def _workers(members: Sequence[RankState]) -> Iterator[str]:
    """Their DataLoader workers: those that are busy by where they are."""
    busy = [(member.number, worker) for member in members for worker in member.busy_workers]
    places = grouped(busy, lambda of_rank: (_place_of_worker(of_rank[1]), is_worker_moving(of_rank[1])))
    for (place, moving), those in list(places.items())[:MAX_WORKERS]:
        pids = listed((worker.pid for _, worker in those), MAX_PIDS)
        of = f" of {ranks_named(rank for rank, _ in those)}" if len(members) > 1 else ""
        s = "s" if len(those) == 1 else ""
        yield f"DataLoader worker{'' if s else 's'}{of} (pid {pids}) {'move' if moving else 'stay'}{s} in {place}"
    count = sum(len(member.rank.workers) for member in members) - len(busy)
    if count and members[0].place.where is PlaceKind.LOADER:
        yield f"{plural(count, 'DataLoader worker')} wait{'s' if count == 1 else ''} for something to load"


def _place_of_worker(worker: Watched) -> str:
    if not worker.last.frames:
        return f"a place that can't be seen: {worker.last.source}"
    place = worker_place(worker.last)
    return ", ".join(filter(None, (where(place), _called_from(place))))


# --- the end ----------------------------------------------------------------------------------------------------------------


def advice(examination: Examination) -> str:
    """Advise what to try where not all ranks move, and it is no failure yet; and how scripts learn of it."""
    hang = hang_of(examination)
    stands = states_of(hang)
    if not stands or all(map(moves, stands)) or not longer_may_tell(hang):
        return ""
    if not any(state.last.frames for state in stands):
        return ""
    seconds = min(MAX_SECONDS, max(round(STALL_SECONDS), LONGER_FACTOR * round(hang.between)))
    command = look_again(hang, seconds)
    if examination.verdict is not Verdict.WARN:
        return f"A step may take longer than that; to look longer: {command}"
    warns = "A slow step looks the same, so this is only a warning: the exit code is 0, or 1 with --strict."
    if hang.server:
        return f"{warns} To look longer: {command}"
    return f"{warns} If nothing moves for {seconds} s, it is a failure; to look for so long: {command}"


def outcome(examination: Examination) -> str:
    """The last line."""
    found = len(examination.findings)
    if examination.verdict is Verdict.UNKNOWN:
        return "Whether it hangs can't be told"
    if not found:
        return "No hang was found"
    hang = hang_of(examination)
    if any(map(moves, states_of(hang))):
        return "Some of its ranks work, others wait or are still"
    if examination.verdict is not Verdict.FAIL and movements(hang):
        return f"This job is slow, as far as {hang.between:.1f} s tell: something of it moved"
    still = f"did not go on within {hang.between:.1f} s" if hang.between else "did not go on, by its dumps"
    return f"This job {still}" if examination.verdict is Verdict.FAIL else f"This job {still}; it may hang"
