"""Values as the reader of a script knows them: what an expression may be, without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ddpdoctor.facts.script import OriginKind, Ranks, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.project_module import ProjectModule

MAX_CHOICES = 8
"""Values that one may be; of more nothing is known."""


class Constant(AbstractValue):
    """A literal."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


NONE = Constant(None)


class LibraryName(AbstractValue):
    """Something of a library, or of Python itself, by its full name: "torch.nn", "builtins.len"."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Quantity(AbstractValue):
    """A rank, a world size, an option or a setting. source: "option", a setting's or function's name, "" where only its name tells it."""

    __slots__ = ("kind", "source")

    def __init__(self, kind: OriginKind, source: str = "") -> None:
        self.kind = kind
        self.source = source


class RankTest(AbstractValue):
    """A question of the rank. holds, fails: ranks that are let through where it holds, and where it doesn't; empty: all."""

    __slots__ = ("fails", "holds")

    def __init__(self, holds: tuple[Ranks, ...], fails: tuple[Ranks, ...]) -> None:
        self.holds = holds
        self.fails = fails


class CallResult(AbstractValue):
    """The result of a recorded call, or a part of it."""

    __slots__ = ("part", "record")

    def __init__(self, record: CallRecord, part: str = "") -> None:
        self.record = record
        self.part = part

    @property
    def is_settings(self) -> bool:
        """Whether it is, or stands in, an object that holds settings: by name, be that an attribute or a key."""
        return Role.SETTINGS in self.record.roles


class MadeOf(AbstractValue):
    """What is made of other values. how: an operator, "f" for a text, "name()" for a call that isn't recorded."""

    __slots__ = ("how", "parts")

    def __init__(self, how: str, parts: tuple[AbstractValue, ...]) -> None:
        self.how = how
        self.parts = parts


TURN: Final = "turn"
"""How a number is made that a loop counts."""


class Items(AbstractValue):
    """A list, tuple or set whose items are known."""

    __slots__ = ("items",)

    def __init__(self, items: list[AbstractValue]) -> None:
        self.items = items


class Mapping(AbstractValue):
    """A dict. is_whole: all its keys are known."""

    __slots__ = ("is_whole", "items")

    def __init__(self, items: dict[str, AbstractValue], is_whole: bool = True) -> None:
        self.items = items
        self.is_whole = is_whole


class Function(AbstractValue):
    """A function of the project.

    Args:
        node: its definition.
        module: in which it stands.
        scopes: of the functions around it, the innermost first.
        owner: the object whose method it is, or the class.
        home: the class in which it stands.
    """

    __slots__ = ("home", "module", "node", "owner", "scopes")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        module: ProjectModule,
        scopes: tuple[dict[str, AbstractValue], ...] = (),
        owner: AbstractValue | None = None,
        home: ProjectClass | None = None,
    ) -> None:
        self.home = home
        self.node = node
        self.module = module
        self.scopes = scopes
        self.owner = owner


class ProjectClass(AbstractValue):
    """A class of the project."""

    __slots__ = ("methods", "module", "node", "scopes")

    def __init__(
        self, node: ast.ClassDef, module: ProjectModule, scopes: tuple[dict[str, AbstractValue], ...] = ()
    ) -> None:
        self.node = node
        self.module = module
        self.scopes = scopes
        self.methods = {
            statement.name: statement
            for statement in node.body
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        }


class ProjectObject(AbstractValue):
    """An object of a class of the project. guards: under which it is made, and so under which it is there at all."""

    __slots__ = ("attributes", "guards", "kind")

    def __init__(self, kind: ProjectClass, guards: Sequence[Guard] = ()) -> None:
        self.kind = kind
        self.guards = tuple(guards)
        self.attributes: dict[str, AbstractValue] = {}


class ModuleValue(AbstractValue):
    """A module of the project."""

    __slots__ = ("module",)

    def __init__(self, module: ProjectModule) -> None:
        self.module = module


class LazyImport(AbstractValue):
    """An import from the project whose file isn't read before its name is used.

    Args:
        statement: the import.
        name: of those in it.
        importer: the module in which it stands.
    """

    __slots__ = ("importer", "name", "statement")

    def __init__(self, statement: ast.Import | ast.ImportFrom, name: str, importer: ProjectModule) -> None:
        self.statement = statement
        self.name = name
        self.importer = importer


class MethodOf(AbstractValue):
    """An attribute of something that isn't the project's: a method, once it is called."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: AbstractValue, name: str) -> None:
        self.receiver = receiver
        self.name = name


class Partial(AbstractValue):
    """A functools.partial of a function."""

    __slots__ = ("arguments", "function", "keywords")

    def __init__(
        self, function: AbstractValue, arguments: list[AbstractValue], keywords: dict[str, AbstractValue]
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.keywords = keywords


class OnSomeRanks(AbstractValue):
    """What some ranks alone call: `save = torch.save if rank == 0 else nothing`. guards: the conditions."""

    __slots__ = ("called", "guards")

    def __init__(self, called: AbstractValue, guards: tuple[Guard, ...]) -> None:
        self.called = called
        self.guards = guards


class Decorated(AbstractValue):
    """The function that a decorator is given, while it is found out when it calls it. calls: the conditions of each call."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[tuple[Guard, ...]] = []


