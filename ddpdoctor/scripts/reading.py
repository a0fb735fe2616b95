"""From a path to the facts of a script."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ddpdoctor.base.findings import SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.redaction import redact_source
from ddpdoctor.facts.script import (
    Argument,
    Assignment,
    Condition,
    Escape,
    IgnoreComment,
    ImportedName,
    Iteration,
    LibraryCall,
    Loop,
    NamedResult,
    Origin,
    OriginKind,
    Role,
    Script,
    SetAttribute,
    SourceFile,
    Statement,
    UseOfFramework,
    Value,
)
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.calls import BASE
from ddpdoctor.scripts.following import ScriptFollower
from ddpdoctor.scripts.project import ModuleCache, Project
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.scope_names import resolve, scopes_around
from ddpdoctor.scripts.source_text import (
    REDACTED_CHARACTERS,
    SourceText,
    UnreadableSource,
    decode_source,
    parse_source,
    without_secrets,
)
from ddpdoctor.scripts.values import (
    CallRecord,
    CallResult,
    Constant,
    Function,
    Guard,
    Items,
    LibraryName,
    LoopSpot,
    MadeOf,
    Mapping,
    MethodOf,
    ProjectClass,
    ProjectObject,
    Quantity,
    RankTest,
    Spot,
    alternatives,
)
from ddpdoctor.scripts.vocabulary import frameworks, methods_of

_MAX_DEPTH: Final = 4
"""How deep what a value is made of is told."""
_MAX_TEXT: Final = 80
_MAX_LINES: Final = 16
"""Of a statement that is told."""
_MAX_ATTRIBUTES: Final = 16
"""Of an object of the project."""
_ROOT: Final = compile_lazily(r"(?<![\w.)\]])([A-Za-z_]\w*)(?:\.\w+)*$")
"""The name at which what is written with dots begins."""
_IGNORE: Final = compile_lazily(r"#\s*ddpdoctor:\s*ignore(?:\[([^\]]*)\])?")
_NAMED: Final = frozenset({Role.LOADER, Role.SAMPLER, Role.BATCH_SAMPLER})
_TELLS_OF_RANKS: Final = compile_lazily(
    r"distributed|DataParallel|accelerat|deepspeed|lightning|local.?rank|Fabric|Trainer|ray\.train|mmengine|LOCAL_RANK|torchrun"
)
"""Words without one of which no file has to do with several ranks."""


def read_script(path: str, cache: ModuleCache) -> Script:
    """Follow a file. One that can't be read is a fact, too: its problem.

    Args:
        path: of the file, as the user named it.
        cache: of modules that were parsed for other scripts.
    """
    try:
        module = cache.load(os.path.realpath(path), path).fresh()
    except UnreadableSource as error:
        return Script(path=path, files=(SourceFile(path, str(error)),))
    module = module if module.source.name == path else _renamed(module, path)
    project = Project(path, cache)
    project.adopt(module)
    return _facts(path, module, project)


def read_text(content: bytes, name: str) -> Script:
    """Follow a source that lies in no file, without anything that it imports.

    Args:
        content: the source.
        name: by which it is shown.
    """
    try:
        source = decode_source(content, name)
        module = ProjectModule(source, parse_source(source), "")
    except UnreadableSource as error:
        return Script(path=name, files=(SourceFile(name, str(error)),))
    return _facts(name, module, Project("", ModuleCache()))


def _renamed(module: ProjectModule, path: str) -> ProjectModule:
    left_out = [(f"{path}:{cell.rpartition(':')[2]}", problem) for cell, problem in module.source.left_out]
    source = SourceText(path, module.source.lines, module.source.cells, left_out)
    return ProjectModule(source, module.tree, module.path)


def _facts(path: str, module: ProjectModule, project: Project) -> Script:
    follower = ScriptFollower(project, module)
    whole = _TELLS_OF_RANKS.search("\n".join(module.source.lines)) is not None
    try:
        follower.follow(whole=whole)
        return _Frozen(follower).script(path, project)
    except RecursionError:
        return Script(path=path, files=(SourceFile(path, "not followed: it is nested too deeply"),))
    except Exception as crash:
        # Here and not above: it takes milliseconds to load.
        import traceback

        where = traceback.extract_tb(crash.__traceback__)[-1]
        problem = f"not followed: {type(crash).__name__} ({where.name}, line {where.lineno}); a bug in ddpdoctor, please report it"
        return Script(path=path, files=(SourceFile(path, problem),))
    finally:
        follower.release()
        project.forget()


class _Frozen:
    """Makes facts of what was recorded: of calls that have a role."""

    def __init__(self, follower: ScriptFollower) -> None:
        self._follower = follower
        self._places: dict[tuple[int, int, int], SourcePlace] = {}
        self._numbers: dict[int, int] = {}
        self._loops: dict[int, Loop] = {}
        self._asked: dict[int, Condition] = {}
        self._statements: dict[int, Statement | None] = {}

    def script(self, path: str, project: Project) -> Script:
        follower = self._follower
        known = frameworks()
        read = [SourceFile(follower.main.source.name)]
        read += [SourceFile(module.source.name) for module in project.modules if module is not follower.main]
        return Script(
            path=path,
            files=(
                *read,
                *(SourceFile(name, problem) for name, problem in (*project.problems, *follower.main.source.left_out)),
            ),
            calls=tuple(map(self._call, follower.here.records)),
            settings=tuple(
                Assignment(
                    name=written.name,
                    value=self._value(written.value, written.node, written.spot[0]),
                    place=self._place(written.spot),
                    conditions=self._conditions(written.guards),
                    is_default=written.is_default,
                    is_reached=written.is_reached,
                )
                for written in follower.written_settings
            ),
            frameworks=tuple(
                UseOfFramework(name, known[name].does, self._place(spot)) for name, spot in follower.frameworks.values()
            ),
            read_settings=tuple(follower.read_settings),
            imported_names=tuple(
                imported
                for module in {id(record.spot[0]): record.spot[0] for record in follower.here.records}.values()
                for imported in _imported_names(module)
            ),
            ignored=tuple(line for module in (follower.main, *project.modules) for line in _ignored(module.source)),
            unfollowed=tuple(self._unfollowed((follower.main, *project.modules))),
            asks_for_first_rank=follower.here.asks_for_first_rank,
            is_cut_short=follower.is_cut_short,
        )

    def _unfollowed(self, modules: Iterable[ProjectModule]) -> Iterator[str]:
        """The methods that are called in lines to which the script doesn't come: in a hook, or by a name that is put together."""
        followed = {(record.spot[0].source.name, record.spot[1]) for record in self._follower.here.records}
        for method in methods_of(Role.SET_EPOCH):
            for module in modules:
                for number, line in enumerate(module.source.lines, 1):
                    before, called, _ = line.partition("#")[0].partition(f".{method}(")
                    is_followed = not called or (module.source.name, number) in followed
                    if not is_followed and not self._is_of_another_run(before, number, module):
                        yield method

    def _is_of_another_run(self, before: str, line: int, module: ProjectModule) -> bool:
        """Whether a method's object is made by the function in which it is called, to which the script doesn't come.

        Args:
            before: the line up to the method.
            line: its number.
            module: in which it stands.
        """
        root = _ROOT.search(before)
        function = scopes_around(module.tree, line)[-1]
        if root is None or isinstance(function, ast.Module) or id(function) in self._follower.visits:
            return False
        handed = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
        return root[1] not in handed and resolve(root[1], [function]) is not None

    def _call(self, record: CallRecord) -> LibraryCall:
        receiver = record.receiver
        return LibraryCall(
            number=record.number,
            name=record.name,
            place=self._place(record.spot),
            roles=record.roles,
            arguments=tuple(
                Argument(name, self._value(value, node, record.spot[0])) for name, value, node in record.arguments
            ),
            receiver=None if receiver is None else self._value(*receiver, record.spot[0]),
            conditions=self._conditions(record.guards),
            loops=self._loops_of(record.loops),
            within=record.within,
            callers=tuple(map(self._place, record.callers)),
            conditions_at_callers=record.guards_at_callers,
            statement=self._statement(record.statement, record.spot[0]),
            is_reached=record.is_reached,
            escapes=tuple(Escape(name, self._place(spot)) for name, spot in record.escapes),
            iterations=tuple(
                Iteration(self._place(spot), self._loops_of(loops), self._conditions(guards), is_reached)
                for spot, loops, guards, is_reached in record.iterations
            ),
            set_attributes=tuple(
                SetAttribute(
                    name,
                    self._value(value, node, module),
                    self._place((module, node.lineno, node.col_offset)),
                    before,
                    self._loops_of(loops),
                )
                for name, value, node, module, before, loops in record.attributes_set
            ),
        )

    def _place(self, spot: Spot) -> SourcePlace:
        module, line, column = spot
        key = (id(module), line, column)
        place = self._places.get(key)
        if place is None:
            source = module.source
            text = source.lines[line - 1] if line <= len(source.lines) else ""
            characters = len(text.encode()[:column].decode(errors="replace")) + 1
            place = self._places[key] = SourcePlace(*_shown(source, line), characters, source.line(line))
        return place

    def _statement(self, node: ast.stmt | None, module: ProjectModule) -> Statement | None:
        key = id(node)
        if key not in self._statements:
            lines = _lines_of(node, module.source) if node else ()
            self._statements[key] = (
                Statement(self._place((module, node.lineno, node.col_offset)), lines) if node and lines else None
            )
        return self._statements[key]

    def _conditions(self, guards: Iterable[Guard]) -> tuple[Condition, ...]:
        return tuple(self._asked.get(id(guard)) or self._condition(guard) for guard in guards)

    def _condition(self, guard: Guard) -> Condition:
        module, node = guard.module, guard.node
        condition = self._asked[id(guard)] = Condition(
            guard.ranks,
            self._place((module, node.lineno, node.col_offset)),
            guard.by_leaving,
            self._value(guard.test, node, module),
            guard.is_negated,
        )
        return condition

    def _loops_of(self, loops: Iterable[LoopSpot]) -> tuple[Loop, ...]:
        return tuple(self._loops.get(id(loop)) or self._loop(loop) for loop in loops)

    def _loop(self, followed: LoopSpot) -> Loop:
        number = self._numbers.setdefault(followed.number, len(self._numbers))
        names = tuple(NamedResult(name, result.record.number) for name, result in _named_results(followed.names))
        loop = self._loops[id(followed)] = Loop(number, self._place(followed.spot), followed.variable, names)
        return loop

    def _value(self, value: AbstractValue, node: ast.expr | ast.ExceptHandler, module: ProjectModule) -> Value:
        return Value(self._origins(value, _MAX_DEPTH), _text(node, module.source))

    def _origins(self, value: AbstractValue, depth: int) -> tuple[Origin, ...]:
        return tuple(self._origin(single, depth) for single in alternatives(value))

    def _origin(self, value: AbstractValue, depth: int) -> Origin:
        if isinstance(value, Constant):
            return Origin(OriginKind.CONSTANT, without_secrets(repr(value.value), _MAX_TEXT))
        if isinstance(value, Quantity):
            return Origin(value.kind, value.source)
        if isinstance(value, CallResult) and value.is_settings:
            return Origin(OriginKind.OPTION, value.part.removeprefix("."))
        if isinstance(value, CallResult):
            return Origin(OriginKind.CALL, call=value.record.number, part=value.part)
        if isinstance(value, LibraryName):
            return Origin(OriginKind.LIBRARY, value.name)
        if isinstance(value, Function | ProjectClass):
            return Origin(OriginKind.PROJECT, getattr(value.node, "name", "lambda"))
        if isinstance(value, ProjectObject):
            attributes = list(value.attributes.values())[:_MAX_ATTRIBUTES] if depth else []
            parts = tuple(Value(self._origins(part, depth - 1)) for part in attributes)
            return Origin(OriginKind.PROJECT, value.kind.node.name, parts=parts)
        if not depth or value is UNKNOWN:
            return Origin(OriginKind.UNKNOWN)
        if isinstance(value, MadeOf):
            return self._made(value.how, value.parts, depth)
        if isinstance(value, MethodOf):
            return self._made(f".{value.name}", (value.receiver,), depth)
        if isinstance(value, Items):
            return self._made("[]", value.items, depth)
        if isinstance(value, Mapping):
            return self._made("{}" if value.is_whole else "{...}", value.items.values(), depth)
        if isinstance(value, RankTest):
            return Origin(OriginKind.MADE_OF, "test")
        return Origin(OriginKind.UNKNOWN)

    def _made(self, how: str, parts: Iterable[AbstractValue], depth: int) -> Origin:
        return Origin(OriginKind.MADE_OF, how, parts=tuple(Value(self._origins(part, depth - 1)) for part in parts))


