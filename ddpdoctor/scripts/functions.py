"""Functions and classes of a followed script's project: run with what they are handed; and the record of all that is met on the way."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from ddpdoctor.facts.script import OriginKind, Ranks, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.expressions import ExpressionFollower
from ddpdoctor.scripts.names import dotted
from ddpdoctor.scripts.project import Project
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.rank_tests import any_of
from ddpdoctor.scripts.scopes import FollowedFunction
from ddpdoctor.scripts.values import (
    NONE,
    CallRecord,
    CallResult,
    Constant,
    Decorated,
    Function,
    Guard,
    Items,
    LibraryName,
    MadeOf,
    Mapping,
    ProjectClass,
    ProjectObject,
    Quantity,
    RankTest,
    Spot,
    alternatives,
    choice,
    results_in,
)
from ddpdoctor.scripts.vocabulary import meaning_of

GivenArguments = list[tuple[str, AbstractValue, ast.expr]]

MAX_DEPTH: Final = 14
"""Functions of the project within each other."""
MAX_VISITS: Final = 4
"""Times that a function is followed."""
MAX_VISITS_OF_HELPER: Final = 24
"""Times that one of few lines is followed: what is called on the ranks' behalf everywhere, to wait, to broadcast, to save."""
MAX_HELPER_LINES: Final = 12
MAX_SILENT_VISITS: Final = 3
"""Times that one is followed in which nothing is recorded: it is a helper."""
_READING_OPTIONS: Final = ("fire.Fire",)
"""They call the function that they are handed with the options of the command line."""
_GIVING_SETTINGS: Final = ("hydra.main", "click.command", "draccus.wrap", "pyrallis.wrap")
"""Decorators that call the function with the settings of files, or with the options of the command line."""
_MAIN_ONLY: Final = frozenset(
    {"on_main_process", "on_local_main_process", "rank_zero_only", "master_only", "main_process_only"}
)