class Choice(AbstractValue):
    """One of several values, by which branch was taken."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[AbstractValue, ...]) -> None:
        self.values = values


Spot = tuple[ProjectModule, int, int]
"""Module, line and column from 0."""


class Guard(NamedTuple):
    """A condition under which something is followed.

    Args:
        ranks: it lets through.
        module: in which it is asked.
        node: of the test, or what has to go wrong.
        test: what that is worth.
        is_negated: the test doesn't hold.
        by_leaving: the others have left before.
    """

    ranks: Ranks
    module: ProjectModule
    node: ast.expr | ast.ExceptHandler
    test: AbstractValue = UNKNOWN
    is_negated: bool = False
    by_leaving: bool = False


class Question(NamedTuple):
    """The test of a condition.

    Args:
        ranks: it lets through.
        value: of it.
        node: of it.
        module: in which it stands.
    """

    ranks: RankTest
    value: AbstractValue
    node: ast.expr
    module: ProjectModule

    def guards(self, *, holds: bool, by_leaving: bool = False) -> list[Guard]:
        """List the conditions of what is done where the test holds, or where it doesn't; a constant is none."""
        if isinstance(self.node, ast.Constant):
            return []
        passed = (self.ranks.holds if holds else self.ranks.fails) or (Ranks.ALL,)
        return [Guard(ranks, self.module, self.node, self.value, not holds, by_leaving) for ranks in passed]


class LoopSpot(NamedTuple):
    """A loop that is followed.

    Args:
        number: of its statement.
        spot: where it stands.
        names: of the function in which it stands.
        variable: that it counts by, if that is a name.
    """

    number: int
    spot: Spot
    names: dict[str, AbstractValue]
    variable: str = ""


class WrittenSetting(NamedTuple):
    """A variable of the environment that is written. is_default: only where it isn't set."""

    name: str
    value: AbstractValue
    node: ast.expr
    spot: Spot
    guards: tuple[Guard, ...]
    is_default: bool
    is_reached: bool


class CallRecord:
    """A call while the script is followed: what is found out about its result is added."""

    __slots__ = (
        "arguments", "attributes", "attributes_set", "callers", "escapes", "guards", "guards_at_callers", "is_reached", "iterations",
        "loops", "name", "number", "receiver", "roles", "spot", "statement", "within",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        name: str,
        roles: tuple[Role, ...],
        arguments: list[tuple[str, AbstractValue, ast.expr]],
        receiver: tuple[AbstractValue, ast.expr] | None,
        spot: Spot,
        guards: tuple[Guard, ...],
        loops: tuple[LoopSpot, ...],
        within: tuple[str, ...],
        callers: tuple[Spot, ...],
        guards_at_callers: tuple[int, ...],
        statement: ast.stmt | None,
        is_reached: bool,
    ) -> None:
        self.number = number
        self.name = name
        self.roles = roles
        self.arguments = arguments
        self.receiver = receiver
        self.spot = spot
        self.guards = guards
        self.loops = loops
        self.within = within
        self.callers = callers
        self.guards_at_callers = guards_at_callers
        self.statement = statement
        self.is_reached = is_reached
        self.attributes: dict[str, AbstractValue] = {}
        self.attributes_set: list[
            tuple[str, AbstractValue, ast.Attribute, ProjectModule, int, tuple[LoopSpot, ...]]
        ] = []
        self.escapes: list[tuple[str, Spot]] = []
        self.iterations: list[tuple[Spot, tuple[LoopSpot, ...], tuple[Guard, ...], bool]] = []

    def release(self) -> None:
        """Let go of what may lead back to it."""
        for added in (self.arguments, self.attributes, self.attributes_set, self.escapes, self.iterations):
            added.clear()


def choice(values: Iterable[AbstractValue]) -> AbstractValue:
    """One of these; of too many nothing is known."""
    given = tuple(values)
    if not given:
        return UNKNOWN
    first = given[0]
    if all(value is first for value in given):
        return first
    flat: dict[object, AbstractValue] = {}
    for value in given:
        for single in value.values if isinstance(value, Choice) else (value,):
            flat.setdefault(_identity(single), single)
    if len(flat) == 1:
        return next(iter(flat.values()))
    return Choice(tuple(flat.values())) if len(flat) <= MAX_CHOICES else UNKNOWN


def _identity(value: AbstractValue) -> object:
    if isinstance(value, Constant):
        return "constant", type(value.value), repr(value.value)
    if isinstance(value, LibraryName):
        return "library", value.name
    if isinstance(value, Quantity):
        return value.kind, value.source
    if isinstance(value, CallResult):
        return "result", value.record.number, value.part
    if isinstance(value, RankTest):
        return "test", value.holds, value.fails
    if isinstance(value, Function):
        return "function", id(value.node), id(value.owner)
    return id(value)


def alternatives(value: AbstractValue) -> tuple[AbstractValue, ...]:
    """All that it may be."""
    return value.values if isinstance(value, Choice) else (value,)


def results_in(value: AbstractValue, depth: int = 4) -> list[CallResult]:
    """List the results of recorded calls that whoever is given the value gets hold of."""
    if isinstance(value, CallResult):
        return [value]
    inner_parts = _INNER.get(type(value))
    if inner_parts is None or not depth:
        return []
    return [result for part in inner_parts(value) for result in results_in(part, depth - 1)]


_INNER: Final[dict[type[AbstractValue], Callable[[Any], Iterable[AbstractValue]]]] = {
    Choice: lambda value: value.values,
    Items: lambda value: value.items,
    Mapping: lambda value: value.items.values(),
    ProjectObject: lambda value: value.attributes.values(),
    MadeOf: lambda value: value.parts,
    Partial: lambda value: (*value.arguments, *value.keywords.values()),
    MethodOf: lambda value: (value.receiver,),
    Function: lambda value: () if value.owner is None else (value.owner,),
}
"""What is in a value that holds others."""
