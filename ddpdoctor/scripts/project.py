"""The files of one project: which of them an import means, each parsed once as long as it is needed. Never an installed package."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.source_text import UnreadableSource, decode_source, parse_source, read_source
from ddpdoctor.scripts.vocabulary import known_packages

MARKS: Final = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
"""Files and folders that stand at the top of a project."""
MARKS_OF_COPY: Final = ("LICENSE", "requirements.txt")
"""Files that stand there in a copy, too, which came to the cluster without its history."""
BELOW_TOP: Final = ("src", "lib")
"""Folders there in which packages lie that a script puts on its path."""
INSTALLED: Final = ("site-packages", "dist-packages")
MAX_KEPT_LINES: Final = 20_000
"""Of modules that several scripts may import: they are kept with their trees, of which a line takes 2 KiB."""
MAX_FOLDERS_UP: Final = 8


class ModuleCache:
    """Parsed modules by path, the last ones that were needed.

    Args:
        contents: by real path, of files to be read as if that were in them.
    """

    def __init__(self, contents: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._contents = contents
        self._modules: OrderedDict[str, ProjectModule | UnreadableSource] = OrderedDict()
        self._lines = 0
        self._names: dict[str, frozenset[str]] = {}
        self._roots: dict[str, tuple[tuple[str, ...], str]] = {}
        self._located: dict[str, tuple[str, str] | None] = {}

    def names_in(self, folder: str) -> frozenset[str]:
        """Names in a folder; none where it can't be read."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder))  # noqa: PTH208
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]

    def locate(self, base: str, *, is_folder: bool) -> tuple[str, str] | None:
        """The file of a module, as it is named and where it really lies.

        Args:
            base: its path without the ending, or its folder.
            is_folder: it can be nothing but a folder.
        """
        if base not in self._located:
            endings = (f"{os.sep}__init__.py",) if is_folder else (".py", f"{os.sep}__init__.py")
            paths = (os.path.normpath(f"{base}{ending}") for ending in endings)
            path = next(filter(os.path.isfile, paths), None)
            self._located[base] = (path, os.path.realpath(path)) if path else None
        return self._located[base]

    def roots_of(self, folder: str) -> tuple[tuple[str, ...], str]:
        """Folders in which imports of a script in that folder are looked for, nearest first, and the one that is never left."""
        if folder not in self._roots:
            self._roots[folder] = _roots_of(folder)
        return self._roots[folder]

    def clear(self) -> None:
        """Forget the modules; their trees are freed."""
        self._modules.clear()
        self._lines = 0

    def load(self, path: str, name: str) -> ProjectModule:
        """Read and parse a file, unless it is known.

        Args:
            path: of the file.
            name: by which it is shown.

        Raises:
            UnreadableSource: it can't be read.
        """
        module = self._modules.get(path)
        if module is None:
            try:
                source = decode_source(self._contents[path] if path in self._contents else read_source(path), name)
                module = ProjectModule(source, parse_source(source), path)
            except UnreadableSource as error:
                module = error
            self._modules[path] = module
            self._lines += _lines_of(module)
            while self._lines > MAX_KEPT_LINES and len(self._modules) > 1:
                self._lines -= _lines_of(self._modules.popitem(last=False)[1])
        else:
            self._modules.move_to_end(path)
        if isinstance(module, UnreadableSource):
            raise module
        return module


def _lines_of(module: ProjectModule | UnreadableSource) -> int:
    return len(module.source.lines) if isinstance(module, ProjectModule) else 1