def _named_results(names: dict[str, AbstractValue]) -> Iterator[tuple[str, CallResult]]:
    """Yield loaders and samplers with what they are called where these names are known: names first, then what is in an object, dict or list."""
    within: list[tuple[str, AbstractValue]] = []
    for name, value in names.items():
        for single in alternatives(value):
            if isinstance(single, CallResult):
                yield from _named(name, single)
            elif isinstance(single, ProjectObject):
                parts = single.attributes.items()
                within += ((name if key == BASE else f"{name}.{key}", part) for key, part in parts)
            elif isinstance(single, Mapping):
                within += ((f"{name}[{key!r}]", part) for key, part in single.items.items())
            elif isinstance(single, Items):
                within += ((f"{name}[{place}]", part) for place, part in enumerate(single.items))
    for name, value in within:
        for single in alternatives(value):
            yield from _named(name, single)


def _named(name: str, value: AbstractValue) -> Iterator[tuple[str, CallResult]]:
    if isinstance(value, CallResult) and not value.part and not _NAMED.isdisjoint(value.record.roles):
        yield name, value


def _shown(source: SourceText, line: int) -> tuple[str, int]:
    """The file's name and the line; of a notebook the cell, too, and the line in it."""
    if not source.cells:
        return source.name, line
    cell, inner = source.cells[line - 1]
    return f"{source.name}:cell {cell}", inner


