"""Decides which ranks caused the failure or the hang of a smoke training, and which only waited or fell with them. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.smoke import LAST, RankEnding, RankRun, Smoke, StageState
from ddpdoctor.smoke_training.analysis.rank_position import is_waiting, position, stage_of

LOST: Final = compile_lazily(
    r"(?i)connection (?:was )?closed by (?:remote )?peer|connection reset by peer|broken pipe|recvvalue|sendbytes failed"
    r"|failed to recv|connection refused|remote process exit|communicator was aborted|ncclRemoteError"
    r"|(?<!launch )timed? ?out|timeout|clients joined|application timeout caused pair closure|has gone away|server shutdown or crash"
)
"""In the words of a rank that lost another one, or waited for it in vain."""

CLOCK_DOUBT_SECONDS: Final = 2.0
"""Within which it isn't known of ranks of two hosts which ended first."""

SIGTERM: Final = -15
PAIRWISE_CALLS: Final = {"send", "recv", "isend", "irecv"}
"""Calls that may differ between ranks."""


class TrainingFailureKind(Enum):
    """The kind of a failure, as far as ranks differ."""

    FAILED = "it failed by itself"
    WRONG = "a wrong result"
    DIFFERENT_CALLS = "the ranks called different collectives"
    HUNG = "the others wait for it"
    TOGETHER = "all are in the same place, and nothing tells them apart"


class TrainingFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks to which a failure, or a hang, is attributed."""

    kind: TrainingFailureKind
    stage: str
    culprits: tuple[RankRun, ...]
    """The first of them first; where the kind is TOGETHER, all that hang."""
    others: tuple[RankRun, ...] = ()
    """The rest of those that didn't finish."""
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """With DIFFERENT_CALLS: each call and its ranks at the first place where they differ, the majority first."""
    accused: bool = False
    """With WRONG: whether the ranks say who caused it; else the culprits are those that have the wrong result."""
    left_behind: bool = False
    """With HUNG: whether the culprits wait as well, in a place that the others have left."""
    alone: bool = True
    """With FAILED: whether the culprit has words of its own; else it only was the first to lose another."""

    @property
    def first(self) -> RankRun:
        return self.culprits[0]


def attribute_failure(ranks: Sequence[RankRun]) -> TrainingFailure | None:
    """Attribute a failure to ranks; None where every rank finished, or there is none."""
    if all(rank.ending is RankEnding.FINISHED for rank in ranks):
        return None
    return _different_calls(ranks) or _failed(ranks) or _hung(ranks) or _lost(ranks)


NO_SMOKE: Final = "no smoke training was run"


def ranks_not_started(smoke: Smoke) -> tuple[RankRun, ...]:
    """The ranks of hosts on which none ever reported, where it is known that they could not be started."""
    began = {rank.node for rank in smoke.ranks if rank.ending is not RankEnding.NEVER_CAME}
    return tuple(rank for rank in smoke.ranks if rank.node not in began) if smoke.problem or not began else ()


def has_ended_early(smoke: Smoke) -> bool:
    """Whether the ranks ended with what had started them, and none of them by itself."""
    return bool(smoke.problem and smoke.ranks) and not ranks_not_started(smoke) and not _by_themselves(smoke.ranks)


def gpu_number(run: RankRun) -> int:
    """Torch's number of its GPU; -1 on the CPU."""
    found = re.match(r"cuda:(\d+)", run.device)
    return int(found[1]) if found else -1


def lost_another(run: RankRun) -> bool:
    """Whether a rank that failed has only words of one that lost another, or waited for it in vain."""
    if run.ending is RankEnding.RAISED:
        return bool(LOST.search(run.words))
    if run.ending in (RankEnding.EXITED, RankEnding.KILLED):
        return run.exit_code == SIGTERM or bool(LOST.search(run.last_line))
    return False


# --- different calls ----------------------------------------------------------------------------------------------------


