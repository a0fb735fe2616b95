"""Command lines that run in the target Python, and nowhere else; which Python ran, by a log. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.log import Log
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.python_packages import PACKAGES

_BINARY: Final = compile_lazily(r" of binary: (?P<python>/\S*python[\d.]*)(?=\s|$)")
_SITE: Final = compile_lazily(r"^(?P<prefix>/\S*)(?<!/\.local)/lib/python3\.\d+/site-packages/")
"""Python lies beside its packages, but not beside those of pip install --user: no ~/.local/bin/python is there."""


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
    """The command that shows which releases of these that Python has, by whichever of "-", "_" and "." pip writes them with.

    A package may be named as it is imported, too.
    """
    called = (PACKAGES.get(package, package) for package in packages)
    names = "|".join(dict.fromkeys(re.sub(r"[-_.]+", ".", name) for name in called))
    return f"{shlex.quote(python)} -m pip list | grep -iE {shlex.quote(names)}"


def python_of(log: Log) -> str:
    """Find the interpreter of the ranks: by the launcher's word, else by where its packages lie."""
    for exited in log.exited:
        if found := _BINARY.search(exited.line.text):
            return found["python"]
    for raised in log.raised:
        for frame in raised.frames:
            if found := _SITE.match(frame.path):
                return f"{found['prefix']}/bin/python"
    return "python"