def _text(node: ast.expr | ast.ExceptHandler, source: SourceText) -> str:
    """The expression as it is written; one of several lines as one."""
    if node.end_lineno != node.lineno:
        return without_secrets(ast.unparse(node), _MAX_TEXT)
    line = source.lines[node.lineno - 1].encode() if node.lineno <= len(source.lines) else b""
    return without_secrets(line[node.col_offset : node.end_col_offset].decode(errors="replace"), _MAX_TEXT)


def _lines_of(node: ast.stmt, source: SourceText) -> tuple[str, ...]:
    """The lines of a statement; none of a block, of a long one, and where a text of several lines would not stand a shift."""
    lines = source.lines[node.lineno - 1 : node.end_lineno]
    if hasattr(node, "body") or hasattr(node, "cases") or not 0 < len(lines) <= _MAX_LINES:
        return ()
    if len(lines) > 1 and any(
        isinstance(part, ast.Constant | ast.JoinedStr) and part.end_lineno != part.lineno for part in ast.walk(node)
    ):
        return ()
    last = lines[-1].encode()[: node.end_col_offset].decode(errors="replace")
    whole = [*lines[:-1], last]
    whole[0] = whole[0].encode()[node.col_offset :].decode(errors="replace")
    return tuple(redact_source(line) for line in whole) if max(map(len, whole)) <= REDACTED_CHARACTERS else ()


