"""The rules of the analysis: each has a name, and a log that taught it."""

from __future__ import annotations

import pytest

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
