"""Chooses the target Python. Nothing is run to find out, and links are left as they are: a venv's python is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from ddpdoctor.probes.programs import find_program


def choose_python(option: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Choose the interpreter: its path, and who chose it.

    In this order: `--python` (a path, a command on PATH, or the folder of a virtual environment); the active virtual or
    conda environment (where both are active, the one that comes first on PATH); our own interpreter if torch is
    installed beside us; `python` or `python3` on PATH, since a doctor that was installed on its own (pipx, uv tool)
    isn't what training runs in; our own.
    """
    if option:
        return _named(os.path.expanduser(option), environ), "--python"
    active = _active(environ)
    if active:
        return active
    if find_spec("torch") is None:
        path = _without_our_own(environ.get("PATH", ""))
        for name in ("python", "python3"):
            found = find_program(name, path)
            # Some distributions still call Python 2 `python`.
            if found and not os.path.basename(os.path.realpath(found)).startswith("python2"):
                return os.path.abspath(found), "PATH"
    return sys.executable, "our own interpreter"


def _named(option: str, environ: Mapping[str, str]) -> str:
    if os.path.isdir(option):
        inside = _python_of(option)
        return inside if os.path.lexists(inside) else os.path.abspath(option)
    if os.sep not in option and not os.path.lexists(option):
        found = find_program(option, environ.get("PATH"))
        return os.path.abspath(found) if found else option
    return os.path.abspath(option)


def _without_our_own(path: str) -> str:
    """PATH without the folder of the environment that a tool made for us alone (uvx puts it first)."""
    if not {"pipx", "uv"} & set(sys.prefix.split(os.sep)):
        return path
    ours = os.path.join(sys.prefix, "bin")
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if os.path.normpath(folder) != ours)


def _active(environ: Mapping[str, str]) -> tuple[str, str] | None:
    folders = [os.path.normpath(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]

    def place(python: str) -> int:
        folder = os.path.dirname(python)
        return folders.index(folder) if folder in folders else len(folders)

    names = [name for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    found = [(_python_of(environ[name]), name) for name in names]
    return min(found, key=lambda choice: place(choice[0]), default=None)


def _python_of(folder: str) -> str:
    return os.path.join(os.path.abspath(folder), "bin", "python")
