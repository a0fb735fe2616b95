"""A module of the project: its source, and what its names are bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.scripts.abstract_value import AbstractValue
from ddpdoctor.scripts.source_text import SourceText


class ProjectModule:
    """A module: its source, and what its names are bound to.

    Args:
        source: its text.
        tree: the same as Python parses it.
        path: of its file.
    """

    def __init__(self, source: SourceText, tree: ast.Module, path: str) -> None:
        self.source = source
        self.tree = tree
        self.path = path
        self.values: dict[str, AbstractValue] = {}
        self.bindings: dict[str, list[ast.stmt]] = {}
        self.calls_on: dict[str, list[ast.Expr]] = {}
        """What the module itself does to what a name is bound to: `parser.add_argument(...)`."""
        self.stars: list[ast.ImportFrom] = []
        self.pending: set[str] = set()
        """Names that are being looked up just now."""
        self.speaks_of_training: bool | None = None
        """Found out when it is asked for."""
        self._bind(tree.body)

    def _bind(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bindings.setdefault(statement.name, []).append(statement)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    self.bindings.setdefault(alias.asname or alias.name.partition(".")[0], []).append(statement)
            elif isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if alias.name == "*":
                        self.stars.append(statement)
                    else:
                        self.bindings.setdefault(alias.asname or alias.name, []).append(statement)
            elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                for name in _names_bound(statement):
                    self.bindings.setdefault(name, []).append(statement)
            elif isinstance(statement, ast.Expr):
                called_on = _name_called_on(statement.value)
                if called_on is not None:
                    self.calls_on.setdefault(called_on, []).append(statement)
            else:
                for field in ("body", "orelse", "finalbody"):
                    self._bind(getattr(statement, field, ()))
                for handler in getattr(statement, "handlers", ()):
                    self._bind(handler.body)

    def fresh(self) -> ProjectModule:
        """The same module, of which nobody has looked up a name."""
        self.values = {}
        self.pending = set()
        return self


def _name_called_on(node: ast.expr) -> str | None:
    """The name whose method is called; None where none is."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.value.id
    return None


def _names_bound(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for node in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(node, ast.Name):
                yield node.id
