"""The rules of the analysis: each has a name, and a log that taught it."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.log import LogLine, ProcessExit
from ddpdoctor.logs.analyze.rank_attribution import RankEvidence, scores_of
from ddpdoctor.logs.analyze.rules import IGNORED, LogRule
from tests.log_corpus import RULES, changed_without, corpus, judged


def test_each_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_log_that_taught_it_is_judged_otherwise_without_it(rule: LogRule) -> None:
    (taught_by,) = (log for log in corpus(rule.taught_by.partition("/")[0]) if log.name == rule.taught_by)
    assert changed_without(rule, [judged(taught_by)])
    assert not IGNORED


def test_one_that_is_left_out_finds_nothing() -> None:
    rule = LogRule("spilt-milk", "", lambda words: words == "milk")
    assert rule("milk")
    IGNORED.add(rule.name)
    try:
        assert not rule("milk")
    finally:
        IGNORED.clear()


def test_the_rank_with_the_most_points_is_told() -> None:
    told = [verdict for verdict in (judged(log).verdict for log in corpus()) if verdict.lead and verdict.evidence]
    for verdict in told:
        scores = scores_of(verdict.evidence)
        best = {rank for rank, score in scores.items() if score == max(scores.values())}
        assert verdict.lead
        assert best == {None} or verdict.lead.rank in best
    # Of some logs more than one rank is spoken for, and of many the same one several times.
    assert any(len(scores_of(verdict.evidence)) > 1 for verdict in told)
    assert sum(len(verdict.evidence) > 1 for verdict in told) > 100


def test_weaker_words_that_agree_outweigh_a_stronger_one() -> None:
    line = LogLine(file=0, number=1, text="")
    said = [
        RankEvidence(f"{score}", score, ProcessExit(line=line, said_by="", rank=rank))
        for rank, score in ((1, 6), (3, 4), (3, 4))
    ]
    assert scores_of(said) == {1: 6, 3: 8}
