"""Expressions of a followed script: what each may be worth."""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final

from ddpdoctor.facts.script import ITEM, OriginKind, Ranks, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.project import Project
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.rank_tests import (
    NO_RANK_TEST,
    NOT_FOLLOWED,
    ONE_PROCESS,
    RANK_KINDS,
    all_of,
    any_of,
    compared,
    is_followed,
    negated,
    quantity_in,
    splits,
    truth_of,
)
from ddpdoctor.scripts.scopes import FollowedFunction, Surroundings
from ddpdoctor.scripts.values import (
    NONE,
    TURN,
    CallResult,
    Choice,
    Constant,
    Decorated,
    Function,
    Guard,
    Items,
    LazyImport,
    LibraryName,
    LoopSpot,
    MadeOf,
    Mapping,
    MethodOf,
    ModuleValue,
    OnSomeRanks,
    ProjectClass,
    ProjectObject,
    Quantity,
    Question,
    RankTest,
    Spot,
    WrittenSetting,
    alternatives,
    choice,
    results_in,
)
from ddpdoctor.scripts.vocabulary import (
    DISTRIBUTED_TEST,
    frameworks_imported,
    hints_at_ranks,
    holds_settings,
    is_loaded,
    is_setting,
    library_calls,
    meaning_of,
    roles_of,
)

_OPERATORS: Final = {ast.Mod: "%", ast.FloorDiv: "//", ast.Div: "/", ast.Mult: "*", ast.Add: "+", ast.Sub: "-"}
_ENVIRON: Final = "os.environ"
_MAX_BASES: Final = 12


