"""The files that are meant by what a user names: sources, and all that are in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ENDINGS: Final = (".py", ".ipynb")
_NEVER_LOOKED_INTO: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "build"})
_ENVIRONMENTS_MARK: Final = "pyvenv.cfg"


class NamedFile(NamedTuple):
    """A file that is meant, and why it is not to be read; "" where it is."""

    path: str
    problem: str = ""


def files_in(path: str) -> Iterator[NamedFile]:
    """Yield a file that is named, or those of a folder that may be source, by name.

    Hidden folders, environments and what is installed or built are left out, unless they are named themselves.
    """
    if not os.path.isdir(path):  # noqa: PTH112
        yield NamedFile(path)
        return
    top = os.path.realpath(path)
    for folder, folders, names in os.walk(path, onerror=None):
        folders[:] = sorted(name for name in folders if _is_looked_into(folder, name))
        for name in sorted(names):
            if name.endswith(ENDINGS):
                file = os.path.join(folder, name)  # noqa: PTH118
                yield NamedFile(file, _problem_of_link(file, top))


def _is_looked_into(folder: str, name: str) -> bool:
    return (
        not name.startswith(".")
        and name not in _NEVER_LOOKED_INTO
        and not os.path.exists(os.path.join(folder, name, _ENVIRONMENTS_MARK))  # noqa: PTH110, PTH118
    )


def _problem_of_link(file: str, top: str) -> str:
    if not Path(file).is_symlink() or Path(os.path.realpath(file)).is_relative_to(top):
        return ""
    return "not read: it is a link that leads out of the folder"