def _imported_names(module: ProjectModule) -> Iterator[ImportedName]:
    """Yield the names by which a module knows libraries, and that are nothing else there."""
    for name, statements in module.bindings.items():
        meanings = {meaning for statement in statements for meaning in _imported_as(name, statement)}
        if len(meanings) == 1 and (meaning := meanings.pop()):
            yield ImportedName(module.source.name, name, meaning)


def _imported_as(name: str, statement: ast.stmt) -> Iterator[str]:
    """Yield what a statement that binds a name imports as that; "" where it is nothing of a library."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if name == (alias.asname or alias.name.partition(".")[0]):
                yield alias.name if alias.asname else name
    elif isinstance(statement, ast.ImportFrom) and not statement.level:
        for alias in statement.names:
            if name == (alias.asname or alias.name):
                yield f"{statement.module}.{alias.name}"
    else:
        yield ""


def _ignored(source: SourceText) -> Iterator[IgnoreComment]:
    """The comments that speak of their line, or of the next where they stand alone."""
    for number, line in enumerate(source.lines, 1):
        found = _IGNORE.search(line) if "ddpdoctor:" in line else None
        if found:
            slugs = tuple(filter(None, re.split(r"[,\s]+", found[1] or "")))
            spoken_of = number + 1 if line.lstrip().startswith("#") else number
            if spoken_of <= len(source.lines):
                yield IgnoreComment(*_shown(source, spoken_of), slugs)
