"""The code of a fix, in the script's own words: its statements whole, its names as it knows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Fix, SourceEdit, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.script_facts import may_start_ranks, parse_expression
from ddpdoctor.facts.script import LibraryCall, Script, Statement

_INDENT: Final = "    "
_ASSIGNED: Final = compile_lazily(r"(\w+) = ")


class FixCode:
    """Writes code for a place of a script.

    Args:
        script: for which it is written.
        place: at which it is to stand.
    """

    def __init__(self, script: Script, place: SourcePlace) -> None:
        file = place.file
        self._script = script
        self._known = {
            imported.stands_for: imported.name
            for imported in script.imported_names
            if file == imported.file or file.startswith(f"{imported.file}:")
        }
        self._imports: dict[str, None] = {}

    def name(self, *full_names: str) -> str:
        """What the file calls something of a library; where it doesn't know it, the code imports it.

        Args:
            full_names: of the same thing, "torch.distributed.barrier"; the first is that by which it is imported.
        """
        for full in full_names:
            parts = full.split(".")
            for length in range(len(parts), 0, -1):
                known = self._known.get(".".join(parts[:length]))
                if known:
                    return ".".join((known, *parts[length:]))
        module, _, _ = full_names[0].rpartition(".")
        self._imports[f"import {module}"] = None
        return full_names[0]

    @property
    def rank(self) -> str:
        """The expression for the rank."""
        return f"{self.name('torch.distributed.get_rank')}()"

    @property
    def local_rank(self) -> str:
        """The expression for the rank within the node."""
        if may_start_ranks(self._script):
            return f"{self.rank} % {self.name('torch.cuda.device_count')}()"
        return f'int({self.name("os.environ")}["LOCAL_RANK"])'

    def lines(self, *lines: str) -> tuple[str, ...]:
        """The lines, behind the imports that their names need."""
        return (*self._imports, *lines)

    def lines_if(self, lines: Sequence[str]) -> tuple[str, ...]:
        """The same; none where there are no lines."""
        return self.lines(*lines) if lines else ()

    def block(self, head: str, lines: Sequence[str]) -> tuple[str, ...]:
        """The lines under a head; none where there are no lines."""
        return self.lines(head, *(f"{_INDENT}{line}" for line in lines)) if lines else ()


def statement_of(call: LibraryCall, *edits: SourceEdit) -> tuple[str, ...]:
    """The lines of the statement in which a call stands, without their indentation; none where it can't be shown whole.

    Args:
        call: in it.
        edits: that are made in it first, just as `lint --fix` makes them.
    """
    statement = call.statement
    lines = statement.lines if statement else ()
    if statement and edits:
        lines = _edited(statement, edits)
    indent = statement.place.column - 1 if statement else 0
    return tuple(
        (line if not number else line[min(indent, len(line) - len(line.lstrip())) :]).expandtabs(4)
        for number, line in enumerate(lines)
    )


def _edited(statement: Statement, edits: Iterable[SourceEdit]) -> tuple[str, ...]:
    # Here and not above: of a host without scripts nothing is parsed.
    from ddpdoctor.scripts.edits import SourceEditor, UneditableError

    content = "\n".join(statement.lines).encode()
    # The later call first: it moves no earlier one.
    for edit in sorted(edits, key=lambda edit: (edit.place.line, edit.place.column), reverse=True):
        line = edit.place.line - statement.place.line + 1
        column = edit.place.column - (statement.place.column - 1 if line == 1 else 0)
        moved = msgspec.structs.replace(edit, place=SourcePlace(edit.place.file, line, column))
        try:
            content = SourceEditor(content, statement.place.file).edited([moved])
        except UneditableError:
            return ()
    return tuple(content.decode().split("\n"))


def is_whole(text: str) -> bool:
    """Whether an expression is there to its end, and so can be written elsewhere."""
    return parse_expression(text) is not None


def assigned_name(call: LibraryCall) -> str:
    """The variable that holds a call's result; "" where none does."""
    found = _ASSIGNED.match("\n".join(statement_of(call)))
    return (
        found[1] if found and call.statement and call.statement.place.column + found.end() == call.place.column else ""
    )


def fix_with(text: str, lines: tuple[str, ...], place: SourcePlace) -> Fix:
    """The fix with its code, or, where that can't be shown whole, with the place at which it is to be made.

    Args:
        text: what to do.
        lines: the code; none where it can't be shown.
        place: at which it is.
    """
    return Fix(text, lines) if lines else Fix(f"{text}: {place}")