class FunctionFollower(ExpressionFollower):
    """Knows what functions and classes of the project do; its arguments are those of a `NameFollower`."""

    def __init__(self, project: Project, main: ProjectModule) -> None:
        super().__init__(project, main)
        self.visits: dict[int, int] = {}
        self.active: set[int] = set()
        self._silent: dict[tuple[int, AbstractValue | None], tuple[int, AbstractValue]] = {}
        self.objects: dict[int, ProjectObject] = {}
        self._decorators: dict[tuple[int, str], tuple[Guard, ...] | None] = {}
        self.is_cut_short = False

    # --- functions and classes of the project -------------------------------------------------------------------------------

    def run_function(self, function: Function, arguments: GivenArguments, caller: Spot | None) -> AbstractValue:
        """Follow a function of the project, and say what it returns."""
        node, here = function.node, self.here
        key = id(node)
        visits = self.visits.get(key, 0)
        silent, last = self._silent.get((key, function.owner), (0, UNKNOWN))
        if silent and (silent >= MAX_SILENT_VISITS or not any(_holds_objects(value) for _, value, _ in arguments)):
            return last
        if key in self.active or len(self.active) >= MAX_DEPTH or visits >= _most_visits(node):
            return UNKNOWN
        self.visits[key] = visits + 1
        names: dict[str, AbstractValue] = {}
        frame = FollowedFunction(function.module, (names, *function.scopes), function.home, function.owner)
        self._bind_parameters(function, arguments, names, frame)
        depths, before = here.depths(), self._recorded()
        if isinstance(function.owner, ProjectObject):
            here.guards += [guard for guard in function.owner.guards if guard not in here.guards]
        if caller:
            here.come_from(caller)
        self.active.add(key)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, frame)
            for decorator in node.decorator_list:
                self._guard_by_decorator(decorator, function)
            self.run_block(node.body, frame)
        except RecursionError:
            self.is_cut_short = True
            return UNKNOWN
        finally:
            self.active.discard(key)
            here.restore(depths)
        if frame.yields:
            # Whoever iterates over a generator iterates over what that was given.
            return MadeOf("yield", tuple(value for _, value, _ in arguments))
        value = choice(frame.returns) if frame.returns else NONE
        if self._recorded() == before:
            self._silent[key, function.owner] = (silent + 1, value)
        return value

    def _recorded(self) -> tuple[int, int]:
        return len(self.here.records), self.here.events

    @abstractmethod
    def run_block(self, statements: list[ast.stmt], frame: FollowedFunction) -> bool:
        """Follow statements; whether whoever comes there always leaves them before their end."""

    def _guard_by_decorator(self, decorator: ast.expr, function: Function) -> None:
        """Come to a decorated function by its decorator: under the conditions that this asks, or under which its name says so."""
        frame = FollowedFunction(function.module, ({}, *function.scopes))
        depths, start = self.here.depths(), len(self.here.records)
        given = self.value(decorator, frame)
        if isinstance(given, Function):
            key = id(given.node), ast.unparse(decorator)
            if key not in self._decorators:
                self._decorators[key] = self._conditions_of(given, decorator, frame)
        # What the decorator does besides is no call of the function's.
        self.here.restore(depths)
        del self.here.records[start:]
        if isinstance(given, Function) and (conditions := self._decorators[key]) is not None:
            self.here.enter(conditions)
            return
        text = dotted(decorator).replace("()", "").rpartition(".")[2]
        meaning = meaning_of(text.removesuffix("_only"))
        ranks = Ranks.ZERO if text in _MAIN_ONLY else None
        if isinstance(meaning, RankTest) and text.endswith("_only"):
            ranks = meaning.holds[0]
        if ranks:
            self.here.guards.append(Guard(ranks, frame.module, decorator))

    def _conditions_of(self, given: Function, decorator: ast.expr, frame: FollowedFunction) -> tuple[Guard, ...] | None:
        """The conditions under which a decorator of the project calls what it decorates; None where that could not be followed."""
        depth, decorated = len(self.here.guards), Decorated()
        at = decorator if isinstance(decorator, ast.Call) else ast.copy_location(ast.Call(decorator, [], []), decorator)
        made = self.apply(given, [("0", decorated, decorator)], at, frame)
        self.apply(made, [("*", UNKNOWN, decorator)], at, frame)
        ways = [guards[depth:] for guards in decorated.calls]
        if len(ways) < 2:
            return ways[0] if ways else None
        passed = any_of([RankTest(tuple(guard.ranks for guard in way), ()) for way in ways]).holds
        return tuple(Guard(ranks, frame.module, decorator) for ranks in passed)

    def _bind_parameters(
        self, function: Function, arguments: GivenArguments, names: dict[str, AbstractValue], frame: FollowedFunction
    ) -> None:
        parameters = function.node.args
        positional = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        defaults = dict(zip(reversed(positional), reversed(parameters.defaults), strict=False))
        defaults |= {
            parameter.arg: default
            for parameter, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
            if default is not None
        }
        if function.owner is not None and positional and not _is_static(function.node):
            names[positional.pop(0)] = function.owner
        known = {*positional, *(parameter.arg for parameter in parameters.kwonlyargs)}
        rest: list[AbstractValue] = []
        more = Mapping({})
        # `main()`, where a decorator gives it the options of the command line.
        is_open = not arguments and bool(getattr(function.node, "decorator_list", ()))
        settings = self._settings_for(function, frame) if is_open else None
        reads_options = False
        for name, value, _ in arguments:
            if name in ("*", "**"):
                is_open = True
                reads_options = (
                    reads_options
                    or isinstance(value, Quantity)
                    or (isinstance(value, CallResult) and value.is_settings)
                )
            elif name.isdecimal():
                if int(name) < len(positional):
                    names[positional[int(name)]] = value
                else:
                    rest.append(value)
            elif name in known:
                names[name] = value
            else:
                more.items[name] = value
        more.is_whole = not is_open
        for name in known - names.keys():
            default = defaults.get(name)
            if reads_options:
                names[name] = meaning_of(name) or Quantity(OriginKind.OPTION, name)
                continue
            if settings:
                names[name] = meaning_of(name) or CallResult(settings, f".{name}")
                continue
            names[name] = (
                UNKNOWN if is_open or default is None else self.value(default, FollowedFunction(function.module, ({},)))
            )
        if parameters.vararg:
            names[parameters.vararg.arg] = UNKNOWN if is_open else Items(rest)
        if parameters.kwarg:
            names[parameters.kwarg.arg] = more

    def _settings_for(self, function: Function, frame: FollowedFunction) -> CallRecord | None:
        """The settings with which a decorator calls a function; None where none does."""
        for decorator in getattr(function.node, "decorator_list", ()):
            maker = self.value(decorator.func if isinstance(decorator, ast.Call) else decorator, frame)
            if isinstance(maker, LibraryName) and maker.name in _GIVING_SETTINGS:
                return self.record(maker.name, (Role.SETTINGS,), [], None, decorator, frame)
        return None

    def _instantiate(self, kind: ProjectClass, arguments: GivenArguments, caller: Spot | None) -> AbstractValue:
        made = ProjectObject(kind, self.here.guards)
        self.filled.append(made.attributes)
        self.objects.setdefault(id(kind.node), made)
        if self.has_keys_as_attributes(kind):
            made.attributes.update(given_by_name(arguments))
        method = self.member(kind, "__init__", made)
        if isinstance(method, Function):
            self.run_function(method, arguments, caller)
        elif arguments:
            # A dataclass, or a library's class made one's own.
            made.attributes.update({name: value for name, value, _ in arguments if name.isidentifier()})
        return made

    # --- recording ----------------------------------------------------------------------------------------------------------

    def record(
        self,
        name: str,
        roles: tuple[Role, ...],
        arguments: GivenArguments,
        receiver: tuple[AbstractValue, ast.expr] | None,
        node: ast.AST,
        frame: FollowedFunction,
    ) -> CallRecord:
        """Tell of a call, or of something else that a rule asks for."""
        here = self.here
        record = CallRecord(
            len(here.records),
            name,
            roles,
            arguments,
            receiver,
            self.spot(node, frame),
            tuple(here.guards),
            tuple(here.loops),
            tuple(here.within),
            tuple(here.callers),
            tuple(here.guards_at_callers),
            frame.statement,
            here.is_reached,
        )
        here.records.append(record)
        return record

    def _escape(self, name: str, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction) -> None:
        """Note that a call that can't be followed gets hold of results; functions of the project it may call itself."""
        for _, value, _ in arguments:
            for result in results_in(value):
                result.record.escapes.append((name, self.spot(node, frame)))
                self.here.events += 1
            for single in alternatives(value):
                if isinstance(single, Function) and id(single.node) not in self.visits:
                    given = Quantity(OriginKind.OPTION) if name in _READING_OPTIONS else UNKNOWN
                    self.run_function(single, [("*", given, node)], self.spot(node, frame))


def _most_visits(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno
    return MAX_VISITS_OF_HELPER if lines < MAX_HELPER_LINES else MAX_VISITS


def _holds_objects(value: AbstractValue) -> bool:
    return isinstance(value, Function | ProjectObject | ProjectClass | Decorated) or bool(results_in(value))


def given_by_name(arguments: GivenArguments) -> Iterator[tuple[str, AbstractValue]]:
    """Yield what is handed over by name: keywords, what dicts and settings hold, and lists of names and values in turn."""
    for name, value, _ in arguments:
        if name.isidentifier():
            yield name, value
            continue
        for single in alternatives(value):
            if isinstance(single, Mapping):
                yield from single.items.items()
            elif isinstance(single, CallResult) and single.is_settings:
                within = f"{single.part}."
                attributes = single.record.attributes.items()
                yield from [(part.removeprefix(within), held) for part, held in attributes if part.startswith(within)]
            elif isinstance(single, Items):
                turns = zip(single.items[::2], single.items[1::2], strict=False)
                yield from ((str(key.value), held) for key, held in turns if isinstance(key, Constant))


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    return any(dotted(decorator) == "staticmethod" for decorator in getattr(node, "decorator_list", ()))
