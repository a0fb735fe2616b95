"""The order of the rooms: each imports only from those below it, and no two modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
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
    "scripts",
    "processes",
    "hang",
    "watching",
    "network_check",
    "smoke_training",
    "job_preflight",
    "checks",
    "fleet_sweep",
    "fixes",
    "run",
    "gating",
    "api",
    "cli",
]
"""From the ground up."""

PUBLIC_AS_A_WHOLE = ("base", "facts", "knowledge", "api", "cli")
"""Rooms that are there for others, or for nobody."""

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


@cache
def imports() -> dict[str, list[str]]:
    """What each module imports of the others."""
    return {name: sorted(set(imported(path, KNOWN)) - {name}) for name, path in KNOWN.items()}


def room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def listed(path: Path) -> set[str] | None:
    """What stands in `__all__`; None where there is none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    return None


LISTED = {
    name: names
    for name, path in KNOWN.items()
    if path.name == "__init__.py" and room(name) not in PUBLIC_AS_A_WHOLE and (names := listed(path)) is not None
}


def test_every_module_lies_in_a_room() -> None:
    assert {room(name) for name in KNOWN} - set(AT_THE_TOP) <= set(ROOMS)


def test_every_room_says_what_lives_there() -> None:
    packages = [path for path in KNOWN.values() if path.name == "__init__.py"]
    assert [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_imports_go_down_only() -> None:
    upwards = {
        (name, target)
        for name, targets in imports().items()
        if name not in AT_THE_TOP
        for target in targets
        if target not in AT_THE_TOP and ROOMS.index(room(target)) > ROOMS.index(room(name))
    }
    assert upwards == set()


SPEAKING_STEP_BY_STEP = {
    "check_fix": {"fixes", "engine", "checkpoints"},
    "fix_checkpoint": {"checkpoints"},
    "checkpoint_results": {"checkpoints"},
    "run": {"run"},
    "gate": {"gating"},
    "watch": {"watching"},
}
"""Modules of the command line that tell, and ask, while something is done, and so know its parts."""


def test_the_command_line_calls_the_api() -> None:
    below = {
        (module, target)
        for module, targets in imports().items()
        if room(module) == "cli"
        for target in targets
        if target not in AT_THE_TOP
        and room(target)
        not in {"cli", "api", "report", "base", *SPEAKING_STEP_BY_STEP.get(module.partition(".")[2], ())}
    }
    assert below == set()


def test_other_rooms_import_what_a_room_lists() -> None:
    """`__all__` of a package names the modules that other rooms may import, and no others."""
    imported_from_outside: dict[str, set[str]] = {package: set() for package in LISTED}
    for name, targets in imports().items():
        for target in targets:
            parts = target.split(".")
            if room(name) != room(target):
                for depth in range(1, len(parts)):
                    imported_from_outside.setdefault(".".join(parts[:depth]), set()).add(parts[depth])
    of_rooms = {name: names for name, names in imported_from_outside.items() if room(name) not in PUBLIC_AS_A_WHOLE}
    assert of_rooms == LISTED


def test_no_modules_import_each_other() -> None:
    graph = {name: [target for target in targets if target in KNOWN] for name, targets in imports().items()}
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


def test_tests_import_no_private_names() -> None:
    private = {
        f"{path.relative_to(ROOT)}: {alias.name}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddpdoctor")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    }
    assert private == set()
