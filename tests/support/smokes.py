"""Made-up smoke trainings, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.base.findings import FAIL, Finding, Severity
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Check, Result, Skipped, SkipReason
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.smoke import RankEnding, RankRun, Smoke, Stage, StageState
from ddpdoctor.facts.snapshot import Snapshot

STAGES = ("import", "device", "barrier", "all_reduce", "training", "apex", "shutdown")


def rank_run(
    rank: int,
    ending: RankEnding = RankEnding.FINISHED,
    stage: str = "shutdown",
    *,
    names: tuple[str, ...] = STAGES,
    words: str = "",
    **more: object,
) -> RankRun:
    """A rank that came to its end, or as far as that stage."""
    place = names.index(stage)
    finished = ending is RankEnding.FINISHED
    stages = []
    for number, name in enumerate(names):
        state = StageState.PASSED
        if name == "apex":
            state = StageState.NOT_TESTED if finished or number < place else StageState.NOT_RUN
        elif not finished and number == place:
            by_itself = ending in (RankEnding.RAISED, RankEnding.WRONG, RankEnding.EXITED, RankEnding.KILLED)
            state = StageState.FAILED if by_itself else StageState.HUNG
        elif not finished and number > place:
            state = StageState.NOT_RUN
        text = "Apex is not installed" if name == "apex" else words if number == place else ""
        stages.append(Stage(name=name, state=state, seconds=0.5 + rank / 100, words=text))
    if ending is RankEnding.NEVER_CAME:
        stages = [Stage(name=name, state=StageState.NOT_RUN) for name in names]
    given = {"local_rank": rank, "host": "node07", "pid": 1000 + rank, "ended_after": 4.2, "memory": 256 << 20} | more
    return RankRun(rank=rank, ending=ending, words=words, stages=tuple(stages), **given)  # type: ignore[arg-type]


def smoke_of_ranks(size: int, fates: Mapping[int, RankRun] | None = None, **more: object) -> Smoke:
    """All finish but those of `fates`, or without any that finishes, `default` of it."""
    ranks = tuple((fates or {}).get(rank, rank_run(rank)) for rank in range(size))
    given: dict[str, object] = {
        "world_size": size,
        "backend": "gloo",
        "chosen": f"{size} ranks on CPU over gloo (no GPU)",
        "engine": "torch.distributed.elastic",
        "stages": STAGES,
        "deadline": 30.0,
        "seconds": 4.3,
        "torch": "2.13.0+cpu",
        "python": "/opt/env/bin/python",
    }
    return Smoke(ranks=ranks, **(given | more))  # type: ignore[arg-type]


def _page() -> None:
    """Something is wrong.

    ## What breaks
    Training.

    ## Why
    Because.

    ## Fix
    Mend it.
    """


def a_check(slug: str, family: str, severity: Severity = FAIL) -> Check:
    one = Check(slug, severity, _page)  # type: ignore[arg-type]
    one.family = family
    return one


def result(slug: str, *findings: Finding, family: str = "smoke", severity: Severity = FAIL, why: str = "") -> Result:
    """A check's: what it found, or why it had nothing to look at."""
    missing = Skipped(SkipReason.NOT_APPLICABLE, why) if why else None
    return Result(a_check(slug, family, severity), findings, missing)


def examined_smoke(facts: Smoke, *results: Result) -> Examination:
    return Examination(Snapshot(host="node07", smoke=facts), Plan(facts.world_size, "--nproc"), results)
