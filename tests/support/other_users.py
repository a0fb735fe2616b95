"""Other users of this host, who really try: for tests of what ddpdoctor does with what is not its caller's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import ROOT

NAMES = ("ddpdoctor-ada", "ddpdoctor-eve")
"""In CI `.ci/run` makes them: useradd --create-home NAME."""


class User(NamedTuple):
    """Somebody who is not root."""

    name: str
    uid: int
    gid: int
    home: Path

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: str | Path = "/",
        environ: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, without any of root's groups and settings."""
        return subprocess.run(
            [str(word) for word in command],
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "USER": self.name} | (environ or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def does(self, script: str, *, cwd: str | Path = "/") -> str:
        """What a shell script of this user's prints; it has to succeed."""
        done = self.run(["sh", "-euc", script], cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ddpdoctor(
        self, *arguments: str | Path, cwd: str | Path = "/", environ: dict[str, str] | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """`ddpdoctor ARGUMENTS` as this user."""
        python, settings = python_for_all()
        command = [python, "-m", "ddpdoctor", *map(str, arguments)]
        return self.run(command, cwd=cwd, environ=settings | (environ or {}), timeout=timeout)


def python_for_all() -> tuple[str, dict[str, str]]:
    """A Python that every user may run, and the settings by which it finds ddpdoctor and what it needs: ours may lie in a
    folder of root's alone."""
    if all(folder.stat().st_mode & 0o001 for folder in Path(os.path.realpath(sys.executable)).parents):
        return sys.executable, {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    python = "/usr/bin/python3"
    same = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    assert same.stdout.strip() == str(sys.version_info[:2]), f"{python} isn't of our release"
    path = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    return python, {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def user(name: str) -> User:
    """The user of that name. Where there is none, CI fails; elsewhere the test is skipped, with the command that makes one."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        words = f"needs the user {name}: useradd --create-home {name}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    return User(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


@contextmanager
def shared_folder(mode: int = 0o1777) -> Iterator[Path]:
    """A folder of root's that all users reach (those of pytest are closed to others), gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ddpdoctor-shared-", dir="/tmp"))
    folder.chmod(mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
