"""`diagnose-log --good` with real trainings of two ranks: one that ended well beside some that didn't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ddpdoctor
from tests.support.good_and_bad_runs import NEW, NOISE, log_of
from tests.support.report_schema import check_against_schema


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = log_of(tmp_path_factory.mktemp("good"), "well")
    assert log.read_text().count("training done") == 2
    return log


def told(log: Path, *good: Path) -> tuple[int, dict[str, Any]]:
    done = ddpdoctor("diagnose-log", log, "--json", *(word for path in good for word in ("--good", path)))
    report = json.loads(done.stdout)
    check_against_schema(report)
    return done.returncode, report["log"]


def test_a_rank_that_goes_with_words_that_nobody_knows(good: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path, "lost")
    _, alone = told(log)
    assert alone["suspects"][0]["slug"] == "shm-too-small"
    code, found = told(log, good)
    assert (code, found["rank"]) == (1, 1)
    assert "shm-too-small" not in [suspect["slug"] for suspect in (*found["suspects"], *found["also"])]
    assert NOISE in [noise["text"] for noise in found["noise"]]
    assert [line["text"] for line in found["comparison"]["new"]] == [NEW]
    assert found["headline"].endswith(f"new in this run: {NEW}")
    assert [line["text"] for line in found["comparison"]["missing"]] == ["model saved, training done"]


def test_a_run_that_hangs_and_is_killed_with_all_that_could_say_so(good: Path, tmp_path: Path) -> None:
    log = log_of(tmp_path, "hang")
    code, found = told(log, good)
    (stopped,) = found["comparison"]["stopped"]
    assert (code, found["outcome"], found["comparison"]["ends_early"]) == (2, "nothing", True)
    assert stopped["line"]["text"].startswith("step 14 loss")
    assert (stopped["times"], stopped["good_times"]) == (30, 80)


def test_two_runs_that_ended_well(good: Path, tmp_path: Path) -> None:
    code, found = told(log_of(tmp_path, "well"), good)
    assert (code, found["outcome"]) == (0, "nothing")
    assert [found["comparison"][name] for name in ("new", "missing", "stopped")] == [[], [], []]


@pytest.mark.parametrize("form", ["--markdown", "-v", "-q"])
def test_each_form_of_the_report(form: str, good: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(good.read_text().partition("step 20 ")[0] + f"{NEW}\n")
    done = ddpdoctor("diagnose-log", log, "--good", good, form)
    assert done.returncode == 2
    assert NEW in " ".join(done.stdout.split())
