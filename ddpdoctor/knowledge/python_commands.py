"""Command lines that run in the target Python, and nowhere else. Pure."""

from __future__ import annotations

import re
import shlex

from ddpdoctor.facts.target_python import TargetPython


def in_target_python(target_python: TargetPython, *arguments: str) -> str:
    """A command line that runs in the target Python: `in_target_python(p, "-c", "import torch")`, quoted for a shell."""
    return shlex.join([target_python.python, *arguments])


def pip_install(target_python: TargetPython, *arguments: str) -> str:
    """The command that installs into the target Python, and nowhere else."""
    return in_target_python(target_python, "-m", "pip", "install", *arguments)


def conda_install(target_python: TargetPython, package: str) -> str:
    """The command that installs a package of conda-forge into the target Python's environment."""
    return shlex.join(["conda", "install", "-p", target_python.prefix, "-c", "conda-forge", package])


def versions_installed(python: str, *packages: str) -> str:
    """The command that shows which releases of these that Python has, by whichever of "-", "_" and "." pip writes them with."""
    names = "|".join(dict.fromkeys(re.sub(r"[-_.]+", ".", package) for package in packages))
    return f"{shlex.quote(python)} -m pip list | grep -iE {shlex.quote(names)}"
