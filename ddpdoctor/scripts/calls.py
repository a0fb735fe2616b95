"""Calls of a followed script: functions of the project are followed, those of libraries recorded where they have a role."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from ddpdoctor.facts.script import ITEM, OriginKind, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.functions import FunctionFollower, GivenArguments, given_by_name
from ddpdoctor.scripts.names import dotted
from ddpdoctor.scripts.rank_tests import RANK_KINDS, mentions_rank
from ddpdoctor.scripts.scopes import FollowedFunction
from ddpdoctor.scripts.values import (
    NONE,
    TURN,
    CallResult,
    Choice,
    Constant,
    Decorated,
    Function,
    Items,
    LibraryName,
    MadeOf,
    Mapping,
    MethodOf,
    OnSomeRanks,
    Partial,
    ProjectClass,
    ProjectObject,
    Quantity,
    RankTest,
    WrittenSetting,
    alternatives,
    choice,
)
from ddpdoctor.scripts.vocabulary import DISTRIBUTED_TEST, library_calls, meaning_of, roles_of

MAX_CALLED_CHOICES: Final = 4
"""Functions that one call may be of, and that are followed."""
_NUMBERING: Final = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
"""They hand the function the process's number, first of all."""
ENDING: Final = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort"})
_SAME: Final = frozenset(
    {
        "builtins.int",
        "builtins.str",
        "builtins.float",
        "builtins.bool",
        "builtins.iter",
        "builtins.reversed",
        "copy.copy",
        "copy.deepcopy",
    }
)
"""They return what they are given, as far as ranks and loaders go."""
_SAME_METHODS: Final = frozenset(
    {
        "cuda",
        "to",
        "train",
        "eval",
        "half",
        "bfloat16",
        "float",
        "cpu",
        "strip",
        "lower",
        "copy",
        "requires_grad_",
        "clone",
    }
)
BASE: Final = "super()"
_FIRST: Final = "[0]"
"""What several results begin with is the one that has the methods: `engine, *_ = deepspeed.initialize()`."""


