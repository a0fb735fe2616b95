"""Looking at files that anybody may have made. Unlike pathlib's, `exists`, `isdir` and `isfile` never raise: not where a folder on
the way may not be entered, and not for names that are too long or no names at all, all of which settings may hold."""

from __future__ import annotations

import os
from os.path import exists, isdir, isfile

from ddpdoctor.base.regular_files import NotRegularError, open_regular, read_start

__all__ = ["NotRegularError", "exists", "isdir", "isfile", "names_in", "open_regular", "read_start", "working_folder"]


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Names in a folder, sorted; nothing where it can't be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names are enough)
    except OSError:
        return []


def working_folder() -> str:
    """The folder that we were started in, "" where it is gone or may not be looked at."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""
