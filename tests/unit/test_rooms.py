"""The order of the rooms: each imports only from those below it, and no two modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.command import ROOT

pytestmark = pytest.mark.quick

ROOMS = [
    "base",
    "facts",
    "engine",
    "knowledge",
    "report",
    "probes",
    "checkpoints",
    "logs",
    "processes",
    "hang",
    "network_check",
    "smoke_training",
    "checks",
    "fixes",
    "run",
    "api",
    "cli",
]
"""From the ground up."""

AT_THE_TOP = ("", "__main__")
"""Modules of no room: the package itself, which holds the version, and `python -m ddpdoctor`."""


def modules() -> dict[str, Path]:
    """Each module's name without "ddpdoctor.", and its file. What runs in the target Python is data here."""
    found = {}
    for folder, prefix in ((ROOT / "ddpdoctor", ()), (ROOT / "checks", ("checks",))):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if not (prefix == () and parts[0] == "checks") and "trainer" not in parts:
                found[".".join((*prefix, *parts)).removesuffix("__init__").rstrip(".")] = path
    return found


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ddpdoctor that a file imports, wherever in it, and be it for its types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                full
                if (full := f"{node.module}.{alias.name}").removeprefix("ddpdoctor.") in known
                else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        yield from (name.removeprefix("ddpdoctor").lstrip(".") for name in names if name.split(".")[0] == "ddpdoctor")


KNOWN = modules()
IMPORTS = {name: sorted(set(imported(path, KNOWN)) - {name}) for name, path in KNOWN.items()}


def room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def test_every_module_lies_in_a_room() -> None:
    assert {room(name) for name in KNOWN} - set(AT_THE_TOP) <= set(ROOMS)


def test_every_room_says_what_lives_there() -> None:
    packages = [path for path in KNOWN.values() if path.name == "__init__.py"]
    assert [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_imports_go_down_only() -> None:
    upwards = {
        (name, target)
        for name, targets in IMPORTS.items()
        if name not in AT_THE_TOP
        for target in targets
        if target not in AT_THE_TOP and ROOMS.index(room(target)) > ROOMS.index(room(name))
    }
    assert upwards == set()


def test_no_modules_import_each_other() -> None:
    graph = {name: [target for target in targets if target in KNOWN] for name, targets in IMPORTS.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for name, path in KNOWN.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
