"""A training script with the files of its project that it imports, as the mutators read them: by names alone, and with nothing of lint."""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.script_mutations.rank_guards import may_keep_ranks_away
from tests.script_mutations.sources import Scope, SourceFile, last_name

_MOST_FILES: Final = 150
_DISTRIBUTED: Final = (
    "torch.distributed.init_process_group",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_DOES_ALL: Final = (
    "lightning", "pytorch_lightning", "lightning_fabric", "mmengine", "mmcv", "detectron2", "composer", "fairseq", "megatron",
    "ray", "speechbrain", "catalyst", "fastai", "colossalai", "nemo", "ignite", "trl", "transformers.Trainer",
    "transformers.Seq2SeqTrainer", "horovod", "torchtitan", "nanotron", "jax", "tensorflow",
)  # fmt: skip
"""Frameworks that do the most of what could be forgotten."""
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)

Function = tuple[SourceFile, Scope]


class Project:
    """A script and what it imports of its project.

    Args:
        folder: of the project.
        entry: the script in it.

    Raises:
        SyntaxError: the script can't be parsed.
    """

    def __init__(self, folder: Path, entry: str) -> None:
        self.folder = folder
        self.entry = entry
        self.files: dict[str, SourceFile] = {}
        self._for_all: dict[Scope, bool] = {}
        self._in_loop: dict[Scope, bool] = {}
        waiting = deque([entry])
        while waiting and len(self.files) < _MOST_FILES:
            path = waiting.popleft()
            if path in self.files:
                continue
            try:
                self.files[path] = SourceFile(path, (folder / path).read_text(encoding="utf-8"))
            except (SyntaxError, ValueError, RecursionError):
                if path == entry:
                    raise SyntaxError(path) from None
                continue
            waiting.extend(self._imported_by(self.files[path]))

    # --- imports ------------------------------------------------------------------------------------------------------------

    def _imported_by(self, file: SourceFile) -> Iterator[str]:
        for node in file.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._found(alias.name.split("."), self._roots())
            elif isinstance(node, ast.ImportFrom):
                parts = node.module.split(".") if node.module else []
                above = Path(file.path).parent.joinpath(*[".."] * (node.level - 1))
                roots = [os.path.normpath(above)] if node.level else self._roots()
                yield from self._found(parts, roots)
                for alias in node.names:
                    yield from self._found([*parts, alias.name], roots)

    def _roots(self) -> list[str]:
        parts = Path(self.entry).parent.parts
        return [*(str(Path(*parts[:count])) if count else "" for count in range(len(parts), -1, -1)), "src"]

    def _found(self, parts: list[str], roots: list[str]) -> Iterator[str]:
        for root in roots:
            base = Path(root, *parts)
            for path in (base.with_name(f"{base.name}.py") if parts else base, base / "__init__.py"):
                if not str(path).startswith("..") and (self.folder / path).is_file():
                    yield path.as_posix()
                    return

    def uses(self, *names: str) -> bool:
        """Whether one of its files imports one of these packages, or of their names."""
        return any(
            meant == name or meant.startswith(f"{name}.")
            for file in self.files.values()
            for meant in file.imports.values()
            for name in names
        )

    @cached_property
    def is_distributed(self) -> bool:
        """Whether it forms a group, or wraps a model, by torch's own means."""
        return next(self.calls(*_DISTRIBUTED), None) is not None

    @cached_property
    def is_left_to_framework(self) -> bool:
        """Whether a framework does the most of what could be forgotten."""
        return self.uses(*_DOES_ALL)

    @cached_property
    def text(self) -> str:
        """Of all files."""
        return "\n".join(file.content.decode() for file in self.files.values())

    # --- what the script comes to --------------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """All functions by name."""
        functions: dict[str, list[Function]] = {}
        for file in self.files.values():
            for node in file.nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions.setdefault(node.name, []).append((file, node))
        return functions

    @cached_property
    def _reached(self) -> dict[Scope, list[tuple[SourceFile, ast.AST]]]:
        """The functions that the script comes to, with the places that name them."""
        reached: dict[Scope, list[tuple[SourceFile, ast.AST]]] = {}
        named: set[str] = set()
        waiting: list[tuple[SourceFile, ast.AST]] = [(file, file.tree) for file in self.files.values()]
        while waiting:
            file, top = waiting.pop()
            for node in self._own_nodes(file, top):
                name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
                for other, function in self.functions.get(name, ()):
                    if not self._may_mean(file, node, other, function):
                        continue
                    if function not in reached:
                        waiting.append((other, function))
                    reached.setdefault(function, []).append((file, node))
                if name and name not in named:
                    named.add(name)
                    waiting += self._special_methods(name, reached)
        return reached

    def _own_nodes(self, file: SourceFile, top: ast.AST) -> Iterator[ast.AST]:
        """Yield what is run when `top` is: not the functions in it."""
        waiting: list[ast.AST] = list(ast.iter_child_nodes(top))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.If) and self._is_not_run(file, node):
                continue
            yield node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting += node.decorator_list
            else:
                waiting += ast.iter_child_nodes(node)

    def _is_not_run(self, file: SourceFile, block: ast.If) -> bool:
        """Whether it is what a module does that is a script itself."""
        return file.path != self.entry and _asks_whether_script(block)

    def _special_methods(self, name: str, reached: dict[Scope, list[tuple[SourceFile, ast.AST]]]) -> Iterator[Function]:
        """Yield the methods that Python or torch call by themselves, of a class that is named."""
        for file in self.files.values():
            for kind in file.tree.body:
                if isinstance(kind, ast.ClassDef) and kind.name == name:
                    for method in kind.body:
                        if isinstance(method, ast.FunctionDef) and (
                            method.name.startswith("__") or method.name == "forward"
                        ):
                            reached.setdefault(method, [])
                            yield file, method

    def _may_mean(self, file: SourceFile, node: ast.AST, other: SourceFile, function: Scope) -> bool:
        """Whether a name in a file may mean that function."""
        is_method = isinstance(other.parents.get(function), ast.ClassDef)
        if isinstance(node, ast.Attribute):
            meant = file.full_name(node.value)
            is_of_project = meant.startswith((".", "?")) or self._is_of_project(meant)
            return is_of_project if is_method else is_of_project and not meant.startswith("?")
        if is_method or not isinstance(node, ast.Name):
            return False
        if file is other:
            return True
        meant = file.imports.get(node.id, "")
        return meant.rpartition(".")[2] == getattr(function, "name", "") or (not meant and file.has_star)

    def _is_of_project(self, name: str) -> bool:
        return name.partition(".")[0] in self._own_names

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(part for path in self.files for part in Path(path).with_suffix("").parts)

    def is_reached(self, file: SourceFile, node: ast.AST) -> bool:
        """Whether the script comes there, as far as names tell."""
        scope = file.scope_of(node)
        while isinstance(scope, ast.Lambda):
            scope = file.scope_of(scope)
        if scope is None:
            return not any(
                isinstance(holder, ast.If) and self._is_not_run(file, holder) for holder, _ in file.around(node)
            )
        return scope in self._reached

    def sites(self, function: Scope) -> list[tuple[SourceFile, ast.AST]]:
        """Places that name a function."""
        return self._reached.get(function, [])

    def calls(self, *names: str) -> Iterator[tuple[SourceFile, ast.Call]]:
        """Yield the calls of these functions of libraries to which the script comes.

        Args:
            names: in full, or ".method" of any object.
        """
        for file in self.files.values():
            for node, name in file.calls:
                is_method = isinstance(node.func, ast.Attribute) and f".{node.func.attr}" in names
                if (is_method or name in names) and self.is_reached(file, node):
                    yield file, node

    # --- conditions and loops ------------------------------------------------------------------------------------------------------

    def is_for_all(self, file: SourceFile, node: ast.AST, besides: ast.AST | None = None) -> bool:
        """Whether all ranks come there on one way at least, as far as words tell.

        Args:
            file: in which the node stands.
            node: that is asked for.
            besides: a condition that is not counted.
        """
        if any(test is not besides and may_keep_ranks_away(test, holds=holds) for test, holds in _tests_of(file, node)):
            return False
        function = _named_scope(file, node)
        if function is not None and function not in self._for_all:
            self._for_all[function] = False  # It calls itself.
            self._for_all[function] = any(self.is_for_all(*site) for site in self.sites(function))
        return function is None or self._for_all[function]

    def is_in_loop(self, file: SourceFile, node: ast.AST) -> bool:
        """Whether it is run again and again."""
        for holder, _ in file.around(node):
            if isinstance(holder, ast.For | ast.While):
                return True
            if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef):
                break
        function = _named_scope(file, node)
        if function is not None and function not in self._in_loop:
            self._in_loop[function] = False
            self._in_loop[function] = any(self.is_in_loop(*site) for site in self.sites(function))
        return function is not None and self._in_loop[function]

    @cached_property
    def assignments(self) -> list[tuple[SourceFile, ast.Assign, ast.expr]]:
        """All assignments to which the script comes, with what is assigned."""
        return [
            (file, node, node.value)
            for file in self.files.values()
            for node in file.nodes
            if isinstance(node, ast.Assign) and self.is_reached(file, node)
        ]

    def assigned(self, name: str) -> Iterator[tuple[SourceFile, ast.Assign, ast.expr]]:
        """Yield the assignments to a name or an attribute of that name, which the script comes to, with what is assigned."""
        for file, node, value in self.assignments:
            if any(last_name(target) == name for target in node.targets):
                yield file, node, value


