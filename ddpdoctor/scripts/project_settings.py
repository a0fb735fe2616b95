"""The table [tool.ddpdoctor.lint] of a script's own pyproject.toml."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from ddpdoctor.engine.registry import Check
from ddpdoctor.scripts.source_text import UnreadableSource, read_source

_NAME: Final = "pyproject.toml"
_MAX_FOLDERS_UP: Final = 16


class ProjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a project.

    Args:
        select: only these checks.
        ignore: not these checks.
        exclude: patterns of files, seen from the project's folder, that are not looked at unless they are named.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def choose(self, checks: Iterable[Check]) -> tuple[Check, ...]:
        """The checks that `select` and `ignore` leave, by their slugs and families."""
        return tuple(
            check
            for check in checks
            if (not self.select or {check.slug, check.family} & set(self.select))
            and not {check.slug, check.family} & set(self.ignore)
        )


class FoundSettings(msgspec.Struct, frozen=True):
    """Settings and where they stand. problem: why they don't count; "" where they do."""

    settings: ProjectSettings = ProjectSettings()
    file: str = ""
    problem: str = ""

    def excludes(self, path: str) -> bool:
        """Whether a file is not to be looked at."""
        if not self.settings.exclude:
            return False
        inner = PurePath(os.path.relpath(path, os.path.dirname(self.file) or "."))  # noqa: PTH120
        return any(
            inner.match(pattern) or any(parent.match(pattern) for parent in inner.parents)
            for pattern in self.settings.exclude
        )


class SettingsOfProjects:
    """Finds the settings of files, each folder's once."""

    def __init__(self) -> None:
        self._by_folder: dict[str, FoundSettings] = {}

    def of(self, path: str) -> FoundSettings:
        """The settings for a file: of the nearest pyproject.toml above it."""
        folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
        if folder not in self._by_folder:
            self._by_folder[folder] = _find(folder)
        return self._by_folder[folder]


def _find(folder: str) -> FoundSettings:
    for above in (Path(folder), *list(Path(folder).parents)[:_MAX_FOLDERS_UP]):
        file = above / _NAME
        if file.is_file():
            return _read(str(file))
    return FoundSettings()


def _read(file: str) -> FoundSettings:
    try:
        text = read_source(file).decode()
        if "ddpdoctor" not in text:
            return FoundSettings(file=file)
        tomllib: Any = importlib.import_module("tomllib")
        table = tomllib.loads(text).get("tool", {}).get("ddpdoctor", {}).get("lint", {})
        return FoundSettings(msgspec.convert(table, ProjectSettings), file)
    except ImportError:
        return FoundSettings(file=file, problem=f"{file}: its settings are read by Python 3.11 and later")
    except (UnreadableSource, ValueError, AttributeError) as error:
        return FoundSettings(file=file, problem=f"{file}: its settings for lint don't count: {error}")