def _different_calls(ranks: Sequence[RankRun]) -> TrainingFailure | None:
    """Find the first place where collectives that belong together differ. The rank that called another one may have gone on since,
    so this comes before positions count."""
    places: dict[tuple[int, int], dict[int, str]] = {}
    for run in ranks:
        order = [stage.name for stage in run.stages]
        for call in run.called:
            if call.stage in order and call.call.partition(" ")[0] not in PAIRWISE_CALLS:
                places.setdefault((order.index(call.stage), call.number), {})[run.rank] = call.call
    for (stage, _), by_rank in sorted(places.items()):
        if len(set(by_rank.values())) > 1:
            return _differ(ranks, ranks[0].stages[stage].name, by_rank)
    return _one_too_many(ranks)


def _one_too_many(ranks: Sequence[RankRun]) -> TrainingFailure | None:
    """Find a step at which some ranks call a collective of their own, where the others leave that to DDP."""
    steps: dict[tuple[str, str, int], dict[int, str]] = {}
    for run in ranks:
        if run.step and run.ending is not RankEnding.FINISHED:
            steps.setdefault((stage_of(run), run.step, run.steps), {})[run.rank] = run.calls
    for (stage, step, _), by_rank in steps.items():
        if len(set(by_rank.values())) > 1:
            return _differ(ranks, stage, {rank: call or f"{step} alone" for rank, call in by_rank.items()})
    return None


def _differ(ranks: Sequence[RankRun], stage: str, by_rank: Mapping[int, str]) -> TrainingFailure:
    """Attribute it to those that differ from the majority; to all if there is none."""
    counted = Counter(by_rank.values()).most_common()
    calls = tuple((call, tuple(sorted(rank for rank in by_rank if by_rank[rank] == call))) for call, _ in counted)
    tied = counted[0][1] == counted[1][1]
    named = sorted(rank for call, members in calls for rank in members if tied or call != calls[0][0])
    return _attribute_to(TrainingFailureKind.DIFFERENT_CALLS, ranks, named, stage=stage, calls=calls)


# --- failures and wrong results -----------------------------------------------------------------------------------------


END_STEP: Final = compile_lazily(r"^(destroy_process_group|the end of)")


def is_at_the_end(found: TrainingFailure) -> bool:
    """Whether the training is over, and only its processes don't end, or not well."""
    return found.stage == LAST and all(END_STEP.search(culprit.step) for culprit in found.culprits)


def _by_themselves(ranks: Sequence[RankRun]) -> list[RankRun]:
    """The ranks that failed, and not because they lost another."""
    return [
        rank
        for rank in ranks
        if rank.ending is RankEnding.WRONG
        or (rank.ending in (RankEnding.RAISED, RankEnding.EXITED, RankEnding.KILLED) and not lost_another(rank))
    ]


def _failed(ranks: Sequence[RankRun]) -> TrainingFailure | None:
    """Attribute it to the first rank that failed by itself and those that failed in the same way, or to a wrong result that was
    noticed before."""
    own = _by_themselves(ranks)
    if not own:
        return None
    first = min(own, key=lambda run: run.ended_after)
    if first.ending is RankEnding.WRONG:
        return _wrong(ranks)
    alike = [run.rank for run in own if run is not first and _way(run) == _way(first)]
    return _attribute_to(TrainingFailureKind.FAILED, ranks, [first.rank, *alike])


def _way(run: RankRun) -> tuple[str, RankEnding, int | None, str]:
    """The way a rank failed, without what is different on each: numbers, addresses."""
    return stage_of(run), run.ending, run.exit_code, re.sub(r"0x[0-9a-f]+|\d+", "N", run.words)


def _wrong(ranks: Sequence[RankRun]) -> TrainingFailure:
    """Attribute a wrong result to the ranks that most ranks accuse; where none does, to those that have it."""
    noticed = [run for run in ranks if run.ending is RankEnding.WRONG]
    known = {run.rank for run in ranks}
    votes = Counter(rank for run in noticed for rank in set(run.culprits) if rank in known)
    most = max(votes.values(), default=0)
    accused = [rank for rank, count in sorted(votes.items()) if count == most]
    named = accused or [run.rank for run in noticed]
    return _attribute_to(TrainingFailureKind.WRONG, ranks, named, stage=stage_of(noticed[0]), accused=bool(accused))


