"""Log signs of a site's own, and what is said of a file that is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor import LogResult, UsageError, diagnose_log
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.logs import site_signs
from tests.support.other_users import User

QUOTA = """
[parts]
PROJECT = 'project (?P<name>\\w+)'

[pages.scratch-quota]
title = "The project's quota on /scratch is used up."
why = "Checkpoints count against the project's quota, not against yours"
fix = "See who uses it"
commands = ["lfs quota -p $PROJECT /scratch"]
owner = "user"

[[scratch-quota]]
text = 'scratchfs: write refused'
pattern = 'write refused for {PROJECT}'
"""
NOISE = """
[[healthy-runs]]
text = "scratchfs: ERROR cache cold"
why = "the file system says so at every start"
"""
TIMEOUT = """
[[nccl-watchdog-timeout]]
text = "acme-launcher: collective gave up"
"""
FAILED = "scratchfs: ERROR cache cold\n[rank2]: scratchfs: write refused for project astro\nacme: rank 2 exit 1\n"


@pytest.fixture(autouse=True)
def no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_folder(monkeypatch, tmp_path / "nothing")


def use_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:

    monkeypatch.setattr(site_signs, "SYSTEM_FOLDER", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    site_signs.files_of_host.cache_clear()


def judged(folder: Path, log: str, *signs: str) -> LogResult:
    (folder / "run.log").write_text(log)
    files = [folder / f"{number}.toml" for number in range(len(signs))]
    for file, text in zip(files, signs, strict=True):
        file.write_text(text)
    return diagnose_log([folder / "run.log"], signs=files)


def test_an_illness_of_the_sites_own_is_named_with_its_fix_and_its_file(tmp_path: Path) -> None:
    assert judged(tmp_path, FAILED).verdict is Verdict.UNKNOWN
    result = judged(tmp_path, FAILED, QUOTA, NOISE)
    (found,) = result.report().findings
    assert (found.slug, found.family, found.owner, found.rank) == ("scratch-quota", "site", "user", 2)
    assert found.summary == "The project's quota on /scratch is used up"
    assert found.cause == "Checkpoints count against the project's quota, not against yours"
    assert [fix.commands for fix in found.fixes] == [("lfs quota -p $PROJECT /scratch",)]
    assert found.docs == str(tmp_path / "0.toml")
    text = result.to_text()
    assert f"More on the first: cat {tmp_path / '0.toml'}" in text.replace("\n", " ")
    assert "1 message that healthy runs print, too" in text


def test_a_site_teaches_other_words_of_an_illness_that_we_know(tmp_path: Path) -> None:
    log = "[rank2]: acme-launcher: collective gave up\n"
    assert not judged(tmp_path, log).report().findings
    (found,) = judged(tmp_path, log, TIMEOUT).report().findings
    assert (found.slug, found.docs) == ("nccl-watchdog-timeout", "docs/checks/nccl-watchdog-timeout.md")


def test_what_a_site_adds_is_not_there_for_others(tmp_path: Path) -> None:
    judged(tmp_path, FAILED, QUOTA)
    assert judged(tmp_path, FAILED).verdict is Verdict.UNKNOWN
    assert catalogue().get("scratch-quota") is None


def test_the_folders_of_the_system_and_the_user_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "config" / "ddpdoctor" / "signs"
    user.mkdir(parents=True)
    (user / "quota.toml").write_text(QUOTA)
    (user / "README.md").write_text("not one of them")
    use_folder(monkeypatch, tmp_path / "config")
    (found,) = judged(tmp_path, FAILED).report().findings
    assert found.slug == "scratch-quota"


def test_a_wrong_file_in_such_a_folder_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.toml").write_text("[[scratch-quota]]\ntext = 'scratchfs: write refused'")
    (folder / "b.toml").write_text(QUOTA)
    use_folder(monkeypatch, folder)
    assert judged(tmp_path, FAILED).report().findings
    assert f"signs not used: {folder}/a.toml: no illness is called scratch-quota." in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a file to another user")
def test_root_believes_no_file_of_another_user_that_nobody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ada: User
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "quota.toml").write_text(QUOTA)
    os.chown(folder / "quota.toml", ada.uid, ada.gid)
    use_folder(monkeypatch, folder)
    assert judged(tmp_path, FAILED).verdict is Verdict.UNKNOWN
    assert f"quota.toml belongs to {ada.name}" in caplog.text


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[[nccl-timeout]]\ntext = 'collective gave up'", "no illness is called nccl-timeout. Did you mean nccl-"),
        ("[[own]]\ntext = 'collective gave up'", "One of your own needs a [pages.own]"),
        (f"{QUOTA}\n[pages.gpu-lost]\ntitle = 'x'", "gpu-lost has no signs: a table [[gpu-lost]] with a text"),
        ("[pages.shm-too-small]\ntitle = 'x'", "shm-too-small is an illness of ddpdoctor's"),
        ("[pages.Own]\ntitle = 'x'\n[[Own]]\ntext = 'collective gave up'", "'Own' is no name"),
        ("[pages.own]\ntitel = 'x'", "pages: Object contains unknown field `titel`"),
        ("[pages.own]\ntitle = 'x'\n[[own]]\ntext = 'error'", "own: 'error' may stand in any log"),
        ('[pages.own]\ntitle = "x"\n[[own]]\ntext = "two lines\\nof text"', "is no text of one line as it is printed"),
        ("pages = 1", "pages: Expected `object`, got `int`"),
        ("[[own", "Expected"),
        ("", ""),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, written: str, problem: str) -> None:
    if not problem:
        assert judged(tmp_path, FAILED, written).verdict is Verdict.UNKNOWN
        return
    with pytest.raises(UsageError) as refused:
        judged(tmp_path, FAILED, written)
    assert f"--signs: {tmp_path}/0.toml: " in str(refused.value)
    assert problem in str(refused.value)


def test_a_file_that_is_not_there_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(FAILED)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    for name, problem in (
        ("missing.toml", "No such file"),
        ("binary.toml", "not UTF-8"),
        ("large.toml", "larger than 1 MiB"),
        ("empty", "no file there ends in .toml"),
        ("pipe.toml", "not a regular file"),
    ):
        with pytest.raises(UsageError, match=problem):
            diagnose_log([tmp_path / "run.log"], signs=[tmp_path / name])