def dotted(node: ast.expr) -> str:
    """Write a name as the source has it: "dist.barrier"; "?" for what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return f"{dotted(node.args[0])}.{node.args[1].value!s}"
        return f"{name}()"
    return "?"


def asks_for_rank(node: ast.expr) -> bool:
    """Whether something that is called a rank is compared."""
    if not isinstance(node, ast.Compare):
        return False
    meaning = meaning_of(dotted(node.left).replace("()", "").rpartition(".")[2])
    return isinstance(meaning, Quantity) and meaning.kind in RANK_KINDS


def asks_for_first_rank(node: ast.expr) -> bool:
    """Whether something that is called the first rank is asked for."""
    meaning = meaning_of(dotted(node).replace("()", "").rpartition(".")[2])
    return isinstance(meaning, RankTest) and splits(meaning.holds)


def _asks_whether_distributed(node: ast.expr) -> bool:
    return meaning_of(dotted(node).rpartition(".")[2]) is DISTRIBUTED_TEST


class ExpressionFollower(ABC):
    """Knows what expressions are worth, and remembers where they are met.

    Args:
        project: whose files may be imported.
        main: the script.
    """

    def __init__(self, project: Project, main: ProjectModule) -> None:
        self.project = project
        self.main = main
        self.here = Surroundings()
        self.frameworks: dict[tuple[str, int], tuple[str, Spot]] = {}
        self.read_settings: dict[str, None] = {}
        self.written_settings: list[WrittenSetting] = []
        self.set_on_unknown: dict[str, list[AbstractValue]] = {}
        """What the script sets on objects that can't be followed, by the attribute's name."""
        self.filled: list[dict[str, AbstractValue] | list[AbstractValue]] = []
        """What may come to hold itself: scopes, attributes, lists."""

    @abstractmethod
    def follow_call(self, node: ast.Call, frame: FollowedFunction) -> AbstractValue:
        """What a call returns; what it does is recorded."""

    @abstractmethod
    def apply(
        self,
        callee: AbstractValue,
        arguments: list[tuple[str, AbstractValue, ast.expr]],
        node: ast.Call,
        frame: FollowedFunction,
    ) -> AbstractValue:
        """What a callee returns for arguments."""

    @abstractmethod
    def tell_of_yield(self, node: ast.Yield | ast.YieldFrom, frame: FollowedFunction) -> None:
        """Tell that a generator gives something out."""

    @abstractmethod
    def assign(self, target: ast.expr, value: AbstractValue, frame: FollowedFunction) -> None:
        """Bind a target to a value."""

    @abstractmethod
    def store(self, holder: AbstractValue, name: str, value: AbstractValue, frame: FollowedFunction) -> None:
        """Let an attribute of a holder, or a key of a dict or of settings, be a value."""

    @abstractmethod
    def run_function(
        self, function: Function, arguments: list[tuple[str, AbstractValue, ast.expr]], caller: Spot | None
    ) -> AbstractValue:
        """Follow a function of the project, and say what it returns."""

    def release(self) -> None:
        """Let go of all that holds itself, so that its memory is free at once, and not when garbage is collected."""
        for container in self.filled:
            container.clear()
        for record in self.here.records:
            record.release()

    def value(self, node: ast.expr | None, frame: FollowedFunction) -> AbstractValue:
        """What an expression may be worth."""
        if node is None:
            return NONE
        handler = _EXPRESSIONS.get(type(node))
        return handler(self, node, frame) if handler else UNKNOWN

    def spot(self, node: ast.AST, frame: FollowedFunction) -> Spot:
        """Where a node stands."""
        return frame.module, node.lineno, node.col_offset  # type: ignore[attr-defined]

    def question(self, node: ast.expr, frame: FollowedFunction) -> Question:
        """Which ranks a condition lets through, and what it asks."""
        if isinstance(node, ast.BoolOp):
            is_and = isinstance(node.op, ast.And)
            parts = []
            depths = self.here.depths()
            for part in node.values:
                parts.append(self.question(part, frame))
                self._enter_next(parts[-1], is_and)
            self.here.restore(depths)
            joined = (all_of if is_and else any_of)([part.ranks for part in parts])
            value: AbstractValue = MadeOf("and" if is_and else "or", tuple(part.value for part in parts))
            return Question(joined, value, node, frame.module)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.question(node.operand, frame)
            return Question(negated(inner.ranks), MadeOf("not", (inner.value,)), node, frame.module)
        value = self.value(node, frame)
        return Question(self._ranks_let_through(node, value), value, node, frame.module)

    def _ranks_let_through(self, node: ast.expr, value: AbstractValue) -> RankTest:
        """Of a condition that can't be followed its words decide whether it may be one on the rank."""
        if isinstance(value, Constant) and asks_for_rank(node):
            # Whoever gives a function the rank as a number is alone: `main(rank=0)` where there is one GPU.
            return ONE_PROCESS
        if isinstance(value, Constant) and asks_for_first_rank(node):
            # The default, or what stands there before the rank is known.
            return NOT_FOLLOWED
        if isinstance(value, Constant) and _asks_whether_distributed(node):
            # Whoever runs the script changes it there.
            return DISTRIBUTED_TEST
        test = truth_of(value)
        if isinstance(node, ast.Compare) and value is NOT_FOLLOWED:
            is_presence = isinstance(node.ops[0], ast.Is | ast.IsNot)
            if is_loaded(dotted(node.left)) or (is_presence and is_setting(dotted(node.left))):
                return NO_RANK_TEST
        if isinstance(node, ast.Call) and Ranks.MAY_BE_SOME in test.holds:
            # Where not all that it asks could be followed, it asks what it is called by; `should_save(step)` may ask for the step.
            name = dotted(node.func).rpartition(".")[2]
            meaning = None if name.startswith("should") else meaning_of(name)
            return meaning if isinstance(meaning, RankTest) and splits(meaning.holds) else test
        if test is NO_RANK_TEST and not isinstance(value, Constant | Items | Mapping | ProjectObject):
            text = dotted(node.left if isinstance(node, ast.Compare) else node)
            last = text.replace("()", "").rpartition(".")[2]
            meaning = meaning_of(last)
            if isinstance(meaning, RankTest) and not isinstance(node, ast.Compare):
                return meaning
            if isinstance(node, ast.Compare):
                is_rank = isinstance(meaning, Quantity) and meaning.kind in RANK_KINDS
                return NOT_FOLLOWED if is_rank or hints_at_ranks(last) else test
            return test if is_loaded(last) or is_setting(text) or is_followed(value) else NOT_FOLLOWED
        return test

    # --- names --------------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant, frame: FollowedFunction) -> AbstractValue:
        return Constant(node.value)

    def _name(self, node: ast.Name, frame: FollowedFunction) -> AbstractValue:
        value = self.look_up(node.id, frame)
        return self.by_name(node.id, value)

    def by_name(self, name: str, value: AbstractValue) -> AbstractValue:
        """The value, or what its name alone says where the value says nothing of ranks."""
        if value is UNKNOWN or isinstance(value, MadeOf | Choice):
            meaning = meaning_of(name)
            if meaning is not None and (
                not _speaks_of_ranks(value) or (isinstance(meaning, Quantity) and quantity_in(value) is None)
            ):
                return meaning
        return value

    def look_up(self, name: str, frame: FollowedFunction) -> AbstractValue:
        """What a name is bound to."""
        for scope in frame.scopes:
            value = scope.get(name)
            if value is not None:
                return self._arrived(name, value, scope) if isinstance(value, LazyImport | Choice) else value
        value = self.global_value(frame.module, name)
        if value is not None:
            return value
        if name == "__name__":
            return Constant("__main__" if frame.module is self.main else frame.module.path)
        return LibraryName(f"builtins.{name}") if name in _BUILTINS else UNKNOWN

    def _arrived(self, name: str, value: AbstractValue, scope: dict[str, AbstractValue]) -> AbstractValue:
        """What a name is bound to whose import may still be to be read."""
        if not any(isinstance(single, LazyImport) for single in alternatives(value)):
            return value
        found = choice(
            self._imported(single) if isinstance(single, LazyImport) else single for single in alternatives(value)
        )
        if self.here.is_reached:
            scope[name] = found
        return found

    def global_value(self, module: ProjectModule, name: str) -> AbstractValue | None:
        """What a name of a module is bound to; None where it isn't. A module that is imported is looked up name by name."""
        value = module.values.get(name)
        if value is not None:
            return self._arrived(name, value, module.values) if isinstance(value, LazyImport | Choice) else value
        if name in module.pending:
            return UNKNOWN
        bindings = module.bindings.get(name)
        if bindings is None:
            return self._starred(module, name)
        module.pending.add(name)
        depths = self.here.depths()
        try:
            frame = FollowedFunction(module, (module.values,))
            values = [value for binding in bindings[-4:] if (value := self._bound(binding, name, frame)) is not None]
            found = choice(values) if values else UNKNOWN
        finally:
            self.here.restore(depths)
            module.pending.discard(name)
        found = module.values.setdefault(name, found)
        if module is not self.main and isinstance(found, MadeOf | CallResult):
            for statement in module.calls_on.get(name, ()):
                frame.statement = statement
                self.value(statement.value, frame)
        return self._arrived(name, found, module.values)

    def _bound(self, binding: ast.stmt, name: str, frame: FollowedFunction) -> AbstractValue | None:
        if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(binding, frame.module)
        if isinstance(binding, ast.ClassDef):
            return ProjectClass(binding, frame.module)
        if isinstance(binding, ast.Import | ast.ImportFrom):
            return next((value for bound, value in self.imported(binding, frame) if bound == name), None)
        if isinstance(binding, ast.Assign | ast.AnnAssign) and binding.value is not None:
            frame.statement = binding
            targets = binding.targets if isinstance(binding, ast.Assign) else [binding.target]
            value = self.value(binding.value, frame)
            for target in targets:
                self.assign(target, value, frame)
            return frame.module.values.pop(name, None)
        return None

    def _starred(self, module: ProjectModule, name: str) -> AbstractValue | None:
        if name.startswith("_") or f"*{name}" in module.pending:
            return None
        module.pending.add(f"*{name}")
        try:
            for statement in module.stars:
                other = self.project.find(statement.module or "", statement.level, module)
                value = self.global_value(other, name) if other else None
                if value is not None:
                    return value
        finally:
            module.pending.discard(f"*{name}")
        return None

    def imported(
        self, statement: ast.Import | ast.ImportFrom, frame: FollowedFunction
    ) -> Iterable[tuple[str, AbstractValue]]:
        """Yield what an import binds, and note frameworks."""
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                self._note_framework(alias.name, statement, frame)
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                is_own = self.project.may_have(name)
                value = LazyImport(statement, name, frame.module) if is_own else LibraryName(name)
                yield alias.asname or name, value
            elif alias.name == "*":
                self._note_framework(statement.module or "", statement, frame)
            else:
                source = f"{'.' * statement.level}{statement.module or ''}"
                if not statement.level:
                    self._note_framework(f"{source}.{alias.name}", statement, frame)
                is_own = statement.level > 0 or self.project.may_have(source)
                name = alias.name
                value = LazyImport(statement, name, frame.module) if is_own else LibraryName(f"{source}.{name}")
                yield alias.asname or name, value

    def _imported(self, lazy: LazyImport) -> AbstractValue:
        """What an import from the project means. Nobody knows whether a script comes to it that follows functions to which none comes."""
        statement, name, importer = lazy.statement, lazy.name, lazy.importer
        if isinstance(statement, ast.Import):
            if not self.here.is_reached:
                return LibraryName(name)
            module = self.project.find(name, 0, importer)
            return ModuleValue(module) if module else NamespacePackage(name, importer)
        source = statement.module or ""
        if self.here.is_reached:
            module = self.project.find(source, statement.level, importer)
            if module is not None and module is not importer:
                value = self.global_value(module, name)
                if value is not None:
                    return value
            submodule = self.project.find(f"{source}.{name}" if source else name, statement.level, importer)
            if submodule is not None:
                return ModuleValue(submodule)
        return LibraryName(f"{'.' * statement.level}{source}.{name}")

    def _note_framework(self, name: str, statement: ast.stmt, frame: FollowedFunction) -> None:
        for framework in frameworks_imported(name):
            spot = self.spot(statement, frame)
            self.frameworks.setdefault((framework, spot[1]), (framework, spot))

    # --- attributes and items -----------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, frame: FollowedFunction) -> AbstractValue:
        holder = self.value(node.value, frame)
        value = self.by_name(node.attr, self.attribute(holder, node.attr, frame))
        is_open = holder is UNKNOWN or isinstance(holder, Constant)
        if not is_open and not isinstance(holder, LibraryName | MadeOf | MethodOf):
            return value
        if is_open and value is UNKNOWN and holds_settings(dotted(node.value)):
            value = Quantity(OriginKind.OPTION, node.attr)
        set_to = self.set_on_unknown.get(node.attr)
        return choice((value, *set_to)) if set_to else value

    def attribute(self, holder: AbstractValue, name: str, frame: FollowedFunction) -> AbstractValue:
        """What an attribute may be worth."""
        if isinstance(holder, LibraryName):
            if holder.name == "sys" and name == "argv":
                return Quantity(OriginKind.OPTION, "sys.argv")
            return LibraryName(f"{holder.name}.{name}")
        if isinstance(holder, ModuleValue):
            value = self.global_value(holder.module, name)
            if value is not None:
                return value
            submodule = self.project.find(name, 1, holder.module)
            return ModuleValue(submodule) if submodule else UNKNOWN
        if isinstance(holder, NamespacePackage):
            module = self.project.find(f"{holder.name}.{name}", 0, holder.importer)
            return ModuleValue(module) if module else NamespacePackage(f"{holder.name}.{name}", holder.importer)
        if isinstance(holder, ProjectObject):
            return self._attribute_of_object(holder, name, frame)
        if isinstance(holder, ProjectClass):
            return self.member(holder, name, holder) or MethodOf(holder, name)
        if isinstance(holder, CallResult):
            return self._attribute_of_result(holder, name)
        if isinstance(holder, Choice):
            return choice(self.attribute(single, name, frame) for single in holder.values)
        if isinstance(holder, Mapping) and name in holder.items:
            return holder.items[name]
        if holder is UNKNOWN or isinstance(holder, Constant):
            return meaning_of(name) or UNKNOWN
        return meaning_of(name) or MethodOf(holder, name)

    def _attribute_of_object(self, holder: ProjectObject, name: str, frame: FollowedFunction) -> AbstractValue:
        if name in holder.attributes:
            return holder.attributes[name]
        member = self.member(holder.kind, name, holder)
        if member is None:
            is_key = self.has_keys_as_attributes(holder.kind)
            return meaning_of(name) or (Quantity(OriginKind.OPTION, name) if is_key else MethodOf(holder, name))
        if isinstance(member, Function) and any(
            dotted(decorator).rpartition(".")[2] in ("property", "cached_property")
            for decorator in getattr(member.node, "decorator_list", ())
        ):
            return self.run_function(member, [], None)
        return member

    def has_keys_as_attributes(self, kind: ProjectClass) -> bool:
        """Whether a class of the project is derived from a dict, or from a library's object for settings."""
        return any(isinstance(base, LibraryName) and base.name in _DICTS for base in self.bases(kind))

    def _attribute_of_result(self, holder: CallResult, name: str) -> AbstractValue:
        record, part = holder.record, f"{holder.part}.{name}"
        set_to = record.attributes.get(part)
        # What the script sets is only where a setting begins: the file and the command line change it.
        if set_to is not None and not (holder.is_settings and isinstance(set_to, Constant)):
            return set_to
        meaning = meaning_of(name)
        if Role.OPTIONS in record.roles:
            if isinstance(meaning, Quantity):
                is_local = any(spelling in _LOCAL_RANK_OPTIONS for spelling in self._spellings(name))
                return Quantity(OriginKind.LOCAL_RANK if is_local else meaning.kind, "option")
            return meaning or Quantity(OriginKind.OPTION, name)
        return meaning or CallResult(record, part)

    def _spellings(self, name: str) -> list[object]:
        """All spellings of the option whose value has that name: of its first long one."""
        for record in self.here.records:
            if Role.OPTION in record.roles:
                spellings = [value.value for _, value, _ in record.arguments if isinstance(value, Constant)]
                first = next((word for word in spellings if isinstance(word, str) and word.startswith("--")), "")
                if first.lstrip("-").replace("-", "_") == name:
                    return spellings
        return []

    def member(
        self, kind: ProjectClass, name: str, owner: AbstractValue, depth: int = _MAX_BASES
    ) -> AbstractValue | None:
        """A method or attribute of a class of the project, or of those that it derives from; None if it has none there."""
        if name in kind.methods:
            return Function(kind.methods[name], kind.module, kind.scopes, owner, kind)
        for statement in kind.node.body:
            if isinstance(statement, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in statement.targets
            ):
                return self.value(statement.value, FollowedFunction(kind.module, ({}, *kind.scopes)))
        for base in self.bases(kind) if depth else ():
            if isinstance(base, ProjectClass) and (found := self.member(base, name, owner, depth - 1)) is not None:
                return found
        return None

    def bases(self, kind: ProjectClass) -> list[AbstractValue]:
        """The classes that a class derives from."""
        frame = FollowedFunction(kind.module, ({}, *kind.scopes))
        return [self.value(base, frame) for base in kind.node.bases if isinstance(base, ast.Name | ast.Attribute)]

    def _subscript(self, node: ast.Subscript, frame: FollowedFunction) -> AbstractValue:
        holder = self.value(node.value, frame)
        key = self.value(node.slice, frame)
        return choice(self.item(single, key) for single in alternatives(holder))

    def item(self, holder: AbstractValue, key: AbstractValue) -> AbstractValue:
        """What an item may be worth."""
        if isinstance(holder, LibraryName) and holder.name == _ENVIRON:
            return self.setting(key)
        if isinstance(key, Constant):
            if isinstance(holder, Mapping):
                found = holder.items.get(str(key.value)) or holder.items.get(ITEM, UNKNOWN)
                return self.by_name(str(key.value), found)
            if (
                isinstance(holder, Items)
                and isinstance(key.value, int)
                and -len(holder.items) <= key.value < len(holder.items)
            ):
                return holder.items[key.value]
            if isinstance(holder, CallResult):
                if Role.OPTIONS in holder.record.roles and isinstance(key.value, int):
                    return CallResult(holder.record)
                if holder.is_settings and isinstance(key.value, str):
                    return self._attribute_of_result(holder, key.value)
                part = f"{holder.part}[{key.value!r}]"
                return holder.record.attributes.get(part) or CallResult(holder.record, part)
        if isinstance(holder, CallResult):
            return CallResult(holder.record, f"{holder.part}[...]")
        if isinstance(holder, Mapping) and holder.items:
            return choice(holder.items.values() if holder.is_whole else (*holder.items.values(), UNKNOWN))
        if isinstance(holder, Items):
            return choice(holder.items) if holder.items else UNKNOWN
        if isinstance(holder, Quantity):
            return holder
        value = UNKNOWN if holder is UNKNOWN else MadeOf("[]", (holder, key))
        return self.by_name(key.value, value) if isinstance(key, Constant) and isinstance(key.value, str) else value

    def setting(self, key: AbstractValue) -> AbstractValue:
        """What a variable of the environment holds."""
        if not isinstance(key, Constant):
            return UNKNOWN
        name = str(key.value)
        self.read_settings.setdefault(name)
        return Quantity(library_calls().settings.get(name, OriginKind.SETTING), name)

    # --- made of others -----------------------------------------------------------------------------------------------------

    def _display(self, node: ast.Tuple | ast.List | ast.Set, frame: FollowedFunction) -> AbstractValue:
        items: list[AbstractValue] = []
        for part in node.elts:
            value = self.value(part, frame)
            if isinstance(part, ast.Starred):
                if not isinstance(value, Items):
                    return MadeOf("[]", (*items, value))
                items += value.items
            else:
                items.append(value)
        return Items(items)

    def _dict(self, node: ast.Dict, frame: FollowedFunction) -> AbstractValue:
        result = Mapping({})
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part, frame)
            name = self.value(key, frame) if key is not None else None
            if isinstance(name, Constant):
                result.items[str(name.value)] = value
            elif key is None and isinstance(value, Mapping):
                result.items.update(value.items)
                result.is_whole = result.is_whole and value.is_whole
            else:
                result.is_whole = False
        return result

    def _bool_op(self, node: ast.BoolOp, frame: FollowedFunction) -> AbstractValue:
        is_and = isinstance(node.op, ast.And)
        values: list[AbstractValue] = []
        tests: list[RankTest] = []
        depths = self.here.depths()
        for part in node.values:
            value = self.value(part, frame)
            values.append(value)
            tests.append(self._ranks_let_through(part, value))
            self._enter_next(Question(tests[-1], value, part, frame.module), is_and)
        self.here.restore(depths)
        if any(isinstance(value, RankTest) for value in values):
            return (all_of if is_and else any_of)(tests)
        return choice(values)

    def _enter_next(self, question: Question, is_and: bool) -> None:
        """Come to what is asked next, behind `and` or `or`, where a question of the rank lets only some of them come there."""
        self.here.enter(guard for guard in question.guards(holds=is_and) if guard.ranks is not Ranks.ALL)

    def _unary_op(self, node: ast.UnaryOp, frame: FollowedFunction) -> AbstractValue:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            test = truth_of(value)
            return MadeOf("not", (value,)) if test is NO_RANK_TEST else negated(test)
        if isinstance(node.op, ast.USub) and isinstance(value, Constant) and isinstance(value.value, int | float):
            return Constant(-value.value)
        return MadeOf("-", (value,))

    def _bin_op(self, node: ast.BinOp, frame: FollowedFunction) -> AbstractValue:
        parts = (self.value(node.left, frame), self.value(node.right, frame))
        how = "f" if _is_text(parts[0]) or _is_text(parts[1]) else _OPERATORS.get(type(node.op), "?")
        return MadeOf(how, parts)

    def _compare(self, node: ast.Compare, frame: FollowedFunction) -> AbstractValue:
        left = self.value(node.left, frame)
        rights = [self.value(right, frame) for right in node.comparators]
        if len(rights) > 1:
            return MadeOf("compare", (left, *rights))
        operator, right = node.ops[0], rights[0]
        known = _compared_constants(left, operator, right)
        return compared(left, operator, right) if known is None else Constant(known)

    def _if_exp(self, node: ast.IfExp, frame: FollowedFunction) -> AbstractValue:
        question = self.question(node.test, frame)
        with_condition = self._guarded(node.body, question.guards(holds=True), frame)
        without = self._guarded(node.orelse, question.guards(holds=False), frame)
        return choice((with_condition, without))

    def _guarded(self, node: ast.expr, passed: list[Guard], frame: FollowedFunction) -> AbstractValue:
        """What an expression may be worth under conditions."""
        depths = self.here.depths()
        self.here.enter(passed)
        frame.branches += 1
        try:
            value = self.value(node, frame)
        finally:
            frame.branches -= 1
            self.here.restore(depths)
        is_called = isinstance(value, Function | Decorated) or (
            isinstance(value, LibraryName) and roles_of(value.name) is not None
        )
        return OnSomeRanks(value, tuple(passed)) if is_called and splits(guard.ranks for guard in passed) else value

    def _joined(self, node: ast.JoinedStr, frame: FollowedFunction) -> AbstractValue:
        return MadeOf("f", tuple(self.value(part, frame) for part in node.values))

    def _slice(self, node: ast.Slice, frame: FollowedFunction) -> AbstractValue:
        return MadeOf(":", tuple(self.value(part, frame) for part in (node.lower, node.upper, node.step)))

    def _lambda(self, node: ast.Lambda, frame: FollowedFunction) -> AbstractValue:
        return Function(node, frame.module, self.kept(frame.scopes), None, frame.home)

    def kept(self, scopes: tuple[dict[str, AbstractValue], ...]) -> tuple[dict[str, AbstractValue], ...]:
        """The same scopes, which something within them holds on to."""
        self.filled += scopes
        return scopes

    def _named(self, node: ast.NamedExpr, frame: FollowedFunction) -> AbstractValue:
        value = self.value(node.value, frame)
        self.assign(node.target, value, frame)
        return value

    def _yield(self, node: ast.Yield | ast.YieldFrom, frame: FollowedFunction) -> AbstractValue:
        self.value(node.value, frame)
        self.tell_of_yield(node, frame)
        frame.yields = True
        return UNKNOWN

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: FollowedFunction
    ) -> AbstractValue:
        here = self.here
        depths = here.depths()
        inner = FollowedFunction(frame.module, ({}, *frame.scopes), frame.home, frame.owner)
        inner.statement = frame.statement
        parts: list[AbstractValue] = []
        for generator in node.generators:
            iterated = self.value(generator.iter, inner)
            self.iterate(iterated, self.spot(node, frame))
            parts.append(iterated)
            here.loops.append(LoopSpot(id(node), self.spot(node, frame), inner.names))
            self.filled.append(inner.names)
            self.assign(generator.target, self.item_of(iterated), inner)
            for condition in generator.ifs:
                self.value(condition, inner)
        if isinstance(node, ast.DictComp):
            self.value(node.key, inner)
            parts.append(self.value(node.value, inner))
        else:
            parts.append(self.value(node.elt, inner))
        here.restore(depths)
        return MadeOf("[]", tuple(parts))

    def item_of(self, iterated: AbstractValue) -> AbstractValue:
        """What one item of something iterated may be worth."""
        if isinstance(iterated, Choice):
            return choice(map(self.item_of, iterated.values))
        if isinstance(iterated, Items):
            return choice(iterated.items) if iterated.items else UNKNOWN
        if isinstance(iterated, MadeOf):
            name = iterated.how.rpartition(".")[2]
            if name == "enumerate()":
                return Items([_TURN, self.item_of(iterated.parts[0])])
            if name in ("range()", "count()"):
                return MadeOf(TURN, iterated.parts)
            if name in ("tqdm()", "trange()") and iterated.parts:
                return MadeOf(TURN, iterated.parts) if name == "trange()" else self.item_of(iterated.parts[0])
        return MadeOf(ITEM, ())

    def iterate(self, iterated: AbstractValue, spot: Spot, loops: int | None = None) -> None:
        """Note a loop over loaders.

        Args:
            iterated: what it goes over.
            spot: where it stands.
            loops: how many of those that are followed are around it; None: all.
        """
        here = self.here
        for result in results_in(iterated):
            here.events += 1
            result.record.iterations.append((spot, tuple(here.loops[:loops]), tuple(here.guards), here.is_reached))


