"""`ddpdoctor lint --fix` at the command line: what it shows, asks and writes."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ
from tests.support.other_users import User
from tests.support.script_cases import SCRIPTS

LOAD = SCRIPTS / "load-without-map-location" / "sick-resume.py"
SHOWN = '+    checkpoint = torch.load("last.pt", map_location="cpu")'


def lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("lint", *arguments),
        cwd=folder,
        env=plain_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answered(folder: Path, answer: bytes) -> tuple[str, int]:
    """What `lint --fix` prints at a terminal where somebody gives that answer."""
    terminal, theirs = pty.openpty()
    os.write(terminal, answer)
    with subprocess.Popen(
        command("lint", "--fix", "train.py"), cwd=folder, env=plain_environ(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    ) as process:  # fmt: skip
        shown, _ = process.communicate(timeout=60)
        os.close(theirs)
        os.close(terminal)
    return shown.decode(), process.returncode


def test_nothing_is_written_where_nobody_can_be_asked(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "train.py")
    ended = lint(tmp_path, "--fix", "train.py")
    assert ended.returncode == 2
    assert SHOWN in ended.stdout.splitlines()
    assert ended.stderr.startswith("Nothing was written: there is no terminal to ask on.")
    assert (tmp_path / "train.py").read_bytes() == LOAD.read_bytes()


def test_a_dry_run_only_shows(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "train.py")
    ended = lint(tmp_path, "--fix", "--dry-run", "train.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lint(tmp_path, "--fix", "--dry-run", "--strict", "train.py").returncode == 1  # The warning is still there.
    assert SHOWN in ended.stdout.splitlines()
    assert ended.stdout.endswith("Nothing was written.\n")
    assert (tmp_path / "train.py").read_bytes() == LOAD.read_bytes()


def test_where_nothing_is_changed_each_finding_says_why(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "logger-on-every-rank" / "sick-wandb.py", tmp_path / "train.py")
    ended = lint(tmp_path, "--fix", "--dry-run", "train.py")
    words = " ".join(ended.stdout.split())
    assert "Not changed by itself: train.py:" in words
    assert "which change is right only you can tell; its fix is above" in words


def test_yes_writes_what_was_shown(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "train.py")
    ended = lint(tmp_path, "--fix", "--yes", "train.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert SHOWN in ended.stdout.splitlines()
    assert "Written: train.py." in ended.stdout
    assert SHOWN[1:] in (tmp_path / "train.py").read_text().splitlines()
    again = lint(tmp_path, "--fix", "--yes", "train.py")
    assert "There is nothing to fix." in again.stdout


def test_the_answer_counts(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "train.py")
    shown, code = answered(tmp_path, b"n\n")
    assert code == 0
    assert shown.endswith("Nothing was written.\n")
    assert (tmp_path / "train.py").read_bytes() == LOAD.read_bytes()
    shown, code = answered(tmp_path, b"y\n")
    assert code == 0
    assert "Written: train.py." in shown
    assert b'load("last.pt", map_location="cpu")' in (tmp_path / "train.py").read_bytes()


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "train.py")
    for arguments in (["--yes"], ["--fix", "--json"], ["--fix", "--format", "sarif"], ["--json", "--format", "github"]):
        ended = lint(tmp_path, "train.py", *arguments)
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
    ended = lint(tmp_path, "--fix", "-")
    assert ended.returncode == 2
    assert "standard input" in ended.stderr


def test_a_link_is_shown_and_left(tmp_path: Path) -> None:
    shutil.copy(LOAD, tmp_path / "real.py")
    (tmp_path / "train.py").symlink_to("real.py")
    ended = lint(tmp_path, "--fix", "--yes", "train.py")
    assert "it is a link to" in " ".join(ended.stdout.split())
    assert (tmp_path / "real.py").read_bytes() == LOAD.read_bytes()


@pytest.mark.root
def test_what_the_user_may_not_read_is_named_and_the_rest_is_told(shared: Path, eve: User) -> None:
    project = shared / "project"
    (project / "closed").mkdir(parents=True)
    for path in (project / "train.py", project / "secret.py", project / "closed" / "train.py"):
        shutil.copy(LOAD, path)
    for path in (project / "secret.py", project / "closed"):
        path.chmod(0)
    ended = eve.ddpdoctor("lint", ".", "--format", "concise", cwd=project)
    finding, *problems = ended.stdout.splitlines()
    assert finding.startswith("train.py:")
    assert problems == ["secret.py: Permission denied", "./closed: not looked into: Permission denied"]
    assert ended.returncode == 2


def test_nothing_to_read_is_nothing_to_fix(tmp_path: Path) -> None:
    ended = lint(tmp_path, "--fix", "--yes", "missing.py")
    assert ended.returncode == 2
    assert "missing.py: there is no such file or folder" in " ".join(ended.stdout.split())
    assert "In what was read there is nothing to fix." in ended.stdout


def test_a_pipe_of_the_shell_is_not_read_and_the_way_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", f"{shlex.join(command('lint'))} <(cat {shlex.quote(str(LOAD))})"],
        cwd=tmp_path, env=plain_environ(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "it is a pipe; one is read by ddpdoctor lint -" in " ".join(ended.stdout.split())
    assert ended.returncode == 2


def test_help_names_the_settings(tmp_path: Path) -> None:
    assert "tool.ddpdoctor.lint" in lint(tmp_path, "--help").stdout
