"""What is to be known when a job has stopped moving: the verdict of `jobs --hang` on all that was seen of it, and the sentence."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import human, one_line, ranks_named
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.hang import Frame, Hang, Watched
from ddpdoctor.hang.examining import RasInquiry, with_records
from ddpdoctor.hang.flight_recorder.collect_dumps import dumps_of
from ddpdoctor.hang.judging import groups_of_hangs, hang_of, judge_hang
from ddpdoctor.hang.rank_states import RankState, states_of
from ddpdoctor.hang.render_words import groups
from ddpdoctor.hang.verdict import verdict_of
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.session import collect_facts
from ddpdoctor.processes.jobs import TrainingJob

RAS_SECONDS = 3.0
"""Between the two questions to NCCL's RAS."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has stopped moving.

    job: as `ddpdoctor jobs` calls it. uid: whose it is. text: who lags, and where. seconds: since it moved last. culprits: the ranks whose fault it is, as
    far as that could be told. pids: of its ranks. examination: what `jobs --hang` reports. seen: what was counted before, as data.
    """

    job: str
    uid: int
    text: str
    seconds: float
    culprits: tuple[int, ...]
    pids: tuple[int, ...]
    examination: Examination
    seen: Mapping[str, Any]


def examine_still_job(job: TrainingJob, hang: Hang, catalogue: Catalogue, *, ras: bool) -> Examination:
    """Judge a job that has stood still, by all that was seen of it, its flight recorders and, if wanted, NCCL's RAS."""
    inquiry = RasInquiry(job, RAS_SECONDS, wanted=ras)
    context = Context(sys.executable, "ddpdoctor", quick=True, asked=int(job.name))
    snapshot = collect_facts(context, groups_of_hangs(catalogue))
    return judge_hang(snapshot, with_records(hang, job, dumps_of(job), inquiry), catalogue)


def is_hang(hang: Hang) -> bool:
    """Whether `jobs --hang` finds a cause in it, too."""
    try:
        return verdict_of(hang) is not None
    except NotKnown:
        return False


def moves_by_ras(examination: Examination) -> bool:
    """Whether NCCL's RAS, if it was asked, has counted new collectives of a job that seemed to stand still."""
    return any(count.moved for count in hang_of(examination).counts)


def who_lags(examination: Examination) -> tuple[str, tuple[int, ...]]:
    """Say who lags and where, and name these ranks: by the finding; without one by the stacks in groups, the odd ones first, since what
    most do is mostly what all should: these are named then, too."""
    if examination.findings:
        finding = examination.findings[0][2]
        if finding.rank is not None:
            return one_line(finding.summary), (finding.rank,)
        odd = odd_ones(hang_of(examination))
        them = "it" if len(odd) == 1 else "them"
        hint = f"; most stand elsewhere than {ranks_named(odd)}: look at {them} first" if odd else ""
        return f"{one_line(finding.summary)}{hint}", odd
    gathered = groups(examination)
    return "; ".join(f"{group.ranks} {group.words}" for group in gathered) or "nothing of it could be seen", odd_ones(
        hang_of(examination)
    )


def odd_ones(hang: Hang) -> tuple[int, ...]:
    """Name the ranks that don't stand where more than half of all do; () where no place has so many, or all stand there.

    Where a step has several collectives, ranks that are as they should be stand at several lines of it: then the place is the function,
    if fewer ranks are left over so.
    """
    states = states_of(hang)
    left_over = [
        odd
        for place in (_line, _function)
        if (most := max(grouped(states, place).values(), key=len, default=[]))
        and (odd := tuple(state.number for state in states if state not in most))
        and 2 * len(most) > len(states)
    ]
    return min(left_over, key=len, default=())


def _line(state: RankState) -> tuple[Hashable, ...]:
    return state.where, state.place.what, state.place.frame


def _function(state: RankState) -> tuple[Hashable, ...]:
    frame = state.place.frame
    return (frame.path, frame.function) if frame else _line(state)


def stacks_text(examination: Examination) -> str:
    """All stacks that were read last, a line a call, the innermost first."""
    parts = []
    for rank in hang_of(examination).ranks:
        if rank.watched is None:
            parts.append(f"rank {rank.rank}: {rank.gone or 'could not be looked into'}\n")
            continue
        parts.append(_stack(f"rank {rank.rank}", rank.watched))
        parts += [_stack(f"DataLoader worker of rank {rank.rank}", worker) for worker in rank.workers]
    return "\n".join(parts)


def _stack(who: str, watched: Watched) -> str:
    last = watched.last
    state = f"state {last.state}{f' in {last.waits_in}' if last.waits_in else ''}"
    used = f"{last.cpu_seconds:.1f} s of a processor, {human(last.transferred)} read and written since its start"
    lines = [f"{who}, pid {watched.pid}, {state}; {used}"]
    lines += _frames(last.frames) or [f"  no stack: {last.source}"]
    for name, frames in last.others:
        lines += [f"  thread {name}", *(f"  {line}" for line in _frames(frames))]
    return _one_line_each(lines)


def _frames(frames: tuple[Frame, ...]) -> list[str]:
    return [f"  {frame.function} ({frame.path}:{frame.line})" for frame in frames]


def _one_line_each(lines: list[str]) -> str:
    """Join lines, each made harmless."""
    return "".join(f"{line[: len(line) - len(line.lstrip())]}{one_line(line.lstrip())}\n" for line in lines)
