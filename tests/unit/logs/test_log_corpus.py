"""The project's own corpus of logs: each one judged right, and how well the whole is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.log_corpus import HEALTHY, LOGS, CorpusLog, corpus, judged, rates, text_of
from tests.support.command import ROOT

LEAST_ILLNESSES = 80
LEAST_RIGHT = 0.95
"""Of the sick logs."""

LEAST_ABOUT = 20
"""Characters."""

KNOWN_WRONG: frozenset[str] = frozenset({"loopback-ifname/sick-gloo.log"})
"""Logs that are judged wrong as long as nobody has a better idea; they count in the rates."""

every_log = pytest.mark.parametrize("one", corpus(), ids=lambda one: one.name)

MACHINE_PATH = re.compile(rf"/root\b|{re.escape(str(ROOT))}|/tmp/(?:libs|pytest)|ddpdoctor")
"""Of the machine that the log was made on."""


@every_log
def test_is_judged_right(one: CorpusLog) -> None:
    found = judged(one)
    if one.name in KNOWN_WRONG:
        assert not found.right, "it is right: take it out of KNOWN_WRONG"
    else:
        assert found.right, f"{found.verdict.outcome}: {found.named}"
        if one.sick and found.knows_rank:
            assert found.rank_right, f"rank {found.verdict.lead.rank if found.verdict.lead else None} leads"
        if one.sick:
            assert found.host_right, f"{found.verdict.lead.host if found.verdict.lead else None} leads"


@pytest.mark.quick
def test_each_says_how_it_was_made() -> None:
    said = {one.name: one.case for one in corpus()}
    assert not [name for name, case in said.items() if case.origin not in ("recorded", "hand-made")]
    assert not [name for name, case in said.items() if len(case.about) < LEAST_ABOUT]


@pytest.mark.quick
def test_each_is_of_a_sick_run_a_near_miss_or_of_a_healthy_one() -> None:
    assert not [one.name for one in corpus() if not (one.sick or one.near_miss or one.slug == HEALTHY)]


@pytest.mark.quick
def test_none_names_a_path_of_the_machine_it_was_made_on() -> None:
    texts = {one.name: text_of(one.path) for one in corpus()}
    assert not [name for name, text in texts.items() if not text]
    assert not {name: found for name, text in texts.items() if (found := set(MACHINE_PATH.findall(text)))}


@pytest.mark.quick
def test_every_log_has_a_case_beside_it() -> None:
    logs = [path for path in LOGS.glob("*/*") if path.suffix in (".log", ".gz")]
    assert set(logs) == {one.path for one in corpus()}


def test_the_rates_are_those_that_are_promised() -> None:
    sums = rates(judged(one) for one in corpus())
    right, of = sums.sick
    assert sums.illnesses >= LEAST_ILLNESSES
    assert right >= LEAST_RIGHT * of
    assert sums.healthy[0] == sums.healthy[1]
    assert sums.healthy[1] >= 10
    assert sums.near_misses[0] == sums.near_misses[1]


def test_text_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "run.log"
    (folder / "1").mkdir(parents=True)
    (folder / "0.err").write_text("one\n")
    (folder / "1" / "stderr.log").write_text("two\n")
    assert text_of(folder).split() == ["one", "two"]
