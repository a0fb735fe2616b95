"""A mistake to be made in a script, and where it is then to be seen."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.script_mutations.projects import Project
from tests.script_mutations.sources import Change, SourceFile


class SourceRange(NamedTuple):
    """Lines of a file as it is, without the mistake."""

    file: str
    first: int
    last: int


class Seed(NamedTuple):
    """A mistake.

    Args:
        what: is done to the script.
        changes: that make it.
        places: at any of which it may be told.
    """

    what: str
    changes: tuple[Change, ...]
    places: tuple[SourceRange, ...]


class Mutator(NamedTuple):
    """How one mistake is made.

    Args:
        slug: of the rule that is to see it.
        why: it is that mistake, where it is seeded.
        seeds: of a project, each of which makes it once.
        is_told_once: the rule tells it once a script, however often it is made.
    """

    slug: str
    why: str
    seeds: Callable[[Project], Iterator[Seed]]
    is_told_once: bool = False


def at(file: SourceFile, node: ast.AST) -> SourceRange:
    """The lines of a node; of a statement with a body its first."""
    first = node.lineno  # type: ignore[attr-defined]
    has_body = hasattr(node, "body") and isinstance(node, ast.stmt)
    return SourceRange(file.path, first, first if has_body else node.end_lineno)  # type: ignore[attr-defined]