_EXPRESSIONS: Final[dict[type[ast.AST], Callable[[ExpressionFollower, Any, FollowedFunction], AbstractValue]]] = {
    ast.Constant: ExpressionFollower._constant,
    ast.Name: ExpressionFollower._name,
    ast.Attribute: ExpressionFollower._attribute,
    ast.Call: lambda follower, node, frame: follower.follow_call(node, frame),
    ast.Tuple: ExpressionFollower._display,
    ast.List: ExpressionFollower._display,
    ast.Set: ExpressionFollower._display,
    ast.Dict: ExpressionFollower._dict,
    ast.BoolOp: ExpressionFollower._bool_op,
    ast.UnaryOp: ExpressionFollower._unary_op,
    ast.BinOp: ExpressionFollower._bin_op,
    ast.Compare: ExpressionFollower._compare,
    ast.IfExp: ExpressionFollower._if_exp,
    ast.Subscript: ExpressionFollower._subscript,
    ast.Slice: ExpressionFollower._slice,
    ast.JoinedStr: ExpressionFollower._joined,
    ast.FormattedValue: lambda follower, node, frame: follower.value(node.value, frame),
    ast.Lambda: ExpressionFollower._lambda,
    ast.NamedExpr: ExpressionFollower._named,
    ast.Starred: lambda follower, node, frame: follower.value(node.value, frame),
    ast.Await: lambda follower, node, frame: follower.value(node.value, frame),
    ast.Yield: ExpressionFollower._yield,
    ast.YieldFrom: ExpressionFollower._yield,
    ast.ListComp: ExpressionFollower._comprehension,
    ast.SetComp: ExpressionFollower._comprehension,
    ast.GeneratorExp: ExpressionFollower._comprehension,
    ast.DictComp: ExpressionFollower._comprehension,
}


