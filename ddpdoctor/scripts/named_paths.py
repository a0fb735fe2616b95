"""The files that are meant by what a user names: sources, and all that are in a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.scripts.source_text import not_regular

ENDINGS: Final = (".py", ".ipynb")
_NEVER_LOOKED_INTO: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "build"})
_ENVIRONMENTS_MARK: Final = "pyvenv.cfg"


class NamedFile(NamedTuple):
    """A file that is meant, and why it is not to be read; "" where it is."""

    path: str
    problem: str = ""


def files_in(path: str) -> Iterator[NamedFile]:
    """Yield a file that is named, or those of a folder that may be source, by name.

    Hidden folders, environments and what is installed or built are left out, unless they are named themselves. A folder that can't be looked
    into, and one in which there is nothing, have a problem, as files have.
    """
    if not os.path.isdir(path):  # noqa: PTH112
        yield NamedFile(path, _problem_of_file(path))
        return
    top = os.path.realpath(path)
    closed: list[OSError] = []
    is_empty = True
    for folder, folders, names in os.walk(path, onerror=closed.append):
        folders[:] = sorted(name for name in folders if _is_looked_into(folder, name))
        for name in sorted(names):
            if name.endswith(ENDINGS):
                is_empty = False
                file = os.path.normpath(os.path.join(folder, name))  # noqa: PTH118
                yield NamedFile(file, _problem_of_link(file, top))
    for error in closed:
        yield NamedFile(os.fspath(error.filename), f"not looked into: {error.strerror}")
    if is_empty and not closed:
        yield NamedFile(
            path,
            "nothing was read in it: it has no .py or .ipynb file outside of hidden folders, environments and `build`",
        )


def _problem_of_file(path: str) -> str:
    """Say why no file can be read there; "" where there is a regular one. A pipe has no other path than that by which it is named."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except FileNotFoundError:
        if os.path.islink(path):  # noqa: PTH114
            return f"not read: it is a link to {os.readlink(path)}, which is not there"  # noqa: PTH115
        if any(character in path for character in "*?["):
            return "not read: no file is called so; a shell leaves a pattern as it is where no file matches it"
        return "not read: there is no such file or folder"
    except (OSError, ValueError) as error:
        return f"not read: {(isinstance(error, OSError) and error.strerror) or error}"
    return "" if stat.S_ISREG(mode) else not_regular(mode)


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
