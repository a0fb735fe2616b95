"""Which function binds a name, as Python's rules of scopes have it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


class Binding(NamedTuple):
    """Where a name is bound.

    Args:
        scope: the function, or the module.
        times: it is bound there.
        last_line: on which it is.
    """

    scope: Scope
    times: int
    last_line: int


def scopes_around(tree: ast.Module, line: int) -> list[Scope]:
    """The module and the functions in whose bodies a line stands, the outermost first."""
    scopes: list[Scope] = [tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            scopes.append(node)
    return sorted(scopes, key=lambda scope: getattr(scope, "lineno", 0))


def resolve(name: str, scopes: Sequence[Scope]) -> Binding | None:
    """Find the innermost scope that binds a name; None where none does, or where global and nonlocal let others bind it.

    Args:
        name: that is looked up.
        scopes: around the place, the outermost first.
    """
    if any(isinstance(node, ast.Global | ast.Nonlocal) and name in node.names for node in ast.walk(scopes[0])):
        return None
    for scope in reversed(scopes):
        lines = [line for bound, line in _bound_in(scope) if bound == name]
        if lines:
            return Binding(scope, len(lines), max(lines))
    return None


def _bound_in(scope: Scope) -> Iterator[tuple[str, int]]:
    if not isinstance(scope, ast.Module):
        arguments = scope.args
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if argument is not None:
                yield argument.arg, argument.lineno
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)