class CallFollower(FunctionFollower):
    """Knows what calls do; its arguments are those of a `NameFollower`."""

    def follow_call(self, node: ast.Call, frame: FollowedFunction) -> AbstractValue:
        """What a call returns; what it does is recorded."""
        function = node.func
        if isinstance(function, ast.Attribute):
            if _is_super(function):
                callee = self._of_super(function.attr, frame)
            else:
                receiver = self.value(function.value, frame)
                callee = self._method(receiver, function.attr, frame)
        else:
            callee = self.value(function, frame)
        arguments = self._arguments(node, frame)
        value = self.apply(callee, arguments, node, frame)
        if isinstance(value, CallResult) and isinstance(frame.owner, ProjectObject) and _is_super(function):
            # The object is what its base class is: whoever iterates over it iterates over that.
            frame.owner.attributes[BASE] = value
        if value is UNKNOWN or isinstance(value, MadeOf | MethodOf | Constant):
            # What its name says is better than nothing: its body may be installed, or too winding.
            name = dotted(function).rpartition(".")[2]
            meaning = meaning_of(name)
            if isinstance(meaning, RankTest):
                return meaning
            if isinstance(meaning, Quantity) and name.lower().startswith("get"):
                # With arguments it is one of a group, or of a part of the mesh.
                return MadeOf(f"{name}()", (meaning,)) if arguments else meaning
        return value

    def _method(self, receiver: AbstractValue, name: str, frame: FollowedFunction) -> AbstractValue:
        if isinstance(receiver, Choice):
            return choice(self._method(single, name, frame) for single in receiver.values)
        if isinstance(receiver, CallResult):
            found = receiver.record.attributes.get(f"{receiver.part}.{name}")
            return found or MethodOf(receiver, name)
        if (
            isinstance(receiver, MadeOf | Quantity | RankTest | Items | Mapping | Constant | Function)
            or receiver is UNKNOWN
        ):
            return MethodOf(receiver, name)
        found = self.attribute(receiver, name, frame)
        return MethodOf(receiver, name) if found is UNKNOWN or isinstance(found, Quantity | RankTest) else found

    def _of_super(self, name: str, frame: FollowedFunction) -> AbstractValue:
        if frame.home is not None and frame.owner is not None:
            for base in self.bases(frame.home):
                if isinstance(base, ProjectClass) and (found := self.member(base, name, frame.owner)) is not None:
                    return found
                if isinstance(base, LibraryName) and name == "__init__" and roles_of(base.name):
                    return base
        return LibraryName(f"builtins.object.{name}")

    def _arguments(self, node: ast.Call, frame: FollowedFunction) -> GivenArguments:
        given: GivenArguments = []
        for position, argument in enumerate(node.args):
            value = self.value(argument, frame)
            if not isinstance(argument, ast.Starred):
                given.append((str(position), value, argument))
            elif isinstance(value, Items):
                given += [(str(position + place), item, argument.value) for place, item in enumerate(value.items)]
            else:
                given.append(("*", value, argument.value))
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                given.append((keyword.arg, value, keyword.value))
                continue
            for single in alternatives(value):
                if isinstance(single, Mapping):
                    given += [(name, item, keyword.value) for name, item in single.items.items()]
            if not (isinstance(value, Mapping) and value.is_whole):
                given.append(("**", value, keyword.value))
        return given

    def apply(
        self, callee: AbstractValue, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction
    ) -> AbstractValue:
        """What a callee returns for arguments."""
        if isinstance(callee, Function | ProjectClass) and not self.here.is_reached and callee.module is not self.main:
            # Nobody knows who comes here: it isn't worth a way through the whole project.
            self._escape(f"{dotted(node.func)}()", arguments, node, frame)
            return UNKNOWN
        if isinstance(callee, Function):
            return self.run_function(callee, arguments, self.spot(node, frame))
        if isinstance(callee, LibraryName):
            return self._call_library(callee.name, arguments, node, frame)
        if isinstance(callee, MethodOf):
            return self._call_method(callee, arguments, node, frame)
        if isinstance(callee, ProjectClass):
            return self._instantiate(callee, arguments, self.spot(node, frame))
        if isinstance(callee, Choice):
            followed = [single for single in callee.values if not isinstance(single, MethodOf)][:MAX_CALLED_CHOICES]
            called = [single for single in callee.values if isinstance(single, MethodOf) or single in followed]
            return choice(self.apply(single, arguments, node, frame) for single in called)
        if isinstance(callee, Partial):
            first = [(str(place), value, node) for place, value in enumerate(callee.arguments)]
            moved = [
                (str(int(name) + len(first)) if name.isdecimal() else name, value, at) for name, value, at in arguments
            ]
            later = [(name, value, node) for name, value in callee.keywords.items()]
            return self.apply(callee.function, [*first, *moved, *later], node, frame)
        if isinstance(callee, ProjectObject):
            method = self.member(callee.kind, "__call__", callee)
            return self.apply(method, arguments, node, frame) if method else UNKNOWN
        if isinstance(callee, OnSomeRanks):
            depths = self.here.depths()
            self.here.enter(callee.guards)
            value = self.apply(callee.called, arguments, node, frame)
            self.here.restore(depths)
            return value
        if isinstance(callee, Decorated):
            callee.calls.append(tuple(self.here.guards))
            self.here.events += 1
            return UNKNOWN
        if isinstance(callee, CallResult):
            roles = (Role.FORWARD,) if Role.WRAP in callee.record.roles and not callee.part else ()
            if roles:
                return CallResult(
                    self.record(f"{callee.record.name}()()", roles, arguments, (callee, node.func), node, frame)
                )
        else:
            known = roles_of(f"{callee.how}()") if isinstance(callee, MadeOf) else None
            if known:
                self.record(*known, arguments, (callee, node.func), node, frame)
            self._escape(f"{dotted(node.func)}()", arguments, node, frame)
        return MadeOf("()", (callee, *(value for _, value, _ in arguments)))

    # --- libraries ----------------------------------------------------------------------------------------------------------

    def _call_library(
        self, name: str, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction
    ) -> AbstractValue:
        table = library_calls()
        first = arguments[0][1] if arguments else UNKNOWN
        if name in table.quantities and not arguments:
            return Quantity(table.quantities[name], name)
        if name in table.distributed_tests:
            return DISTRIBUTED_TEST
        if name in ("os.environ.get", "os.getenv"):
            return self.setting(first)
        if name in ("os.environ.setdefault", "os.environ.update", "os.environ.pop", "os.putenv"):
            self._write_settings(name, arguments, node, frame)
            return NONE
        known = roles_of(name)
        if known and not (Role.SETTINGS in known[1] and _is_of_own_file(arguments)):
            record = self.record(*known, arguments, None, node, frame)
            if Role.SETTINGS in record.roles:
                self._hand_to_settings(CallResult(record), arguments, frame)
            if not {Role.PREPARE, Role.ENGINE}.isdisjoint(record.roles):
                self._escape(name, arguments, node, frame)
            if Role.SPAWN in record.roles:
                self._spawn(name, arguments, node, frame)
            if Role.COLLECTIVE in record.roles:
                self._write_over(arguments)
            return CallResult(record)
        if name in _SAME and len(arguments) == 1:
            if name == "builtins.iter":
                self.iterate(first, self.spot(node, frame))
            return first
        if name == "builtins.next" and self.here.loops and isinstance(node.args[0] if node.args else None, ast.Name):
            # One batch a turn: the loop goes over the loader, though it counts steps.
            self.iterate(first, self.here.loops[-1].spot, -1)
        if name == "builtins.getattr" and len(arguments) > 1 and isinstance(arguments[1][1], Constant):
            attribute = str(arguments[1][1].value)
            return self.by_name(attribute, self.attribute(first, attribute, frame))
        if name == "builtins.setattr" and len(arguments) > 2 and isinstance(arguments[1][1], Constant):
            for single in alternatives(first):
                self.store(single, str(arguments[1][1].value), arguments[2][1], frame)
            return NONE
        if name == "builtins.len":
            return MadeOf("builtins.len()", ())
        if name == "builtins.dict":
            return Mapping(
                {key: value for key, value, _ in arguments if key.isidentifier()},
                is_whole=len(arguments) == len(node.keywords),
            )
        if name == "collections.defaultdict":
            held = {ITEM: self.apply(first, [], node, frame)} if isinstance(first, Function | ProjectClass) else {}
            return Mapping(held, is_whole=False)
        if name in ("builtins.list", "builtins.tuple") and isinstance(first, Items):
            return Items(list(first.items))
        if name == "functools.partial" and arguments:
            return Partial(
                first,
                [value for key, value, _ in arguments[1:] if key.isdecimal()],
                {key: value for key, value, _ in arguments if key.isidentifier()},
            )
        if name.partition(".")[0] not in table.harmless:
            self._escape(name, arguments, node, frame)
        return MadeOf(f"{name}()", tuple(value for _, value, _ in arguments))

    def _hand_to_settings(self, settings: CallResult, arguments: GivenArguments, frame: FollowedFunction) -> None:
        """Let settings hold what they are made of, or what a method of theirs is handed."""
        for name, value in given_by_name(arguments):
            self.store(settings, name, value, frame)

    def _write_over(self, arguments: GivenArguments) -> None:
        """Let lists hold what other ranks had in them: `broadcast_object_list(values)`."""
        for _, value, _ in arguments:
            for single in alternatives(value):
                if isinstance(single, Items):
                    single.items[:] = [UNKNOWN] * len(single.items)

    def _spawn(self, name: str, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction) -> None:
        """Follow the function that started processes run."""
        by_name = {given: value for given, value, _ in arguments}
        is_process = name.endswith(".Process")
        spellings = ("target",) if is_process else ("0", "fn", "function")
        function = next((by_name[spelling] for spelling in spellings if spelling in by_name), UNKNOWN)
        passed = by_name.get("args", by_name.get("1", Items([])))
        index = Quantity(OriginKind.SPAWN_INDEX, name)
        values: list[AbstractValue] = [index] if name in _NUMBERING else []
        given: GivenArguments = []
        if isinstance(passed, Items):
            values += _numbered(passed.items, index) if is_process else passed.items
        else:
            given.append(("*", passed, node))
        given += [(str(place), value, node) for place, value in enumerate(values)]
        if isinstance(more := by_name.get("kwargs"), Mapping):
            given += [(key, value, node) for key, value in more.items.items()]
        # The loop in which one process after the other is started is none of theirs.
        loops, self.here.loops = self.here.loops, []
        self.apply(function, given, node, frame)
        self.here.loops = loops

    def _write_settings(self, name: str, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction) -> None:
        values = [value for _, value, _ in arguments]
        if name.endswith("update"):
            for value in values:
                if isinstance(value, Mapping):
                    for key, item in value.items.items():
                        self.write_setting(Constant(key), item, node, frame)
            for key, item, at in arguments:
                if key.isidentifier():
                    self.write_setting(Constant(key), item, at, frame)
        elif len(values) > 1 and not name.endswith("pop"):
            self.write_setting(values[0], values[1], node, frame, is_default=name.endswith("setdefault"))

    def write_setting(
        self,
        key: AbstractValue,
        value: AbstractValue,
        node: ast.expr,
        frame: FollowedFunction,
        *,
        is_default: bool = False,
    ) -> None:
        """Note that a variable of the environment is written."""
        if isinstance(key, Constant):
            here = self.here
            self.written_settings.append(
                WrittenSetting(
                    str(key.value),
                    value,
                    node,
                    self.spot(node, frame),
                    tuple(here.guards),
                    is_default,
                    here.is_reached,
                )
            )

    def _call_method(
        self, callee: MethodOf, arguments: GivenArguments, node: ast.Call, frame: FollowedFunction
    ) -> AbstractValue:
        receiver, name = callee.receiver, callee.name
        if isinstance(receiver, Mapping):
            return self._call_dict(receiver, name, arguments, frame)
        if isinstance(receiver, Items) and name in ("append", "extend", "insert"):
            if arguments:
                receiver.items.append(arguments[-1][1])
                self.filled.append(receiver.items)
            return NONE
        if isinstance(receiver, CallResult) and name == "get" and arguments and isinstance(arguments[0][1], Constant):
            return self.item(receiver, arguments[0][1])
        if isinstance(receiver, CallResult) and receiver.is_settings:
            self._hand_to_settings(receiver, arguments, frame)
        full = (
            f"{receiver.record.name}().{name}"
            if isinstance(receiver, CallResult) and receiver.part in ("", _FIRST)
            else f"?.{name}"
        )
        known = roles_of(full)
        is_same = name in _SAME_METHODS
        if known:
            at = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            record = self.record(*known, arguments, (receiver, at), node, frame)
            if Role.PREPARE in record.roles:
                self._escape(full, arguments, node, frame)
            if Role.SPAWN in record.roles:
                self._spawn(full, arguments, node, frame)
            return receiver if is_same else CallResult(record)
        if is_same:
            return receiver
        if not _is_harmless(receiver):
            self._escape(full, arguments, node, frame)
        return MadeOf(f"{full}()", (receiver, *(value for _, value, _ in arguments)))

    def _call_dict(
        self, receiver: Mapping, name: str, arguments: GivenArguments, frame: FollowedFunction
    ) -> AbstractValue:
        values = [value for _, value, _ in arguments]
        if name in ("get", "pop", "setdefault") and values and isinstance(values[0], Constant):
            key = str(values[0].value)
            if key in receiver.items:
                return receiver.items[key]
            otherwise = values[1] if len(values) > 1 else NONE
            return otherwise if receiver.is_whole else choice((UNKNOWN, otherwise))
        if name == "update":
            self.filled.append(receiver.items)
            for key, value, _ in arguments:
                if key.isidentifier():
                    receiver.items[key] = value
                elif isinstance(value, Mapping):
                    receiver.items.update(value.items)
                else:
                    receiver.is_whole = False
            return NONE
        if name == "copy":
            return Mapping(dict(receiver.items), receiver.is_whole)
        if name in ("values", "items"):
            held = list(receiver.items.values()) if receiver.is_whole else [*receiver.items.values(), UNKNOWN]
            return Items(held if name == "values" else [Items([UNKNOWN, value]) for value in held])
        return UNKNOWN

    def tell_of_yield(self, node: ast.Yield | ast.YieldFrom, frame: FollowedFunction) -> None:
        """Tell that a generator gives something out, where it does so in a loop."""
        if self.here.loops:
            self.record("yield", (Role.YIELD,), [], None, node, frame)


def _is_of_own_file(arguments: GivenArguments) -> bool:
    """Whether settings are read from a file of the rank's own: its number is in what is handed over."""
    return any(mentions_rank(value) for name, value, _ in arguments if not name.isidentifier())


def _numbered(values: Sequence[AbstractValue], index: Quantity) -> list[AbstractValue]:
    """What the function of a process is handed, of which the first that may be it is the process's number."""
    for place, value in enumerate(values):
        is_counted = isinstance(value, MadeOf) and value.how in (TURN, ITEM)
        if value is UNKNOWN or is_counted or (isinstance(value, Quantity) and value.kind in RANK_KINDS):
            return [*values[:place], index, *values[place + 1 :]]
    return list(values)


def _is_super(function: ast.expr) -> bool:
    """Whether a method of the base class is called."""
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Call)
        and dotted(function.value.func) == "super"
    )


def _is_harmless(receiver: AbstractValue) -> bool:
    if isinstance(receiver, MadeOf):
        return receiver.how.partition(".")[0] in library_calls().harmless
    return isinstance(receiver, Constant | Quantity | CallResult | Items)
