"""Judges what each rank came to (finished, raised, killed, hung ...), from all that is known of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import SIGKILL, SIGTERM
from typing import Final

from ddpdoctor.facts.smoke import RankEnding, RankRun, Stage, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import LOST
from ddpdoctor.smoke_training.local.rank_monitor import MAX_TEXT_LENGTH, RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress, last_line, last_words

BY_ITSELF: Final = (RankEnding.RAISED, RankEnding.WRONG, RankEnding.EXITED, RankEnding.KILLED)
"""The endings of ranks that nobody else has ended."""

KNOWN_FIELDS: Final = (
    "rank", "local_rank", "pid", "device", "culprits", "steps", "calls", "process_state", "memory", "contexts",
)  # fmt: skip
"""Fields that are the same in what is known of a rank and in what it came to."""
UNFINISHED_FIELDS: Final = ("step", "stack", "stack_source")
"""Those that mean nothing once it is through."""

SERVER_LOST: Final = re.compile(r"(EOFError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError)\b")
"""In the engine's words where the server has ended that the ranks are forked from."""


def problem_of(monitor: RankMonitor, late: Iterable[RankProgress] = ()) -> str:
    """Say why a run that is over could not be started, or was ended, where no rank tells the reason; "" else. late: the ranks that were
    stuck when all were ended."""
    hung = {progress.rank for progress in late}
    endings = {_ending(monitor, progress, hung) for progress in monitor.ranks.values()}
    if endings & {*BY_ITSELF, RankEnding.HUNG}:
        return ""
    if monitor.engine_words and not monitor.blamed and not (monitor.killed and SERVER_LOST.match(monitor.engine_words)):
        return monitor.engine_words  # Its server ends with it, and may be heard first.
    if monitor.killed or monitor.engine_words:
        return monitor.killed or monitor.engine_words
    if hung and RankEnding.NEVER_CAME in endings:
        seconds = monitor.order.seconds_for(monitor.order.stages[0])
        said = last_words(monitor.engine.output)
        last = (
            f": {monitor.engine_state}"
            if monitor.engine_state
            else f'; the target Python last said "{said}"'
            if said
            else ""
        )
        return f"no rank had begun after {seconds:g} s{last}"
    return ""


def rank_runs(monitor: RankMonitor, host: str, late: Iterable[RankProgress] = ()) -> tuple[RankRun, ...]:
    """Judge each rank of a run that is over, in their order. late: as for `problem_of`."""
    hung = {progress.rank for progress in late}
    return tuple(_rank_run(monitor, progress, host, hung) for _, progress in sorted(monitor.ranks.items()))


def _rank_run(monitor: RankMonitor, progress: RankProgress, host: str, hung: set[int]) -> RankRun:
    ending = _ending(monitor, progress, hung)
    moments = (progress.finished_at, progress.failed_at, _stage_over_at(monitor, progress))
    over_at = next(moment for moment in moments if moment is not None)
    names = KNOWN_FIELDS if ending is RankEnding.FINISHED else (*KNOWN_FIELDS, *UNFINISHED_FIELDS)
    return RankRun(
        **{name: getattr(progress, name) for name in names},
        host=host,
        node=monitor.order.node_rank,
        stages=tuple(_stages(monitor, progress, ending)),
        ending=ending,
        ended_after=round(max(0.0, over_at - monitor.began), 3),
        exit_code=progress.exit_code if ending in BY_ITSELF else None,
        words=progress.words[:MAX_TEXT_LENGTH],
        called=tuple(progress.called),
        pace=tuple(progress.windows),
        last_line=last_line(progress.output),
        out_of_memory=bool(monitor.oom_kills) and ending is RankEnding.KILLED and progress.exit_code == -SIGKILL,
    )