class NamespacePackage(AbstractValue):
    """A folder of the project without an __init__.py."""

    __slots__ = ("importer", "name")

    def __init__(self, name: str, importer: ProjectModule) -> None:
        self.name = name
        self.importer = importer


_BUILTINS: Final = frozenset(dir(builtins))
_TURN: Final = MadeOf(TURN, ())
"""The number of a loop's turn."""
_DICTS: Final = (
    "builtins.dict",
    "argparse.Namespace",
    "yacs.config.CfgNode",
    "easydict.EasyDict",
    "collections.OrderedDict",
)
"""Classes whose objects hold settings, where a script derives one from them whose keys are attributes."""
_LOCAL_RANK_OPTIONS: Final = ("--local_rank", "--local-rank")


def _is_text(value: AbstractValue) -> bool:
    return (isinstance(value, Constant) and isinstance(value.value, str)) or (
        isinstance(value, MadeOf) and value.how == "f"
    )


def _speaks_of_ranks(value: AbstractValue) -> bool:
    return isinstance(value, Choice) and any(isinstance(single, Quantity | RankTest) for single in value.values)


def _compared_constants(left: AbstractValue, operator: ast.cmpop, right: AbstractValue) -> bool | None:
    """What a comparison of constants comes to; None for others."""
    if not isinstance(left, Constant):
        return None
    if isinstance(right, Constant):
        same = type(left.value) is type(right.value) and left.value == right.value
        if isinstance(operator, ast.Eq | ast.Is):
            return same
        return not same if isinstance(operator, ast.NotEq | ast.IsNot) else None
    if isinstance(right, Items) and all(isinstance(item, Constant) for item in right.items):
        within = any(isinstance(item, Constant) and item.value == left.value for item in right.items)
        return within is isinstance(operator, ast.In) if isinstance(operator, ast.In | ast.NotIn) else None
    return None
