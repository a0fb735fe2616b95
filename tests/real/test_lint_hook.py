"""The hook of .pre-commit-hooks.yaml, run by the real pre-commit on a git repository. Only its installation is left out: ddpdoctor is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.command import plain_environ
from tests.support.deployed import DEPLOY, this_doctor
from tests.support.optional_modules import imported
from tests.support.script_cases import SCRIPTS

imported("pre_commit")
MANIFEST = DEPLOY.parent / ".pre-commit-hooks.yaml"
SICK = SCRIPTS / "sampler-without-set-epoch" / "sick-one-file.py"
HONEST = "print('one process')\n"


def pre_commit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    if not (programs / "ddpdoctor").exists():
        this_doctor(programs)
    environ = plain_environ() | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(folder / "home"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", *arguments],
        cwd=folder / "repository",
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def repository(folder: Path, **scripts: str) -> None:
    """A repository with the hook and these scripts, all of them staged."""
    repository = folder / "repository"
    repository.mkdir()
    (hook,) = yaml.safe_load(MANIFEST.read_text())
    local: dict[str, Any] = hook | {"language": "system"}
    (repository / ".pre-commit-config.yaml").write_text(yaml.dump({"repos": [{"repo": "local", "hooks": [local]}]}))
    for name, text in scripts.items():
        (repository / f"{name}.py").write_text(text)
    for line in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *line], cwd=repository, check=True, timeout=30)


def test_pre_commit_takes_the_manifest(tmp_path: Path) -> None:
    shutil.copy(MANIFEST, tmp_path)
    (tmp_path / "repository").mkdir()
    ended = pre_commit(tmp_path, "validate-manifest", str(MANIFEST))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_mistake_stops_the_commit(tmp_path: Path) -> None:
    repository(tmp_path, train=SICK.read_text(), honest=HONEST)
    ended = pre_commit(tmp_path, "run")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "train.py:15:15: warn sampler-without-set-epoch " in ended.stdout


def test_honest_scripts_pass(tmp_path: Path) -> None:
    repository(tmp_path, honest=HONEST)
    ended = pre_commit(tmp_path, "run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Passed" in ended.stdout
