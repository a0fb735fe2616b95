"""The index of public scripts says what it should, and right and wrong answers are told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import all_checks
from tests.script_corpus import INDEXES, ReadMistake, ReadScript, judge, read_corpus
from tests.support.script_cases import SCRIPTS

SLUG = "sampler-without-set-epoch"


@pytest.mark.parametrize("name", INDEXES)
def test_a_script_is_sick_where_a_mistake_is_certain(name: str) -> None:
    slugs = {check.slug for check in all_checks() if check.family == "script"}
    for script in read_corpus(name):
        assert len(script.commit) == 40
        assert {read.slug for read in script.findings} <= slugs, script
        assert (script.verdict == "sick") == any(read.strength == "certain" for read in script.findings), script


def test_no_repository_is_in_two_indexes() -> None:
    repositories = [repo for name in INDEXES for repo in {script.repo.lower() for script in read_corpus(name)}]
    assert len(repositories) == len(set(repositories))


def answers(root: Path, findings: tuple[ReadMistake, ...] = (), fixed_by: str = "") -> list[tuple[str, str]]:
    script = ReadScript("o/n", "1" * 40, "train.py", "", "ddp", "sick", findings, "whole", "MIT", fixed_by)
    known = {(read.slug, read.file) for read in findings}
    return [(answer, slug) for answer, (slug, _), _ in judge(script, known, root)]


def test_answers_are_right_or_wrong(tmp_path: Path) -> None:
    def lay_down(commit: str, name: str) -> None:
        (folder := tmp_path / f"o+n+{commit}").mkdir()
        shutil.copy(SCRIPTS / SLUG / name, folder / "train.py")

    lay_down("1" * 7, "sick-one-file.py")
    lay_down("2" * 7, "near-miss-no-shuffle.py")
    certain, arguable = (ReadMistake("train.py", 15, SLUG, strength, "") for strength in ("certain", "arguable"))
    other = ReadMistake("train.py", 15, "rank-as-device", "certain", "")
    assert answers(tmp_path) == [("false", SLUG)]
    assert answers(tmp_path, (arguable,)) == []
    assert answers(tmp_path, (certain, other)) == [("found", SLUG), ("missed", "rank-as-device")]
    assert answers(tmp_path, (certain,), "2" * 40) == [("found", SLUG)]
    assert answers(tmp_path, (certain,), "1" * 40) == [("found", SLUG), ("after the fix", SLUG)]
    left = ReadMistake("train.py", 15, SLUG, "certain", "", stays=True)
    assert answers(tmp_path, (left,), "1" * 40) == [("found", SLUG)]
