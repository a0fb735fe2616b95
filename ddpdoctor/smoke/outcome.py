"""What each rank came to, from all that was heard of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import SIGKILL, SIGTERM
from typing import Final

from ddpdoctor.facts.smoke import Ending, RankRun, Stage, State
from ddpdoctor.smoke.analysis_blame import LOST
from ddpdoctor.smoke.rank_monitor import MOST_WORDS, Watch
from ddpdoctor.smoke.rank_progress import Heard, last_line, last_words

BY_ITSELF: Final = (Ending.RAISED, Ending.WRONG, Ending.EXITED, Ending.KILLED)
"""How a rank ends that nobody else has ended."""

SERVER_LOST: Final = re.compile(r"(EOFError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError)\b")
"""What the engine says where the process has ended that the ranks are forked from."""


def problem(watch: Watch, late: Iterable[Heard] = ()) -> str:
    """Why it could not be run, or was ended, where no rank tells the reason."""
    hung = {one.rank for one in late}
    endings = {_ending(watch, one, hung) for one in watch.ranks.values()}
    if endings & {*BY_ITSELF, Ending.HUNG}:
        return ""
    if watch.engine_words and not watch.blamed and not (watch.killed and SERVER_LOST.match(watch.engine_words)):
        return watch.engine_words  # Its server ends with it, and may be heard first.
    if watch.killed or watch.engine_words:
        return watch.killed or watch.engine_words
    if hung and Ending.NEVER_CAME in endings:
        seconds = watch.order.seconds_for(watch.order.stages[0])
        said = last_words(watch.engine.output)
        last = f": {watch.held}" if watch.held else f'; the patient last said "{said}"' if said else ""
        return f"no rank had begun after {seconds:g} s{last}"
    return ""


def runs(watch: Watch, host: str, late: Iterable[Heard] = ()) -> tuple[RankRun, ...]:
    """What each rank came to. late: those who were held up when all were ended."""
    hung = {one.rank for one in late}
    return tuple(_run(watch, one, host, hung) for _, one in sorted(watch.ranks.items()))


def _run(watch: Watch, one: Heard, host: str, hung: set[int]) -> RankRun:
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
        step=one.step if ending is not Ending.FINISHED else "",
        steps=one.steps,
        calls=one.calls,
        called=tuple(one.called),
        last_line=last_line(one.output),
        stack=one.stack if ending is not Ending.FINISHED else (),
        stack_source=one.stack_source if ending is not Ending.FINISHED else "",
        process_state=one.process_state,
        out_of_memory=bool(watch.oom_kills) and ending is Ending.KILLED and one.exit_code == -SIGKILL,
        memory=one.memory,
        contexts=one.contexts,
    )


def _over_at(watch: Watch, one: Heard) -> float:
    moments = (one.finished_at, one.failed_at)
    return next((moment for moment in moments if moment is not None), _stage_over_at(watch, one))


def _ending(watch: Watch, one: Heard, hung: set[int]) -> Ending:
    if one.failed_at is not None:
        return Ending.WRONG if one.wrong else Ending.RAISED
    if one.rank in hung:
        return Ending.HUNG if one.pid else Ending.NEVER_CAME
    if one.finished_at is not None:
        return _how(one) if one.exit_code and not _ended_by_others(watch, one) else Ending.FINISHED
    if one.gone_at is None and (one.pid or one.exit_code is None):
        return Ending.ENDED if one.pid or _a_rank_failed(watch, hung) else Ending.NEVER_CAME
    return Ending.ENDED if _ended_by_others(watch, one) else _how(one)


def _a_rank_failed(watch: Watch, hung: set[int]) -> bool:
    """Whether one of this host has, and not for want of another: the engine then ends also those that are on their way to
    their first word."""
    known = (one for one in watch.ranks.values() if one.pid or one.exit_code is not None)
    return any(_ending(watch, one, hung) in BY_ITSELF and not LOST.search(one.words) for one in known)


def _how(one: Heard) -> Ending:
    return Ending.KILLED if (one.exit_code or 0) < 0 else Ending.EXITED


def _ended_by_others(watch: Watch, one: Heard) -> bool:
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


def _suffers(watch: Watch, one: Heard | None) -> bool:
    """Whether it only lost another rank of this host. Where two end at once the engine may blame either."""
    return one is not None and watch.order.nnodes == 1 and LOST.search(one.words) is not None


def _gone_before(watch: Watch, one: Heard, moment: float) -> bool:
    """Whether it had ended by itself by then: the engine acts on that, not on what a rank says."""
    by_itself = one.exit_code not in (None, 0, -SIGTERM)
    return by_itself and one.gone_at is not None and one.gone_at <= moment and not _suffers(watch, one)


def _stages(watch: Watch, one: Heard, ending: Ending) -> Iterable[Stage]:
    state = State.FAILED if ending in BY_ITSELF else State.HUNG
    begun = one.stage or (watch.order.stages[0] if ending in BY_ITSELF else "")
    for name in watch.order.stages:
        if name == begun and ending is not Ending.FINISHED and _is_open(one, name):
            seconds = round(max(0.0, _stage_over_at(watch, one) - one.since), 3)
            yield Stage(name=name, state=state, seconds=seconds, words=one.words[:MOST_WORDS])
        elif name in one.done:
            yield one.done[name]
        else:
            yield Stage(name=name, state=State.NOT_RUN)


def _is_open(one: Heard, name: str) -> bool:
    """Not over yet; the last stage isn't before the process has ended well."""
    return name not in one.done or one.finished_at is not None


def _stage_over_at(watch: Watch, one: Heard) -> float:
    moments = (one.failed_at, one.gone_at, watch.ended_at)
    return min((moment for moment in moments if moment is not None), default=one.since)
