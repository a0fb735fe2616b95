"""`ddpdoctor check --script`: what `lint` finds stands in the report on the host."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import ddpdoctor
from tests.support.report_schema import check_against_schema
from tests.support.script_cases import SCRIPTS

SLUG = "shuffle-with-sampler"
PLACE = "train.py:10:"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It holds a script with a mistake that breaks, and one with a mistake that is only a warning."""
    shutil.copy(SCRIPTS / SLUG / "sick-both.py", tmp_path / "train.py")
    shutil.copy(SCRIPTS / "device-not-set" / "sick-constant.py", tmp_path / "warn.py")
    return tmp_path


def check(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = ddpdoctor("check", *arguments, cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_findings_of_host_and_script_are_one_report(folder: Path) -> None:
    code, shown, _ = check(folder, "--json", "--script", "train.py", "--select", "script,host")
    assert code == 1
    report = json.loads(shown)
    check_against_schema(report)
    assert [finding["slug"] for finding in report["findings"] if finding["family"] == "script"] == [SLUG]
    finding = next(finding for finding in report["findings"] if finding["slug"] == SLUG)
    assert (finding["file"], finding["line"]) == ("train.py", 10)
    assert report["scripts"] == [{"path": "train.py", "is_distributed": True}]
    assert report["host"]
    assert {"sampler-without-set-epoch", "memlock-limit"} <= {
        *report["passed"],
        *(skipped["slug"] for skipped in report["not_tested"]),
        *(finding["slug"] for finding in report["findings"]),
    }
    assert "no training script was named" not in shown


def test_it_is_shown_to_people(folder: Path) -> None:
    code, shown, _ = check(folder, "--script", "train.py", "--select", "script")
    assert code == 1
    assert f"FAIL  {PLACE}" in shown
    assert f"[{SLUG}]" in shown
    _, markdown, _ = check(folder, "--markdown", "--script", "train.py", "--select", "script")
    assert f"### FAIL {SLUG}: {PLACE}" in markdown


def test_exit_codes(folder: Path) -> None:
    assert check(folder, "--script", "warn.py", "--select", "script")[0] == 0
    assert check(folder, "--script", "warn.py", "--select", "script", "--strict")[0] == 1
    (folder / "broken.py").write_text("def f(:\n")
    code, shown, _ = check(folder, "--script", "broken.py", "--script", "warn.py", "--select", "script")
    assert code == 2
    assert "broken.py: not read: no syntax of Python" in " ".join(shown.split())
    assert "[device-not-set]" in shown
    code, shown, _ = check(folder, "--script", "nowhere.py", "--script", "warn.py", "--select", "script")
    assert code == 2
    assert "nowhere.py: not read: there is no such file" in " ".join(shown.split())
    assert "[device-not-set]" in shown
    assert check(folder, "--script", ".", "--select", "script")[0] == 1  # What fails outdoes what could not be read.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--script", ""), "--script is empty"),
        (("--script", "train.py", "--select", "host"), "leave no check of scripts"),
        (("--script", "train.py", "--snapshot", "host.json"), "--script reads a file of this host"),
        (("--script", "train.py", "--fix", "--dry-run"), "ddpdoctor lint --fix"),
    ],
)
def test_usage(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    code, _, complaint = check(folder, *arguments)
    assert code == 2
    assert said in " ".join(complaint.replace("│", " ").split())


def test_settings_of_the_project_count_and_secrets_dont_show(folder: Path) -> None:
    path = folder / "train.py"
    path.write_text(path.read_text().replace("shuffle=True,", 'shuffle=True, collate_fn=dict(api_key="xyzzy-4711"),'))
    _, shown, _ = check(folder, "--script", "train.py", "--select", "script")
    assert f"[{SLUG}]" in shown
    assert "xyzzy" not in shown
    (folder / "pyproject.toml").write_text(f'[tool.ddpdoctor.lint]\nignore = ["{SLUG}"]\n')
    code, shown, _ = check(folder, "--json", "--script", "train.py", "--select", "script")
    assert code == 0
    assert SLUG not in {*(finding["slug"] for finding in json.loads(shown)["findings"]), *json.loads(shown)["passed"]}
