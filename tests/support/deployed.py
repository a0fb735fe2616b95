"""The files of deploy/, with another ddpdoctor in the place of the one that they expect to be installed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from tests.support.command import ROOT

DEPLOY = ROOT / "deploy"
INSTALLED = "/opt/ddpdoctor/bin/ddpdoctor"


def deployed(name: str, doctor: Path) -> str:
    """The text of a file of deploy/ that calls that program."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert INSTALLED in text
    return text.replace(INSTALLED, str(doctor))


def this_doctor(folder: Path) -> Path:
    """A program that is this ddpdoctor, whatever the environment, and its launcher beside it, as in an installation's bin/."""
    return _program(
        folder / "ddpdoctor",
        f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m ddpdoctor "$@"',
    )


def noting_doctor(folder: Path) -> Path:
    """A program that notes its arguments in "called" beside it, a line a call, and says that all is well; with the launcher."""
    return _program(folder / "ddpdoctor", f'echo "$@" >>{shlex.quote(str(folder / "called"))}')


def broken_doctor(folder: Path, script: str, interpreter: str = "/bin/sh") -> Path:
    """An installation's bin/ whose ddpdoctor is that script.

    Returns:
        The launcher in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = _program(folder / "ddpdoctor", script, interpreter)
    return program.with_name(f"{program.name}-gate")


def _program(path: Path, script: str, interpreter: str = "/bin/sh") -> Path:
    path.write_text(f"#!{interpreter}\n{script}\n")
    path.chmod(0o755)
    shutil.copy(DEPLOY / "ddpdoctor-gate", path.parent)
    return path


def install(name: str, doctor: Path, target: Path) -> Path:
    """Copy a script of deploy/, as an admin does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(deployed(name, doctor))
    target.chmod(0o755)
    return target
