"""fixtures/expected: there for every illness with sick cases, and the same whoever writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import check_pages
from tests.expected_output import EXPECTED, WIDTH_COLUMNS, all_slugs
from tests.log_corpus import LOGS
from tests.regenerate import differences, generated
from tests.support.fixture_hosts import host_cases
from tests.support.other_users import User, python_for_all
from tests.support.script_cases import script_cases

ROOT = EXPECTED.parent.parent
SLUGS = ("port-in-use", "collective-desync", "user-code-error")
"""Findings on hosts, reports on jobs and smoke trainings, reports on logs."""
PRINTED = f"from tests.expected_output import expected_of\nfor slug in {SLUGS}: print(end=expected_of(slug))"


def sick_cases(slug: str) -> list[str]:
    hosts = [f"hosts/{case.id}" for case in host_cases(slug, "sick-")]
    scripts = [f"scripts/{case.name}" for case in script_cases(slug, "sick-")]
    return sorted([*hosts, *scripts, *(f"logs/{slug}/{path.name}" for path in (LOGS / slug).glob("sick-*"))])


@pytest.mark.quick
def test_all_that_is_generated_is_as_the_code_would_write_it() -> None:
    assert differences(generated()) == [], "run: python -m tests.regenerate, and read the diff"


@pytest.mark.quick
def test_each_illness_with_a_sick_case_has_its_file_and_no_other_is_there() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == {f"{slug}.txt" for slug in all_slugs() if sick_cases(slug)}


@pytest.mark.quick
@pytest.mark.parametrize("slug", [slug for slug in all_slugs() if sick_cases(slug)])
def test_each_sick_case_stands_in_it_and_says_something(slug: str) -> None:
    text = (EXPECTED / f"{slug}.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in f"\n{text}".split("\n======== ")[1:]]
    assert [name for name, _, _ in parts if name != "near-misses"] == sick_cases(slug)
    for name, _, said in parts:
        assert said.strip(), name


@pytest.mark.quick
def test_nothing_in_them_is_of_the_machine_that_wrote_them() -> None:
    for path in EXPECTED.iterdir():
        text = path.read_text(encoding="utf-8")
        for own in (str(ROOT), "\x1b"):
            assert own not in text, path.name


@pytest.mark.quick
def test_a_changed_a_missing_and_a_left_over_file_are_named() -> None:
    changed, missing, left_over = (EXPECTED / f"{name}.txt" for name in ("port-in-use", "no-such-file", "xid-error"))
    there = (*EXPECTED.iterdir(), *check_pages.PAGES.iterdir())
    others = {path: path.read_text(encoding="utf-8") for path in there if path != left_over}
    assert differences({**others, changed: "other words\n", missing: "words\n"}) == [changed, missing, left_over]


def printed(environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRINTED], cwd=ROOT, env={**os.environ, **environ}, capture_output=True, check=True
    )
    return done.stdout.decode()


def written() -> str:
    return "".join((EXPECTED / f"{slug}.txt").read_text(encoding="utf-8") for slug in SLUGS)


def test_the_environment_changes_nothing(tmp_path: Path) -> None:
    narrow = {"COLUMNS": "40", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "FORCE_COLOR": "1", "HOME": str(tmp_path)}
    assert printed({**narrow, "PYTHONHASHSEED": "1", "MASTER_PORT": "1", "RANK": "3"}) == written()
    wide = {"COLUMNS": "300", "TZ": "America/Lima", "LANG": "de_DE.UTF-8", "NO_COLOR": "1", "TERM": "dumb"}
    assert printed({**wide, "PYTHONHASHSEED": "2", "PYTHONUTF8": "1"}) == written()


@pytest.mark.root
def test_another_user_writes_the_same(ada: User) -> None:
    python, settings = python_for_all()
    done = ada.run([python, "-c", PRINTED], environ={**settings, "PYTHONUTF8": "1"})
    assert done.stdout == written(), done.stderr


@pytest.mark.quick
def test_the_lines_are_as_wide_as_said() -> None:
    """But for what is there to be copied, and words that can't be broken."""
    of_prose = [
        line
        for path in EXPECTED.iterdir()
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("      why ", "      fix "))
    ]
    assert of_prose
    assert max(map(len, of_prose)) == WIDTH_COLUMNS
