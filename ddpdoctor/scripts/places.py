"""Where a finding lies in a repository, for those who show it beside the source: GitHub, and readers of SARIF."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.findings import SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.scripts.source_text import STDIN_NAME

_CELL: Final = compile_lazily(r"^(.*\.ipynb):cell (\d+)$", re.DOTALL)


class RepositoryPlace(NamedTuple):
    """A place as seen from the root of the repository.

    Args:
        path: of the file; absolute where it lies outside.
        line: from 1; of a notebook 0: its lines are not those that a reader sees.
        column: from 1.
        cell: of a notebook, "cell 3, line 5"; else "".
    """

    path: str
    line: int
    column: int
    cell: str = ""


def is_in_notebook(file: str) -> bool:
    """Whether a place's file is a cell of a notebook."""
    return _CELL.match(file) is not None


def repository_root(folder: str) -> str:
    """The nearest folder above, or that folder itself, that is the root of a git repository; the folder where none is."""
    start = Path(folder).absolute()
    return str(next((above for above in (start, *start.parents) if (above / ".git").exists()), start))


def place_in_repository(place: SourcePlace, root: str) -> RepositoryPlace:
    """See a place from the root of a repository.

    Args:
        place: its file is relative to the working folder, or absolute.
        root: absolute.
    """
    cell = _CELL.match(place.file)
    file = cell[1] if cell else place.file
    path = file if file == STDIN_NAME else _path_from(os.path.abspath(file), root)  # noqa: PTH100 (links stay)
    if cell:
        return RepositoryPlace(path, 0, 0, f"cell {cell[2]}, line {place.line}")
    return RepositoryPlace(path, place.line, place.column)


def _path_from(path: str, root: str) -> str:
    return os.path.relpath(path, root) if Path(path).is_relative_to(root) else path
