"""Names, attributes and items of a followed script: what each may be worth."""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.script import ITEM, OriginKind, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.project import Project
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.rank_tests import (
    quantity_in,
)
from ddpdoctor.scripts.scopes import FollowedFunction, Surroundings
from ddpdoctor.scripts.values import (
    CallResult,
    Choice,
    Constant,
    Function,
    Items,
    LazyImport,
    LibraryName,
    MadeOf,
    Mapping,
    MethodOf,
    ModuleValue,
    ProjectClass,
    ProjectObject,
    Quantity,
    RankTest,
    Spot,
    WrittenSetting,
    alternatives,
    choice,
)
from ddpdoctor.scripts.vocabulary import (
    frameworks_imported,
    holds_settings,
    library_calls,
    meaning_of,
)

_ENVIRON: Final = "os.environ"
_MAX_BASES: Final = 12
_BUILTINS: Final = frozenset(dir(builtins))
_DICTS: Final = (
    "builtins.dict",
    "argparse.Namespace",
    "yacs.config.CfgNode",
    "easydict.EasyDict",
    "collections.OrderedDict",
)
"""Classes whose objects hold settings, where a script derives one from them whose keys are attributes."""
_LOCAL_RANK_OPTIONS: Final = ("--local_rank", "--local-rank")


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


class NameFollower(ABC):
    """Knows what names, attributes and items are worth.

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
    def value(self, node: ast.expr | None, frame: FollowedFunction) -> AbstractValue:
        """What an expression may be worth."""

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

    def spot(self, node: ast.AST, frame: FollowedFunction) -> Spot:
        """Where a node stands."""
        return frame.module, node.lineno, node.col_offset  # type: ignore[attr-defined]

    # --- names --------------------------------------------------------------------------------------------------------------

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


class NamespacePackage(AbstractValue):
    """A folder of the project without an __init__.py."""

    __slots__ = ("importer", "name")

    def __init__(self, name: str, importer: ProjectModule) -> None:
        self.name = name
        self.importer = importer


def _speaks_of_ranks(value: AbstractValue) -> bool:
    return isinstance(value, Choice) and any(isinstance(single, Quantity | RankTest) for single in value.values)