def _named_scope(file: SourceFile, node: ast.AST) -> Scope | None:
    scope = file.scope_of(node)
    while isinstance(scope, ast.Lambda):
        scope = file.scope_of(scope)
    return scope


def _tests_of(file: SourceFile, node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the conditions on which a node depends, within its function, and whether they must hold."""
    for holder, child in file.around(node):
        if isinstance(holder, ast.If) and _asks_whether_script(holder):
            continue
        if isinstance(holder, ast.If | ast.IfExp | ast.While) and child is not holder.test:
            yield holder.test, child is holder.body if isinstance(holder, ast.IfExp) else child in holder.body
        elif isinstance(holder, ast.BoolOp):
            for earlier in holder.values[: holder.values.index(child)]:  # type: ignore[arg-type]
                yield earlier, isinstance(holder.op, ast.And)
        elif isinstance(holder, ast.With):
            yield from ((item.context_expr, False) for item in holder.items)
        elif isinstance(holder, ast.Try) and child in holder.handlers:
            yield ast.Name("main"), False  # Who knows which ranks it happens to.
        for field in ("body", "orelse", "finalbody"):
            block = getattr(holder, field, None)
            if isinstance(block, list) and child in block:
                for statement in block[: block.index(child)]:
                    if isinstance(statement, ast.If) and _leaves(statement.body):
                        yield statement.test, False
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((decorator, False) for decorator in holder.decorator_list)
            return


def _asks_whether_script(block: ast.If) -> bool:
    return isinstance(block.test, ast.Compare) and last_name(block.test.left) == "__name__"


def _leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    is_exit = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and "exit" in last_name(last.value)
    return isinstance(last, _LEAVES) or is_exit
