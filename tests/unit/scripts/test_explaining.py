"""A line of the run's script is named where it explains what the run's log shows; where nothing does, there is silence."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from ddpdoctor import diagnose_log
from ddpdoctor.base.findings import FAIL, INFO
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.explanations import Illness
from ddpdoctor.engine.registry import Check
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.judging import HANG_GROUP, judge_hang
from ddpdoctor.hang.render import hang_document
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.report.terminal import text_of
from ddpdoctor.run.diagnosis import explained_hang, script_of
from ddpdoctor.scripts import explaining
from ddpdoctor.scripts.explaining import explain
from tests.support.hangs import backward, collective, hang, rank
from tests.support.other_users import User
from tests.support.report_schema import check_against_schema
from tests.support.script_cases import SCRIPTS

TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
{script} FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-02_10:00:01
  host      : node0
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4711)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "{script}", line {line}, in <module>
    load()
{error}
"""
TORN = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
TIMED_OUT = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 2000ms for recv operation to complete"
DUPLICATE = "[rank1]: ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5000\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which the log and the script lie."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(slug: str, name: str) -> Path:
    """A script of the fixtures, as train.py here."""
    return Path(shutil.copy(SCRIPTS / slug / f"{name}.py", "train.py")).resolve()


def explained(log: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Slug, place and what it explains, of the findings in scripts that the diagnosis of a log has."""
    Path("run.log").write_text(log)
    return [
        (finding.slug, f"{finding.file}:{finding.line}", finding.explains)
        for finding in diagnose_log(["run.log"]).findings
        if isinstance(finding.explains, tuple)
    ]


EXPLAINING = [check for check in all_checks() if check.explains]


@pytest.mark.parametrize("check", EXPLAINING, ids=lambda check: check.slug)
def test_what_is_explained_is_an_illness_that_a_run_shows(check: Check) -> None:
    assert check.groups == {"script"}
    assert check.severity is not INFO
    for slug in check.explains:
        illness = catalogue().get(slug)
        assert illness, slug
        assert illness.log_signs or HANG_GROUP in illness.groups or LogTopic.MISTAKE in illness.stands_for


def test_the_launchers_table_names_the_script() -> None:
    script("device-not-set", "sick-constant")
    log = DUPLICATE + TABLE.format(script="train.py")
    assert explained(log) == [("device-not-set", "train.py:5", ("duplicate-gpu",))]
    result = diagnose_log(["run.log"])
    text = result.to_text()
    assert "\nAnd train.py:5 may be why\nWARN  train.py:5:1: " in text
    assert text.index("[duplicate-gpu]") < text.index("[device-not-set]")
    assert "### And train.py:5 may be why" in result.to_markdown()
    check_against_schema(json.loads(result.to_json()))


def test_a_traceback_names_the_script() -> None:
    path = script("save-by-every-rank", "sick-helper")
    log = TRACEBACK.format(script=path, line=17, error=TORN)
    assert explained(log) == [("save-by-every-rank", "train.py:10", ("ckpt-truncated",))]


@pytest.mark.parametrize("path", ["/nowhere/train.py", "other.py", "", "\0.py", "x" * 300 + ".py"])
def test_a_script_that_is_not_here_explains_nothing(path: str) -> None:
    script("save-by-every-rank", "sick-helper")
    assert explained(TRACEBACK.format(script=path, line=17, error=TORN)) == []


def test_what_does_not_match_is_left_out() -> None:
    """A script that loads to a wrong device, and a torn file; an honest script; a finding of severity info."""
    log = TRACEBACK.format(script=script("load-without-map-location", "sick-resume"), line=17, error=TORN)
    assert explained(log) == []
    script("save-by-every-rank", "near-miss-guarded-by-the-caller")
    assert explained(log) == []
    script("wrapper-in-checkpoint", "sick-never-loaded")
    keys = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a".\n\tUnexpected key(s) in state_dict: "module.a".'
    assert explained(TRACEBACK.format(script="train.py", line=3, error=keys)) == []


@pytest.mark.parametrize(("line", "is_why"), [(10, True), (9, False)])
def test_an_exception_of_the_scripts_own_is_explained_on_its_line_alone(line: int, is_why: bool) -> None:
    path = script("shuffle-with-sampler", "sick-both")
    error = "ValueError: sampler option is mutually exclusive with shuffle"
    found = explained(TRACEBACK.format(script=path, line=line, error=error))
    assert found == ([("shuffle-with-sampler", "train.py:10", ("user-code-error",))] if is_why else [])
    assert ("And train.py:10 is why" in diagnose_log(["run.log"]).to_text()) == is_why


def test_where_the_log_tells_only_what_followed_the_script_tells_the_cause() -> None:
    path = script("collective-on-some-ranks", "sick-barrier-after-saving")
    log = TRACEBACK.format(script=path, line=5, error=TIMED_OUT)
    ((slug, place, _),) = explained(log)
    result = diagnose_log(["run.log"])
    assert slug == "collective-on-some-ranks"
    assert (result.verdict, result.exit_code()) == (Verdict.FAIL, 1)
    assert f"FAIL  The log doesn't name the cause; {place} does." in result.to_text()
    path.unlink()
    result = diagnose_log(["run.log"])
    assert (result.verdict, result.exit_code()) == (Verdict.UNKNOWN, 2)


def test_comments_and_settings_of_the_project_count(folder: Path) -> None:
    path = script("device-not-set", "sick-constant")
    log = DUPLICATE + TABLE.format(script="train.py")
    (folder / "pyproject.toml").write_text('[tool.ddpdoctor.lint]\nignore = ["device-not-set"]\n')
    assert explained(log) == []
    (folder / "pyproject.toml").unlink()
    assert explained(log)
    path.write_text(path.read_text().replace("set_device(0)", "set_device(0)  # ddpdoctor: ignore[device-not-set]"))
    assert explained(log) == []


def test_secrets_in_the_script_are_not_shown() -> None:
    path = script("device-not-set", "sick-constant")
    path.write_text(path.read_text().replace("set_device(0)", 'set_device(0); api_key = "xyzzy-4711"'))
    Path("run.log").write_text(DUPLICATE + TABLE.format(script="train.py"))
    result = diagnose_log(["run.log"])
    assert "set_device(0)" in result.to_text()
    assert "xyzzy" not in result.to_text() + result.to_json() + result.to_markdown()


def test_nobody_waits_for_a_large_project(monkeypatch: pytest.MonkeyPatch) -> None:
    script("device-not-set", "sick-constant")
    illnesses = [Illness("duplicate-gpu")]
    assert explain(["train.py"], illnesses, catalogue())
    read, may_end = explaining.read_script, threading.Event()
    monkeypatch.setattr(explaining, "read_script", lambda *arguments: may_end.wait() and read(*arguments))
    assert explain(["train.py"], illnesses, catalogue(), patience=0.01) == ()
    may_end.set()


def test_a_failure_of_ours_costs_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    script("device-not-set", "sick-constant")
    monkeypatch.setattr(explaining, "read_script", lambda *_: 1 / 0)
    assert explain(["train.py"], [Illness("duplicate-gpu")], catalogue()) == ()
    assert capfd.readouterr() == ("", "")


@pytest.mark.root
@pytest.mark.parametrize("whose", ["script", "module", "settings", "folder", "link"])
def test_root_believes_no_file_of_another_user(whose: str, folder: Path, eve: User) -> None:
    path = script("save-by-every-rank", "sick-helper")
    (folder / "data.py").write_text("ROWS = 3\n")
    path.write_text(f"{path.read_text()}\nimport data\nprint(data.ROWS)\n")
    (folder / "pyproject.toml").write_text("[tool.ddpdoctor.lint]\n")
    torn = [Illness("ckpt-truncated")]
    assert explain(["train.py"], torn, catalogue())
    if whose == "link":
        path.rename("real.py")
        path.symlink_to("real.py")
        os.chown(path, eve.uid, eve.gid, follow_symlinks=False)
    else:
        theirs = {"script": path, "module": folder / "data.py", "settings": folder / "pyproject.toml", "folder": folder}
        os.chown(theirs[whose], eve.uid, eve.gid)
    assert explain(["train.py"], torn, catalogue()) == ()


def test_a_hang_is_explained_below_its_own_findings() -> None:
    script("collective-on-some-ranks", "sick-barrier-after-saving")
    stuck = hang(rank(0, collective()), rank(1, backward()))
    examination = judge_hang(Snapshot(host="node01"), stuck, catalogue())
    (found,) = explained_hang(["torchrun", "train.py"], examination)
    assert (found.check.slug, found.severity, found.slugs) == ("collective-on-some-ranks", FAIL, ("collective-desync",))
    assert explained_hang(["torchrun", "other.py"], examination) == explained_hang(["torchrun"], examination) == ()
    assert f"And {found.finding.place} is why" in text_of(hang_document(examination, explanations=[found]), 100)
    assert "is why" not in text_of(hang_document(examination), 100)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("torchrun --nproc-per-node 8 src/train.py other.py", "src/train.py"),
        ("srun torchrun train.py", "train.py"),
        ("python -m package.train", ""),
    ],
)
def test_the_script_of_a_command(command: str, path: str) -> None:
    assert list(script_of(command.split())) == ([path] if path else [])
