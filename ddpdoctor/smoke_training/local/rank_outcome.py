"""What each rank came to, from all that was heard of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import SIGKILL, SIGTERM
from typing import Final

from ddpdoctor.facts.smoke import RankEnding, RankRun, Stage, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import LOST
from ddpdoctor.smoke_training.local.rank_monitor import MOST_WORDS, RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress, last_line, last_words

BY_ITSELF: Final = (RankEnding.RAISED, RankEnding.WRONG, RankEnding.EXITED, RankEnding.KILLED)
"""How a rank ends that nobody else has ended."""

SERVER_LOST: Final = re.compile(r"(EOFError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError)\b")
"""What the engine says where the process has ended that the ranks are forked from."""


def problem(watch: RankMonitor, late: Iterable[RankProgress] = ()) -> str:
    """Why it could not be run, or was ended, where no rank tells the reason."""
    hung = {progress.rank for progress in late}
    endings = {_ending(watch, rank, hung) for rank in watch.ranks.values()}
    if endings & {*BY_ITSELF, RankEnding.HUNG}:
        return ""
    if watch.engine_words and not watch.blamed and not (watch.killed and SERVER_LOST.match(watch.engine_words)):
        return watch.engine_words  # Its server ends with it, and may be heard first.
    if watch.killed or watch.engine_words:
        return watch.killed or watch.engine_words
    if hung and RankEnding.NEVER_CAME in endings:
        seconds = watch.order.seconds_for(watch.order.stages[0])
        said = last_words(watch.engine.output)
        last = f": {watch.held}" if watch.held else f'; the target Python last said "{said}"' if said else ""
        return f"no rank had begun after {seconds:g} s{last}"
    return ""


def runs(watch: RankMonitor, host: str, late: Iterable[RankProgress] = ()) -> tuple[RankRun, ...]:
    """What each rank came to. late: those who were held up when all were ended."""
    hung = {progress.rank for progress in late}
    return tuple(_run(watch, one, host, hung) for _, one in sorted(watch.ranks.items()))


def _run(watch: RankMonitor, one: RankProgress, host: str, hung: set[int]) -> RankRun:
    ending = _ending(watch, one, hung)
    return RankRun(
        rank=one.rank,
        local_rank=one.local_rank,
        host=host,
        node=watch.order.node_rank,
        pid=one.pid,
        device=one.device,
        stages=tuple(_stages(watch, one, ending)),
        ending=ending,
        ended_after=round(max(0.0, _over_at(watch, one) - watch.began), 3),
        exit_code=one.exit_code if ending in BY_ITSELF else None,
        words=one.words[:MOST_WORDS],
        culprits=one.culprits,
        step=one.step if ending is not RankEnding.FINISHED else "",
        steps=one.steps,
        calls=one.calls,
        called=tuple(one.called),
        last_line=last_line(one.output),
        stack=one.stack if ending is not RankEnding.FINISHED else (),
        stack_source=one.stack_source if ending is not RankEnding.FINISHED else "",
        process_state=one.process_state,
        out_of_memory=bool(watch.oom_kills) and ending is RankEnding.KILLED and one.exit_code == -SIGKILL,
        memory=one.memory,
        contexts=one.contexts,
    )


def _over_at(watch: RankMonitor, one: RankProgress) -> float:
    moments = (one.finished_at, one.failed_at)
    return next((moment for moment in moments if moment is not None), _stage_over_at(watch, one))


def _ending(watch: RankMonitor, one: RankProgress, hung: set[int]) -> RankEnding:
    if one.failed_at is not None:
        return RankEnding.WRONG if one.wrong else RankEnding.RAISED
    if one.rank in hung:
        return RankEnding.HUNG if one.pid else RankEnding.NEVER_CAME
    if one.finished_at is not None:
        return _how(one) if one.exit_code and not _ended_by_others(watch, one) else RankEnding.FINISHED
    if one.gone_at is None and (one.pid or one.exit_code is None):
        return RankEnding.ENDED if one.pid or _a_rank_failed(watch, hung) else RankEnding.NEVER_CAME
    return RankEnding.ENDED if _ended_by_others(watch, one) else _how(one)


def _a_rank_failed(watch: RankMonitor, hung: set[int]) -> bool:
    """Whether one of this host has, and not for want of another: the engine then ends also those that are on their way to
    their first word."""
    known = (rank for rank in watch.ranks.values() if rank.pid or rank.exit_code is not None)
    return any(_ending(watch, progress, hung) in BY_ITSELF and not LOST.search(progress.words) for progress in known)


def _how(one: RankProgress) -> RankEnding:
    return RankEnding.KILLED if (one.exit_code or 0) < 0 else RankEnding.EXITED


def _ended_by_others(watch: RankMonitor, one: RankProgress) -> bool:
    """By us, by the end of the engine, or by the engine's SIGTERM after the failure of another."""
    if one.exit_code is None and watch.killed:
        return True
    gone_at = one.gone_at
    if watch.ended_at is not None and gone_at is not None and gone_at >= watch.ended_at:
        return True
    if one.exit_code != -SIGTERM or gone_at is None:
        return False
    if one.rank in watch.blamed:
        return False
    if any(not _suffers(watch, watch.ranks.get(rank)) for rank in watch.blamed):
        return True
    return any(_gone_before(watch, other, gone_at) for other in watch.ranks.values() if other is not one)


def _suffers(watch: RankMonitor, one: RankProgress | None) -> bool:
    """Whether it only lost another rank of this host. Where two end at once the engine may blame either."""
    return one is not None and watch.order.nnodes == 1 and LOST.search(one.words) is not None


def _gone_before(watch: RankMonitor, one: RankProgress, moment: float) -> bool:
    """Whether it had ended by itself by then: the engine acts on that, not on what a rank says."""
    by_itself = one.exit_code not in (None, 0, -SIGTERM)
    return by_itself and one.gone_at is not None and one.gone_at <= moment and not _suffers(watch, one)


def _stages(watch: RankMonitor, one: RankProgress, ending: RankEnding) -> Iterable[Stage]:
    state = StageState.FAILED if ending in BY_ITSELF else StageState.HUNG
    begun = one.stage or (watch.order.stages[0] if ending in BY_ITSELF else "")
    for name in watch.order.stages:
        if name == begun and ending is not RankEnding.FINISHED and _is_open(one, name):
            seconds = round(max(0.0, _stage_over_at(watch, one) - one.since), 3)
            yield Stage(name=name, state=state, seconds=seconds, words=one.words[:MOST_WORDS])
        elif name in one.done:
            yield one.done[name]
        else:
            yield Stage(name=name, state=StageState.NOT_RUN)


def _is_open(one: RankProgress, name: str) -> bool:
    """Not over yet; the last stage isn't before the process has ended well."""
    return name not in one.done or one.finished_at is not None


def _stage_over_at(watch: RankMonitor, one: RankProgress) -> float:
    moments = (one.failed_at, one.gone_at, watch.ended_at)
    return min((moment for moment in moments if moment is not None), default=one.since)
