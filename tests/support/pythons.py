"""Pythons for tests: real ones of several versions where the machine has them, and stand-ins written as shell scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path


@cache
def real_pythons() -> dict[str, str]:
    """ "3.8" to an interpreter's path: ~/.pyenv, then PATH, then the one that runs the tests."""
    candidates = [str(path) for path in sorted((Path.home() / ".pyenv").glob("versions/*/bin/python"), reverse=True)]
    names = ["python2.7", *(f"python3.{minor}" for minor in range(6, 15))]
    candidates += [path for name in names if (path := shutil.which(name))]
    found: dict[str, str] = {}
    for path in [*candidates, sys.executable]:
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0:
            found.setdefault(asked.stdout.strip(), path)
    return found


def stand_in(folder: Path, script: str, name: str = "python") -> str:
    """An executable shell script in place of an interpreter; "$@" are the arguments that one would get."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


OLD_PYTHON = """
# What Python 2.7.18, 3.6.15 and 3.7.16 print when they are given the inquiry: recorded, but for the version and the words.
printf '%s{"too_old": "VERSION"}%s' "$3" "$4"
"""


def old_python(folder: Path, version: str) -> str:
    return stand_in(folder, OLD_PYTHON.replace("VERSION", version))


def bare_venv(folder: Path, python: str = sys.executable) -> str:
    """A real virtual environment without pip and without torch; gives its interpreter."""
    if python == sys.executable:
        venv.create(folder, with_pip=False, symlinks=True)
    else:
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


def fake_torch(folder: Path, code: str, version: str | None = "2.13.0+cpu") -> Path:
    """A package by the name of torch that does as the code says when it is imported; gives the folder for PYTHONPATH."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    if version:
        cuda = "'13.0'" if "+cu130" in version else "None"
        text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"
        (package / "version.py").write_text("from typing import Optional\n" + text)
    return folder