def _ending(monitor: RankMonitor, progress: RankProgress, hung: set[int]) -> RankEnding:
    if progress.failed_at is not None:
        return RankEnding.WRONG if progress.wrong else RankEnding.RAISED
    if progress.rank in hung:
        return RankEnding.HUNG if progress.pid else RankEnding.NEVER_CAME
    if progress.finished_at is not None:
        return (
            _ending_by_itself(progress)
            if progress.exit_code and not _was_ended_by_others(monitor, progress)
            else RankEnding.FINISHED
        )
    if progress.gone_at is None and (progress.pid or progress.exit_code is None):
        return RankEnding.ENDED if progress.pid or _has_a_rank_failed(monitor, hung) else RankEnding.NEVER_CAME
    return RankEnding.ENDED if _was_ended_by_others(monitor, progress) else _ending_by_itself(progress)


def _has_a_rank_failed(monitor: RankMonitor, hung: set[int]) -> bool:
    """Whether a rank of this host has failed, and not for want of another: the engine then ends also those that are on their way
    to their first word."""
    known = (progress for progress in monitor.ranks.values() if progress.pid or progress.exit_code is not None)
    return any(_ending(monitor, progress, hung) in BY_ITSELF and not LOST.search(progress.words) for progress in known)


def _ending_by_itself(progress: RankProgress) -> RankEnding:
    return RankEnding.KILLED if (progress.exit_code or 0) < 0 else RankEnding.EXITED


def _was_ended_by_others(monitor: RankMonitor, progress: RankProgress) -> bool:
    """Whether this process ended it, the end of the engine, or the engine's SIGTERM after the failure of another."""
    if progress.exit_code is None and monitor.killed:
        return True
    gone_at = progress.gone_at
    if monitor.ended_at is not None and gone_at is not None and gone_at >= monitor.ended_at:
        return True
    if progress.exit_code != -SIGTERM or gone_at is None:
        return False
    if progress.rank in monitor.blamed:
        return False
    if any(not _only_lost_another(monitor, monitor.ranks.get(rank)) for rank in monitor.blamed):
        return True
    return any(_ended_before(monitor, other, gone_at) for other in monitor.ranks.values() if other is not progress)


def _only_lost_another(monitor: RankMonitor, progress: RankProgress | None) -> bool:
    """Whether it only lost another rank of this host. Where two end at once the engine may blame either."""
    return progress is not None and monitor.order.nnodes == 1 and LOST.search(progress.words) is not None


def _ended_before(monitor: RankMonitor, progress: RankProgress, moment: float) -> bool:
    """Whether it had ended by itself by then: the engine acts on that, not on what a rank says."""
    by_itself = progress.exit_code not in (None, 0, -SIGTERM)
    return (
        by_itself
        and progress.gone_at is not None
        and progress.gone_at <= moment
        and not _only_lost_another(monitor, progress)
    )


def _stages(monitor: RankMonitor, progress: RankProgress, ending: RankEnding) -> Iterable[Stage]:
    state = StageState.FAILED if ending in BY_ITSELF else StageState.HUNG
    begun = progress.stage or (monitor.order.stages[0] if ending in BY_ITSELF else "")
    for name in monitor.order.stages:
        if name == begun and ending is not RankEnding.FINISHED and _is_open(progress, name):
            seconds = round(max(0.0, _stage_over_at(monitor, progress) - progress.since), 3)
            yield Stage(name=name, state=state, seconds=seconds, words=progress.words[:MAX_TEXT_LENGTH])
        elif name in progress.done:
            yield progress.done[name]
        else:
            yield Stage(name=name, state=StageState.NOT_RUN)


def _is_open(progress: RankProgress, name: str) -> bool:
    """Whether a stage isn't over yet; the last one isn't before the process has ended well."""
    return name not in progress.done or progress.finished_at is not None


def _stage_over_at(monitor: RankMonitor, progress: RankProgress) -> float:
    moments = (progress.failed_at, progress.gone_at, monitor.ended_at)
    return min((moment for moment in moments if moment is not None), default=progress.since)
