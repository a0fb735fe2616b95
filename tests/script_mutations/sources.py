"""Source files as the mutators read them: text, tree, what names are imported; and changes of the text at places of the tree."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Change(NamedTuple):
    """A change of a file's text, in bytes from its start."""

    file: str
    start: int
    end: int
    text: str


class SourceFile:
    """A file of a project.

    Args:
        path: as seen from the project's folder.
        text: of the file.

    Raises:
        SyntaxError: it can't be parsed.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.content = text.replace("\r\n", "\n").encode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(self.content)
        self._starts = [0]
        for line in self.content.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """All calls, with the full names of what they call."""
        return [(node, self.full_name(node.func)) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def has_star(self) -> bool:
        """Whether names come from a module that doesn't say which."""
        return "*" in self.imports

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Of each node the one that holds it."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """What imported names mean, dotted; those of relative imports begin with a dot."""
        names = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    names[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{module}.{alias.name}"
        return names

    def full_name(self, node: ast.AST) -> str:
        """The dotted name of what is imported, as the library calls it; "?" in front of what isn't."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, f"?{node.id}")
        if isinstance(node, ast.Attribute):
            return f"{self.full_name(node.value)}.{node.attr}"
        return "?"

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what holds a node, from the inside, each with that of its children in which the node is."""
        child = node
        while child in self.parents:
            yield self.parents[child], child
            child = self.parents[child]

    def scope_of(self, node: ast.AST) -> Scope | None:
        """The function in which it stands."""
        return next((holder for holder, _ in self.around(node) if isinstance(holder, Scope)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement in which it stands."""
        if isinstance(node, ast.stmt):
            return node
        return next(holder for holder, _ in self.around(node) if isinstance(holder, ast.stmt))

    def text_of(self, node: ast.AST) -> str:
        """As it is written."""
        return self.content[self.start_of(node) : self.end_of(node)].decode()

    def start_of(self, node: ast.AST) -> int:
        """In bytes from the file's start."""
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end_of(self, node: ast.AST) -> int:
        """In bytes from the file's start."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def line_start(self, line: int) -> int:
        """Of a line, from 1, in bytes from the file's start."""
        return min(self._starts[line - 1], len(self.content))

    def line_text(self, line: int) -> str:
        """A line, from 1."""
        return self.content[self.line_start(line) : self.line_start(line + 1)].decode().rstrip("\n")

    def line_at(self, offset: int) -> int:
        """The line of a byte, from 1."""
        return self.content.count(b"\n", 0, offset) + 1

    # --- changes --------------------------------------------------------------------------------------------------------------

    def replaced(self, node: ast.AST, text: str) -> Change:
        """Another text for a node."""
        return Change(self.path, self.start_of(node), self.end_of(node), text)

    def inserted_before(self, statement: ast.stmt, *lines: str) -> Change:
        """Lines in front of a statement, as deep as it is."""
        start = self.line_start(statement.lineno)
        indent = " " * statement.col_offset
        return Change(self.path, start, start, "".join(f"{indent}{line}\n" for line in lines))

    def inserted_behind(self, statement: ast.stmt, *lines: str) -> Change:
        """Lines behind a statement, as deep as it is."""
        end = self.end_of(statement)
        indent = " " * statement.col_offset
        return Change(self.path, end, end, "".join(f"\n{indent}{line}" for line in lines))

    def without_argument(self, call: ast.Call, keyword: ast.keyword) -> Change:
        """A call without one of its keywords."""
        arguments = sorted((*call.args, *call.keywords), key=self.start_of)
        place = arguments.index(keyword)
        start, end = self.start_of(keyword), self.end_of(keyword)
        if place:
            start = self.content.rindex(b",", self.end_of(arguments[place - 1]), start)
        elif len(arguments) > 1:
            end = self.start_of(arguments[1])
        return Change(self.path, start, end, "")

    def with_argument(self, call: ast.Call, text: str) -> Change:
        """A call with one more keyword."""
        if call.keywords:
            end = self.end_of(max(call.keywords, key=self.end_of))
            return Change(self.path, end, end, f", {text}")
        end = self.end_of(call) - 1
        before = self.content[:end].rstrip()[-1:]
        return Change(self.path, end, end, text if before in b"(," else f", {text}")

    def without_block(self, block: ast.If | ast.With, rest: str = "") -> tuple[Change, ...]:
        """The body of a block in its place.

        Args:
            block: whose first line goes.
            rest: a condition that stays; "" for none.
        """
        first, last = block.body[0], block.body[-1]
        if rest:
            head = self.content[self.start_of(block) : self.start_of(first)]
            colon = self.start_of(block) + head.rindex(b":")
            return (Change(self.path, self.start_of(block), colon, f"if {rest}"),)
        start, behind = self.line_start(block.lineno), self.line_start(first.lineno)
        changes = [Change(self.path, start, behind, "\n" * (first.lineno - block.lineno))]
        depth = first.col_offset - block.col_offset
        for line in range(first.lineno, (last.end_lineno or first.lineno) + 1):
            text = self.line_text(line)
            if text[:depth].isspace() and len(text) > depth:
                at = self.line_start(line)
                changes.append(Change(self.path, at, at + depth, ""))
        return tuple(changes)


def changed_text(file: SourceFile, changes: Iterable[Change]) -> bytes:
    """A file's text after its changes."""
    content = file.content
    for change in sorted((change for change in changes if change.file == file.path), key=lambda change: -change.start):
        content = content[: change.start] + change.text.encode() + content[change.end :]
    return content


def moved_line(file: SourceFile, changes: Iterable[Change], line: int) -> int:
    """Where a line of the file stands after the changes."""
    start = file.line_start(line)
    return line + sum(
        change.text.count("\n") - file.content.count(b"\n", change.start, change.end)
        for change in changes
        if change.file == file.path and change.end <= start
    )


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, of a call that of its function; "" if it is something else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def keyword_of(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword of that name."""
    return next((keyword for keyword in call.keywords if keyword.arg == name), None)


def argument_of(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument by its name or position; None where it isn't given."""
    keyword = keyword_of(call, name)
    if keyword:
        return keyword.value
    return call.args[position] if len(call.args) > position else None


def unpacks(call: ast.Call) -> bool:
    """Whether it is called with *args or **kwargs."""
    return any(isinstance(argument, ast.Starred) for argument in call.args) or not all(k.arg for k in call.keywords)
