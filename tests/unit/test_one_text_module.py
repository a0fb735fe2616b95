"""Others' text is cleaned and cut in one module, `ddpdoctor.base.text`; whoever does it elsewhere stands here, with the reason."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT_MODULE = "ddpdoctor/base/text.py"

CLEANERS = {
    "ddpdoctor/base/shell.py": "asks whether a command can be copied as it is, and writes the rest as a shell's escapes",
    "ddpdoctor/checkpoints/formats/zip_directory.py": "asks whether a record's name is text",
    "ddpdoctor/checkpoints/kinds/text_kinds.py": "asks whether a file is text",
    "ddpdoctor/network_check/phases/port_identification.py": "bytes of an unknown server, of which ASCII alone is shown",
    "ddpdoctor/network_check/protocol/bounded_lines.py": "JSON on the wire, where an escape may stand for a control",
}
CUTTERS = {
    "ddpdoctor/logs/analyze/sightings.py": "keeps what is around a sign, wherever it stands in the line",
}
DOTS = ("...", "…")


def modules() -> list[str]:
    """Python files of the product, by their path in the tree."""
    files = [file for room in ("ddpdoctor", "checks") for file in (ROOT / room).rglob("*.py")]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    return sorted({path.replace("ddpdoctor/checks/", "checks/") for path in paths} - {TEXT_MODULE})


def cleans(tree: ast.AST) -> bool:
    """Whether characters are judged one by one: by `isprintable`, their category, or the list of unseen ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("isprintable", "category"):
            return True
        if isinstance(node, ast.ImportFrom) and any(name.name == "UNSEEN" for name in node.names):
            return True
    return False


def cuts(tree: ast.AST) -> bool:
    """Whether dots follow a part of something."""
    return any(is_part(first) and begins_with_dots(second) for first, second in neighbours(tree))


def neighbours(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What stands side by side in a text: the parts of an f-string, and both sides of a plus."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [bare(part) for part in node.values]
            yield from itertools.pairwise(parts)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield bare(node.left), bare(node.right)


def bare(node: ast.AST) -> ast.AST:
    """The sliced text itself, without the f-string's braces and the methods that are called on it."""
    while True:
        if isinstance(node, ast.FormattedValue):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            node = node.func.value
        else:
            return node


def is_part(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)


def begins_with_dots(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lstrip().startswith(DOTS)


def found(judge: object) -> set[str]:
    assert callable(judge)
    return {path for path in modules() if judge(ast.parse((ROOT / path).read_text("utf-8")))}


def test_nobody_else_cleans_text() -> None:
    assert found(cleans) == set(CLEANERS)


def test_nobody_else_cuts_text_with_dots() -> None:
    assert found(cuts) == set(CUTTERS)


@pytest.mark.parametrize(
    "cutter",
    [
        'f"{text[:9]}..."',
        'f"{text[:9].rstrip()}…"',
        'f"{text[: most // 2]} ... {text[-9:]}"',
        'text[:9] + "..."',
        'text[:9].strip() + "…"',
    ],
)
def test_what_a_cutter_looks_like(cutter: str) -> None:
    assert cuts(ast.parse(cutter))


@pytest.mark.parametrize("text", ['f"{name}... "', '"..." + text[:9]', 'f"{text[:9]}, ..."', 'f"{words[0]} ..."'])
def test_what_is_no_cutter(text: str) -> None:
    assert not cuts(ast.parse(text))
