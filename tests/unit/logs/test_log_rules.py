"""The rules of the analysis: each has a name, and a log that taught it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.logs.analyze.rules import IGNORED, LogRule
from tests.log_corpus import LOGS, RULES, changed_without, corpus, judged
from tests.support.command import ROOT


def test_each_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_taught_it_is_there(rule: LogRule) -> None:
    file, _, test = rule.taught_by.partition("::")
    assert (LOGS / file).exists() or f"def {test}(" in Path(ROOT, "tests/unit", file).read_text(encoding="utf-8")


def test_one_that_is_left_out_finds_nothing() -> None:
    rule = LogRule("spilt-milk", "drops", "", lambda words: words == "milk")
    assert rule("milk")
    IGNORED.add(rule.name)
    try:
        assert not rule("milk")
    finally:
        IGNORED.clear()


def test_the_report_names_the_logs_that_change_without_a_rule() -> None:
    taught = {rule.taught_by: rule for rule in RULES}
    one = next(one for one in corpus() if one.name in taught)
    assert changed_without(taught[one.name], [judged(one)])
    assert not IGNORED
