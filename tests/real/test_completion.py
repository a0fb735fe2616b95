"""Completion of the shell: installed by the command, and what it completes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ
from tests.support.other_users import User


def installed(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("--install-completion", "bash"),
        env={**plain_environ(), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_installs_into_the_home_folder_and_completes_commands(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ended = installed(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    asking = {"COMP_WORDS": "ddpdoctor sm", "COMP_CWORD": "1", "_DDPDOCTOR_COMPLETE": "complete_bash"}
    completed = subprocess.run(
        command(), env={**plain_environ(), **asking}, capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stdout.split()) == (0, ["smoke"])
    assert "_DDPDOCTOR_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "ddpdoctor.sh").read_text()
    assert ".bash_completions/ddpdoctor.sh" in (tmp_path / ".bashrc").read_text()


@pytest.mark.root
def test_root_writes_nothing_into_the_home_folder_of_somebody_else(ada: User, tmp_path: Path) -> None:
    theirs = Path(ada.does("mktemp -d ~/home.XXXX").strip())
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    ada.does(f"ln -s {precious} {theirs}/.bashrc")
    ended = installed(theirs)
    assert ended.returncode == 2
    assert "belongs to ddpdoctor-ada" in " ".join(ended.stderr.split())
    assert precious.read_text() == "as it was"
    assert not (theirs / ".bash_completions").exists()
