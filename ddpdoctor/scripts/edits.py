"""Carries out the edits of findings in a file's bytes. All that they don't change stays to the byte: comments, line ends, tabs, encoding."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ddpdoctor.base.findings import EditKind, SourceEdit, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.scripts.scope_names import resolve, scopes_around
from ddpdoctor.scripts.source_text import SourceText, UnreadableSource, parse_source

_LINE_END: Final = compile_lazily(r"\r\n|\r|\n")
_COUNTING: Final = ("range", "trange")
_UNSEEN_TOKENS: Final = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


class UneditableError(Exception):
    """An edit that is not made, and why."""


class _Replacement(NamedTuple):
    """Text for what is between two places, each a line from 0 and a column in characters."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


class SourceEditor:
    """A file of source that edits are carried out in, one after the other.

    Args:
        content: of the file.
        name: by which it is shown.

    Raises:
        UneditableError: its bytes could not be kept.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.content = content
        self._name = name
        try:
            self._encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            text = content.decode(self._encoding)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            raise UneditableError("it is no text of its encoding") from error
        if self._encoded(text) != content:
            raise UneditableError(f"its encoding, {self._encoding}, would not give the same bytes again")
        self._lines = _LINE_END.split(text)
        self._ends = [*_LINE_END.findall(text), ""]
        try:
            self._tree = parse_source(SourceText(name, self._lines))
        except UnreadableSource as error:
            raise UneditableError(str(error)) from error

    def edited(self, edits: Iterable[SourceEdit]) -> bytes:
        """The file's bytes with all the edits.

        Raises:
            UneditableError: one of them can't be made.
        """
        replacements = {made for edit in edits for made in self._replacements(edit)}
        _refuse_overlaps(sorted(replacements))
        text = "".join(map(str.__add__, self._lines, self._ends))
        for start, end, new in sorted(replacements, reverse=True):
            own = new.replace("\n", self._ends[start[0]] or self._ends[0] or "\n")
            text = f"{text[: self._offset(start)]}{own}{text[self._offset(end) :]}"
        return self._encoded(text)

    def _offset(self, place: tuple[int, int]) -> int:
        line, column = place
        return sum(map(len, self._lines[:line])) + sum(map(len, self._ends[:line])) + column

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError as error:
            raise UneditableError(f"its encoding, {self._encoding}, has no such character") from error

    def _replacements(self, edit: SourceEdit) -> Iterator[_Replacement]:
        if edit.place.file != self._name:
            raise UneditableError(f"{edit.place} is in another file")
        if edit.kind is EditKind.SET_ARGUMENT:
            yield self._with_argument(self._call_at(edit), edit)
        elif edit.kind is EditKind.REMOVE_ARGUMENT:
            yield self._without_argument(self._call_at(edit), edit.name)
        elif edit.kind is EditKind.IMPORT:
            yield from self._import(edit.name)
        else:
            yield self._first_in_loop(edit)

    # --- arguments ------------------------------------------------------------------------------------------------------------

    def _call_at(self, edit: SourceEdit) -> ast.Call:
        """The call that begins there; of several, as in a().b(), the one of that name, or else the innermost.

        Raises:
            UneditableError: there is none.
        """
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call) and self._is_at(node, edit.place)]
        if not calls:
            raise UneditableError(f"there is no call at {edit.place}")
        named = [call for call in calls if getattr(call.func, "attr", "") == edit.called]
        return min(named or calls, key=lambda call: (call.end_lineno, call.end_col_offset))

    def _is_at(self, node: ast.stmt | ast.expr, place: SourcePlace) -> bool:
        return node.lineno == place.line and self._column(node.lineno, node.col_offset) == place.column - 1

    def _column(self, line: int, offset: int) -> int:
        """An offset in bytes, as Python's parser has it, in characters."""
        return len(self._lines[line - 1].encode()[:offset].decode(errors="replace"))

    def _start(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        return node.lineno - 1, self._column(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        line, offset = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return line - 1, self._column(line, offset)

    def _with_argument(self, call: ast.Call, edit: SourceEdit) -> _Replacement:
        if edit.name.isdecimal():
            given = call.args[: int(edit.name) + 1]
            if len(given) <= int(edit.name) or any(isinstance(argument, ast.Starred) for argument in given):
                raise UneditableError("some of its arguments are unpacked from elsewhere")
            return _Replacement(self._start(given[-1]), self._end(given[-1]), edit.text)
        for keyword in call.keywords:
            if keyword.arg == edit.name:
                return _Replacement(self._start(keyword.value), self._end(keyword.value), edit.text)
        if any(keyword.arg is None for keyword in call.keywords):
            raise UneditableError("some of its arguments are unpacked from elsewhere")
        before = self._tokens(call)[-2]
        named = f"{edit.name}={edit.text}"
        text = named if before.string == "(" else f" {named}" if before.string == "," else f", {named}"
        end = before.end[0], before.end[1]
        return _Replacement(end, end, text)

    def _without_argument(self, call: ast.Call, name: str) -> _Replacement:
        keyword = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if keyword is None:
            raise UneditableError(f"{name} is not given by its name")
        start, end = self._start(keyword), self._end(keyword)
        tokens = self._tokens(call)
        after = next(token for token in tokens if token.start >= end and token.string in (",", ")"))
        before = [token for token in tokens if token.end <= start][-1]
        if before.string == "," and before.end[0] == start[0]:
            return _Replacement(before.start, end, "")
        if after.string != "," or after.end[0] != end[0]:
            return _Replacement(start, end, "")
        rest = self._lines[end[0]][after.end[1] :]
        if not rest.strip() and not self._lines[start[0]][: start[1]].strip():
            return _Replacement((start[0], 0), (end[0] + 1, 0), "")
        return _Replacement(start, (end[0], after.end[1] + len(rest) - len(rest.lstrip(" "))), "")

    def _tokens(self, call: ast.Call) -> list[tokenize.TokenInfo]:
        """Those of a call that mean something; the last is its closing bracket. Their lines count from 0."""
        start, end = self._start(call), self._end(call)
        if not hasattr(self, "_all_tokens"):
            reader = io.StringIO("\n".join(self._lines)).readline
            self._all_tokens = [
                token._replace(start=(token.start[0] - 1, token.start[1]), end=(token.end[0] - 1, token.end[1]))
                for token in tokenize.generate_tokens(reader)
                if token.type not in _UNSEEN_TOKENS
            ]
        return [token for token in self._all_tokens if start <= token.start and token.end <= end]

    # --- statements -----------------------------------------------------------------------------------------------------------

    def _import(self, name: str) -> Iterator[_Replacement]:
        """Yield the import of a module, unless it is imported.

        Raises:
            UneditableError: something else has its name, or there is no place for it.
        """
        imports = [node for node in self._tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if any(
            alias.asname is None and alias.name.partition(".")[0] == name
            for node in imports
            if isinstance(node, ast.Import)
            for alias in node.names
        ):
            return
        imported = (line.partition("import")[2] for line in self._text.splitlines())
        if re.search(rf"\b(?:as|def|class)\s+{name}\b|^[ \t]*{name}[ \t]*=[^=]", self._text, re.MULTILINE) or any(
            re.search(rf"\b{name}\b", names) for names in imported
        ):
            raise UneditableError(f"{name} is the name of something else there")
        first = next((node for node in imports if getattr(node, "module", "") != "__future__"), None)
        if first is None or first.col_offset:
            raise UneditableError(f"there is no line before which to import {name}")
        line = first.lineno - 1
        yield _Replacement((line, 0), (line, 0), f"import {name}\n")

    @property
    def _text(self) -> str:
        return "\n".join(self._lines)

    def _first_in_loop(self, edit: SourceEdit) -> _Replacement:
        loop = next(
            (node for node in ast.walk(self._tree) if isinstance(node, ast.For) and self._is_at(node, edit.place)), None
        )
        if loop is None or not isinstance(loop.target, ast.Name) or not _counts(loop.iter):
            raise UneditableError(f"the loop at {edit.place} doesn't count by itself which turn it is")
        if loop.target.id == edit.name or not self._is_the_same(edit):
            raise UneditableError(f"{edit.name} is not certainly the same at {edit.place}")
        body = loop.body[0]
        line = min([body.lineno, *(node.lineno for node in getattr(body, "decorator_list", ()))]) - 1
        indent = re.match(r"[ \t]*", self._lines[line])
        outer = re.match(r"[ \t]*", self._lines[loop.lineno - 1])
        assert indent
        assert outer
        if len(indent[0]) != self._column(body.lineno, body.col_offset) or not indent[0].startswith(outer[0]):
            raise UneditableError(f"the loop at {edit.place} begins on the line of something else")
        call = edit.text.replace("{turn}", loop.target.id)
        inner = indent[0][len(outer[0]) :]
        text = "".join(f"{indent[0]}{row}\n" for row in call.replace("{indent}", inner).split("\n"))
        return _Replacement((line, 0), (line, 0), text)

    def _is_the_same(self, edit: SourceEdit) -> bool:
        """Whether the name means in the loop what it means where it is used."""
        used = edit.used_at
        if used is None or used.file != self._name:
            return False
        there, here = scopes_around(self._tree, used.line), scopes_around(self._tree, edit.place.line)
        bound, bound_here = resolve(edit.name, there), resolve(edit.name, here)
        if bound is None or bound_here is None or bound.scope is not bound_here.scope:
            return False
        if there[-1] is here[-1] and edit.place.line < used.line:
            return False
        # Beside the use, what was bound before counts; elsewhere nobody knows which is meant.
        return bound.last_line <= used.line if bound.scope is there[-1] else bound.times == 1


def _refuse_overlaps(replacements: Sequence[_Replacement]) -> None:
    """Refuse replacements of which one takes away what another changes.

    Raises:
        UneditableError: there are such.
    """
    for earlier, later in pairwise(replacements):
        if later.start < earlier.end:
            raise UneditableError(f"two changes meet in line {later.start[0] + 1}")


def _counts(iterated: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call)
        and (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) in _COUNTING
        for node in ast.walk(iterated)
    )
