"""The GitHub Action, its steps run as a runner runs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.command import plain_environ
from tests.support.deployed import DEPLOY, this_doctor
from tests.support.script_cases import SCRIPTS

ACTION = DEPLOY / "github-action"


def run_step(folder: Path, step_id: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A step; in the place of the one that installs, this ddpdoctor is put where it would be."""
    programs = folder / "ddpdoctor" / "bin"
    programs.mkdir(parents=True)
    this_doctor(programs)
    (programs / "python").symlink_to(sys.executable)
    steps = yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]
    (step,) = [step for step in steps if step.get("id") == step_id]
    assert environ.keys() >= step["env"].keys()
    runner = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "GITHUB_OUTPUT": str(folder / "output"),
    }
    # As `shell: bash` has it.
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        line,
        cwd=folder,
        env=plain_environ() | runner | environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def run_check(folder: Path, arguments: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return run_step(folder, "check", TARGET_PYTHON=sys.executable, MORE=arguments, **environ)


def test_what_fails_becomes_an_annotation(tmp_path: Path) -> None:
    ended = run_check(tmp_path, "--quick --select gloo-ifname-not-found", GLOO_SOCKET_IFNAME="nowhere0")
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert line.startswith("::error title=gloo-ifname-not-found::GLOO_SOCKET_IFNAME=nowhere0")
    assert "%0Awhy: " in line
    assert "%0Afix: " in line
    assert (tmp_path / "output").read_text() == "verdict=fail\n"
    summary = (tmp_path / "summary").read_text()
    assert "### ddpdoctor: fail" in summary
    assert "| fail | gloo-ifname-not-found |" in summary


def test_a_healthy_runner_has_none(tmp_path: Path) -> None:
    ended = run_check(tmp_path, "--quick --select gloo-ifname-not-found", GLOO_SOCKET_IFNAME="lo")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert (tmp_path / "output").read_text() == "verdict=ok\n"


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    ended = run_check(tmp_path, "--select no-such-check")
    assert ended.returncode == 2
    assert "no-such-check" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "output").exists()


def test_mistakes_of_scripts_become_annotations(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "sampler-without-set-epoch" / "sick-one-file.py", tmp_path / "train.py")
    ended = run_step(tmp_path, "lint", LINT="train.py --strict")
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert line.startswith("::warning title=sampler-without-set-epoch,file=train.py,line=15,col=15::The sampler ")


def test_nothing_of_the_lint_input_is_run(tmp_path: Path) -> None:
    ended = run_step(tmp_path, "lint", LINT="$(touch ran) `touch ran` ; touch ran")
    assert ended.returncode == 2
    assert not (tmp_path / "ran").exists()
