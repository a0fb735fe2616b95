"""Whatever ranks may say and come to, there is a report of it, and none that calls it fine."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.smoke import RankEnding, RankRun, Smoke, Stage, StageState
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.terminal import text_of
from ddpdoctor.smoke_training.analysis.verdict import judge_training, verdict_of
from ddpdoctor.smoke_training.render import smoke_document
from tests.support.smokes import STAGES

TEXT = st.text(max_size=30)


@st.composite
def runs(draw: st.DrawFn, rank: int) -> RankRun:
    names = draw(st.sampled_from([STAGES, STAGES[:3], ()]))
    states = st.sampled_from(list(StageState))
    return RankRun(
        rank=rank,
        local_rank=rank,
        host=draw(TEXT),
        ending=draw(st.sampled_from(list(RankEnding))),
        stages=tuple(
            Stage(name=name, state=draw(states), seconds=draw(st.floats(0, 1e6)), words=draw(TEXT)) for name in names
        ),
        words=draw(TEXT),
        step=draw(TEXT),
        last_line=draw(TEXT),
        exit_code=draw(st.none() | st.integers(-70, 300)),
        culprits=tuple(draw(st.lists(st.integers(-1, 9), max_size=3))),
        stack=tuple(draw(st.lists(TEXT, max_size=3))),
        ended_after=draw(st.floats(0, 1e6)),
    )


@st.composite
def smokes(draw: st.DrawFn) -> Smoke:
    size = draw(st.integers(1, 12))
    return Smoke(
        ranks=tuple(draw(runs(rank)) for rank in range(size)),
        world_size=size,
        stages=STAGES,
        backend=draw(st.sampled_from(["nccl", "gloo", ""])),
        problem=draw(TEXT),
        seconds=draw(st.floats(0, 1e6)),
    )


@settings(max_examples=30)
@given(smokes(), st.sampled_from([40, 80]))
def test_any_run_has_a_report_and_an_unfinished_one_isn_t_fine(facts: Smoke, width: int) -> None:
    one = judge_training(Snapshot(host="node07"), facts, catalogue())
    for options in ({}, {"verbose": True}, {"quiet": True}):
        text = text_of(smoke_document(one, **options), width)
        assert text
    if any(run.ending is not RankEnding.FINISHED for run in facts.ranks):
        assert verdict_of(one) in (Verdict.FAIL, Verdict.UNKNOWN)
        assert not text.startswith("OK")