def _lost(ranks: Sequence[RankRun]) -> TrainingFailure:
    """Attribute it where no rank has words of its own: one that ended without a word before the others complained is the one that they
    lost."""
    complaints = sorted((rank for rank in ranks if lost_another(rank)), key=lambda run: run.ended_after)
    silent = [
        rank
        for rank in ranks
        if rank.ending is RankEnding.NEVER_CAME or (complaints and _gone_before(rank, complaints[0]))
    ]
    if silent:
        return _attribute_to(TrainingFailureKind.FAILED, ranks, [min(silent, key=lambda run: run.ended_after).rank])
    first = complaints[0] if complaints else next(rank for rank in ranks if rank.ending is not RankEnding.FINISHED)
    return _attribute_to(TrainingFailureKind.FAILED, ranks, [first.rank], alone=False)


def _gone_before(run: RankRun, complaint: RankRun) -> bool:
    """Whether a rank was ended before another complained. Two hosts don't begin at the same moment."""
    doubt = 0.0 if run.node == complaint.node else CLOCK_DOUBT_SECONDS
    return run.ending is RankEnding.ENDED and run.ended_after < complaint.ended_after - doubt


# --- hangs --------------------------------------------------------------------------------------------------------------


def _hung(ranks: Sequence[RankRun]) -> TrainingFailure | None:
    """Attribute a hang, among the ranks that were still running, or never came, when a stage's time was up: to those that the kernel
    holds, wherever they are, since their threads serve the others, too; else to those that don't wait for another; else to
    those that are furthest behind."""
    if not any(rank.ending in (RankEnding.HUNG, RankEnding.NEVER_CAME) for rank in ranks):
        return None
    hanging = [rank for rank in ranks if rank.ending in (RankEnding.HUNG, RankEnding.ENDED, RankEnding.NEVER_CAME)]
    blocked = [run for run in hanging if run.process_state]
    if blocked:
        state = min(blocked, key=position).process_state
        return _attribute_to(
            TrainingFailureKind.HUNG, ranks, _last_of([run for run in blocked if run.process_state == state])
        )
    absent = [run.rank for run in hanging if run.ending is RankEnding.NEVER_CAME]
    if absent:
        return _attribute_to(TrainingFailureKind.HUNG, ranks, absent)
    waiting = [run for run in hanging if is_waiting(run)]
    if waiting:
        furthest = max(map(position, waiting))
        # One that is ahead of all that wait can't be the one that they wait for.
        if busy := [run for run in hanging if not is_waiting(run) and position(run) <= furthest]:
            return _attribute_to(TrainingFailureKind.HUNG, ranks, _last_of(busy))
    behind = _last_of(hanging)
    if len(behind) < len(hanging) or len(hanging) == 1:
        return _attribute_to(TrainingFailureKind.HUNG, ranks, behind, left_behind=len(waiting) == len(hanging))
    # Before there is a group nobody waits for anybody, unless it says so.
    stages = hanging[0].stages
    has_group = any(stage.name == "process group" and stage.state is StageState.PASSED for stage in stages)
    alone = not waiting and not has_group
    return _attribute_to(TrainingFailureKind.HUNG if alone else TrainingFailureKind.TOGETHER, ranks, behind)


def _last_of(runs: Sequence[RankRun]) -> list[int]:
    """The ranks that are furthest behind."""
    least = min(position(run) for run in runs)
    return [run.rank for run in runs if position(run) == least]


def _attribute_to(
    kind: TrainingFailureKind,
    ranks: Sequence[RankRun],
    named: Iterable[int],
    *,
    stage: str = "",
    **more: Any,
) -> TrainingFailure:
    """more: further fields of the failure."""
    by_rank = {run.rank: run for run in ranks}
    culprits = tuple(by_rank[rank] for rank in dict.fromkeys(named))
    return TrainingFailure(
        kind=kind,
        stage=stage or stage_of(culprits[0]),
        culprits=culprits,
        others=tuple(run for run in ranks if run not in culprits and run.ending is not RankEnding.FINISHED),
        **more,
    )