class Project:
    """The files beside a script that it may import.

    Args:
        script: the script's path; "" where it has none.
        cache: of modules that were parsed for other scripts.
    """

    def __init__(self, script: str, cache: ModuleCache) -> None:
        self._cache = cache
        self._loaded: dict[str, ProjectModule | None] = {}
        self.problems: list[tuple[str, str]] = []
        self._folder = os.path.dirname(script) or "." if script else ""  # noqa: PTH120
        self._roots, self._boundary = cache.roots_of(self._folder) if script else ((), "")

    @property
    def modules(self) -> list[ProjectModule]:
        """Those that were read."""
        return [module for module in self._loaded.values() if module]

    def forget(self) -> None:
        """Forget what names are bound to: functions know their module, and so nothing of it would ever be freed."""
        for module in self.modules:
            module.values.clear()

    def adopt(self, module: ProjectModule) -> None:
        """Take the script itself for one of its modules."""
        self._loaded[os.path.realpath(module.path)] = module

    def find(self, name: str, level: int, importer: ProjectModule) -> ProjectModule | None:
        """The module that an import means, if it is the project's.

        Args:
            name: dotted, "" for `from . import x`.
            level: how many dots stand before it.
            importer: the module that imports it.
        """
        parts = name.split(".") if name else []
        if level:
            # As Python does: a link's folder is where it stands.
            folder = os.path.dirname(importer.source.name) or "."  # noqa: PTH120
            return self._in(os.path.normpath(os.path.join(folder, *[".."] * (level - 1))), parts)  # noqa: PTH118
        for root in self._roots:
            names = self._cache.names_in(root)
            if parts and (parts[0] in names or f"{parts[0]}.py" in names):
                module = self._in(root, parts)
                if module is not None:
                    return module
        return None

    def may_have(self, name: str) -> bool:
        """Whether a module of that dotted name may be the project's, by its first part."""
        first = name.partition(".")[0]
        if first in known_packages():
            return False
        for root in self._roots:
            names = self._cache.names_in(root)
            if f"{first}.py" in names or (first in names and os.path.isdir(os.path.join(root, first))):  # noqa: PTH112, PTH118
                return True
        return False

    def _in(self, root: str, parts: list[str]) -> ProjectModule | None:
        found = self._cache.locate(os.path.join(root, *parts), is_folder=not parts)  # noqa: PTH118
        if found is None:
            return None
        path, real = found
        if real in self._loaded:
            return self._loaded[real]
        return self._load(real, path) if self._is_inside(real) else None

    def _is_inside(self, real: str) -> bool:
        if not real.startswith(f"{self._boundary.rstrip(os.sep)}{os.sep}"):
            return False
        return not any(part in INSTALLED for part in Path(real[len(self._boundary) :]).parts)

    def _load(self, real: str, name: str) -> ProjectModule | None:
        try:
            self._loaded[real] = self._cache.load(real, name).fresh()
        except UnreadableSource as error:
            self._loaded[real] = None
            self.problems.append((name, str(error)))
        return self._loaded[real]


def _roots_of(folder: str) -> tuple[tuple[str, ...], str]:
    roots = [folder]
    package = folder
    while os.path.exists(os.path.join(package, "__init__.py")) and len(roots) < MAX_FOLDERS_UP:  # noqa: PTH110, PTH118
        package = os.path.normpath(os.path.join(package, ".."))  # noqa: PTH118
        roots.append(package)
    top = _top_above(folder, MARKS) or _top_above(package, MARKS_OF_COPY)
    real = os.path.realpath(package)
    if Path(real).name in INSTALLED:
        # What is installed is looked at where somebody names it, and no other package beside it.
        top = ""
        boundary = os.path.realpath(roots[-2]) if len(roots) > 1 else os.path.realpath(folder)
    else:
        boundary = os.path.realpath(top or package)
    place = folder
    while top and os.path.realpath(place) != os.path.realpath(top) and len(roots) < 2 * MAX_FOLDERS_UP:
        place = os.path.normpath(os.path.join(place, ".."))  # noqa: PTH118
        roots.append(place)
    if top:
        roots += [os.path.normpath(os.path.join(top, below)) for below in BELOW_TOP]  # noqa: PTH118
    return tuple(dict.fromkeys(roots)), boundary


def _top_above(folder: str, marks: tuple[str, ...]) -> str:
    """The nearest folder, upwards from one, in which one of the marks stands; "" if there is none."""
    top = folder
    for _ in range(MAX_FOLDERS_UP):
        if any(os.path.exists(os.path.join(top, mark)) for mark in marks):  # noqa: PTH110, PTH118
            return top
        above = os.path.normpath(os.path.join(top, ".."))  # noqa: PTH118
        if Path(above).samefile(top):
            return ""
        top = above
    return ""
