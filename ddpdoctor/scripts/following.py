"""Follows a script from its first line, through the functions of its project that it calls, without running anything.

Both branches of each condition are followed, loops once, and each function as often as it is called from elsewhere. What happens on the way
is recorded with the conditions, loops and callers around it. What can't be followed is a value of which nothing is known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ddpdoctor.facts.script import ITEM, Ranks, Role
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.calls import ENDING, CallFollower
from ddpdoctor.scripts.expressions import asks_for_rank
from ddpdoctor.scripts.names import dotted
from ddpdoctor.scripts.project import Project
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.rank_tests import NO_RANK_TEST, all_of, compared, flag_of, opposite_of, splits, truth_of
from ddpdoctor.scripts.scopes import FollowedFunction
from ddpdoctor.scripts.telling_functions import speaks_of_training, telling_functions
from ddpdoctor.scripts.values import (
    CallResult,
    Constant,
    Function,
    Guard,
    Items,
    LibraryName,
    LoopSpot,
    MadeOf,
    Mapping,
    ModuleValue,
    ProjectClass,
    ProjectObject,
    Question,
    alternatives,
    choice,
    results_in,
)
from ddpdoctor.scripts.vocabulary import roles_of

MAX_STATEMENTS: Final = 12_000
"""Followed in one script; there is no end to what a large project can call."""
MAX_STATEMENTS_UNTOLD: Final = 600
"""Followed in one where no file that was read so far speaks of torch or of a framework: such a project has nothing to tell."""


class ScriptFollower(CallFollower):
    """Follows a script; its arguments are those of an `ExpressionFollower`."""

    def __init__(self, project: Project, main: ProjectModule) -> None:
        super().__init__(project, main)
        self._left = MAX_STATEMENTS

    def follow(self, *, whole: bool) -> None:
        """Follow the script to its end.

        Args:
            whole: then also the functions that it doesn't come to: somebody else may call them.
        """
        module = self.main
        self.run_block(module.tree.body, FollowedFunction(module, (module.values,)))
        if whole:
            self.here.is_reached = False
            for value in self._telling(module):
                if isinstance(value, ProjectClass):
                    self._follow_class(value)
                else:
                    self._follow_unreached(value)

    def _telling(self, module: ProjectModule) -> Iterator[Function | ProjectClass]:
        """Yield the module's functions and classes that may come to a call with a role."""
        own: list[tuple[str, Function | ProjectClass]] = []
        names: list[str] = []
        for name in list(module.bindings):
            for value in alternatives(self.global_value(module, name) or UNKNOWN):
                if isinstance(value, Function | ProjectClass) and value.module is module:
                    own.append((name, value))
                    if isinstance(value, ProjectClass) and self._holds_results(value):
                        names.append(name)
                elif results_in(value) or (isinstance(value, LibraryName) and roles_of(value.name)):
                    names.append(name)
        found = telling_functions(((name, value.node) for name, value in own), module.source, names)
        return (value for _, value in own if id(value.node) in found)

    def _holds_results(self, kind: ProjectClass) -> bool:
        """Whether the objects of a class may hold results of calls that stand elsewhere."""
        made = self.objects.get(id(kind.node))
        return (made is not None and bool(results_in(made))) or any(
            isinstance(base, ProjectClass) and base.module is not kind.module for base in self.bases(kind)
        )

    def _follow_unreached(self, function: Function) -> None:
        if id(function.node) not in self.visits:
            self.run_function(function, [], None)

    def _follow_class(self, kind: ProjectClass) -> None:
        made = self.objects.get(id(kind.node)) or ProjectObject(kind)
        self.filled.append(made.attributes)
        for name in sorted(kind.methods, key=lambda name: name != "__init__"):
            self._follow_unreached(Function(kind.methods[name], kind.module, kind.scopes, made, kind))

    def run_block(self, statements: list[ast.stmt], frame: FollowedFunction) -> bool:
        """Follow statements; whether whoever comes there always leaves them before their end."""
        guards = self.here.guards
        depth = len(guards)
        ended = self._run(statements, frame)
        del guards[depth:]
        return ended

    def _run(self, statements: Sequence[ast.stmt], frame: FollowedFunction) -> bool:
        for statement in statements:
            self._left -= 1
            if self._left == MAX_STATEMENTS - MAX_STATEMENTS_UNTOLD and not self._may_tell():
                self._left = 0
            if self._left < 0:
                self.is_cut_short = True
                return False
            frame.statement = statement
            handler = _STATEMENTS.get(type(statement))
            if handler is not None and handler(self, statement, frame):
                return True
        return False

    def _may_tell(self) -> bool:
        return any(map(speaks_of_training, (self.main, *self.project.modules)))

    # --- simple statements ----------------------------------------------------------------------------------------------------

    def _expr(self, node: ast.Expr, frame: FollowedFunction) -> bool:
        if isinstance(node.value, ast.Constant):
            return False
        value = self.value(node.value, frame)
        return isinstance(value, MadeOf) and value.how.removesuffix("()") in ENDING

    def _assign(self, node: ast.Assign, frame: FollowedFunction) -> bool:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return False

    def _ann_assign(self, node: ast.AnnAssign, frame: FollowedFunction) -> bool:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, frame), frame)
        return False

    def _aug_assign(self, node: ast.AugAssign, frame: FollowedFunction) -> bool:
        value = self.value(node.value, frame)
        if isinstance(node.target, ast.Name):
            old = self.look_up(node.target.id, frame)
            if isinstance(old, Items) and isinstance(value, Items):
                old.items += value.items
                self.filled.append(old.items)
            else:
                self.assign(node.target, MadeOf("+", (old, value)), frame)
        else:
            self.assign(node.target, MadeOf("+", (self.value(node.target, frame), value)), frame)
        return False

    def _return(self, node: ast.Return, frame: FollowedFunction) -> bool:
        frame.returns.append(self.value(node.value, frame))
        return True

    def _leave(self, node: ast.Raise | ast.Break | ast.Continue, frame: FollowedFunction) -> bool:
        if isinstance(node, ast.Break) and splits(tuple(guard.ranks for guard in self.here.guards)):
            self.record("break", (Role.LEAVE,), [], None, node, frame)
        return True

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: FollowedFunction) -> bool:
        scopes = () if frame.scopes[0] is frame.module.values else self.kept(frame.scopes)
        self._bind(node.name, Function(node, frame.module, scopes), frame)
        return False

    def _class(self, node: ast.ClassDef, frame: FollowedFunction) -> bool:
        scopes = () if frame.scopes[0] is frame.module.values else self.kept(frame.scopes)
        self._bind(node.name, ProjectClass(node, frame.module, scopes), frame)
        return False

    def _import(self, node: ast.Import | ast.ImportFrom, frame: FollowedFunction) -> bool:
        for name, value in self.imported(node, frame):
            self._bind(name, value, frame)
        return False

    def _global(self, node: ast.Global, frame: FollowedFunction) -> bool:
        frame.globals.update(node.names)
        return False

    def _assert(self, node: ast.Assert, frame: FollowedFunction) -> bool:
        self.value(node.test, frame)
        return False

    # --- binding ----------------------------------------------------------------------------------------------------------------

    def _bind(self, name: str, value: AbstractValue, frame: FollowedFunction) -> None:
        if name in frame.globals:
            old = frame.module.values.get(name)
            frame.module.values[name] = choice((old, value)) if old is not None and frame.branches else value
        else:
            frame.names[name] = value

    def assign(self, target: ast.expr, value: AbstractValue, frame: FollowedFunction) -> None:
        """Bind a target to a value."""
        if isinstance(target, ast.Name):
            self._bind(target.id, value, frame)
        elif isinstance(target, ast.Tuple | ast.List):
            for place, part in enumerate(target.elts):
                self.assign(part, self._part(value, place, len(target.elts)), frame)
        elif isinstance(target, ast.Attribute):
            for holder in alternatives(self.value(target.value, frame)):
                if isinstance(holder, CallResult):
                    self._note_attribute(holder, target, value, frame)
                self.store(holder, target.attr, value, frame)
        elif isinstance(target, ast.Subscript):
            key = self.value(target.slice, frame)
            for holder in alternatives(self.value(target.value, frame)):
                self._store_item(holder, key, value, target, frame)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN, frame)

    def _part(self, value: AbstractValue, place: int, count: int) -> AbstractValue:
        parts = []
        for single in alternatives(value):
            if isinstance(single, Items) and len(single.items) == count:
                parts.append(single.items[place])
            elif isinstance(single, CallResult):
                parts.append(CallResult(single.record, f"{single.part}[{place}]"))
            elif isinstance(single, MadeOf) and single.how == ITEM:
                parts.append(single)
            else:
                parts.append(UNKNOWN)
        return choice(parts)

    def _note_attribute(
        self, holder: CallResult, target: ast.Attribute, value: AbstractValue, frame: FollowedFunction
    ) -> None:
        name = f"{holder.part}.{target.attr}"
        here = self.here
        holder.record.attributes_set.append((name, value, target, frame.module, len(here.records), tuple(here.loops)))

    def store(self, holder: AbstractValue, name: str, value: AbstractValue, frame: FollowedFunction) -> None:
        """Let an attribute of a holder, or a key of a dict or of settings, be a value."""
        attributes: dict[str, AbstractValue]
        if isinstance(holder, ProjectObject):
            attributes = holder.attributes
        elif isinstance(holder, CallResult):
            attributes = holder.record.attributes
            if frame.branches:
                # Where the branch isn't taken it stays what it was.
                attributes.setdefault(f"{holder.part}.{name}", self.attribute(holder, name, frame))
            name = f"{holder.part}.{name}"
        elif isinstance(holder, ModuleValue):
            attributes = holder.module.values
        elif isinstance(holder, Mapping):
            attributes = holder.items
            self.filled.append(attributes)
        else:
            self.set_on_unknown.setdefault(name, []).append(value)
            return
        old = attributes.get(name)
        if old is None or not frame.branches:
            attributes[name] = value
            return
        guards = self.here.guards
        flag = flag_of(old, value, opposite_of(guards[-1].ranks)) if guards else None
        attributes[name] = flag or choice((old, value))

    def _store_item(
        self,
        holder: AbstractValue,
        key: AbstractValue,
        value: AbstractValue,
        target: ast.Subscript,
        frame: FollowedFunction,
    ) -> None:
        if isinstance(holder, LibraryName) and holder.name == "os.environ":
            self.write_setting(key, value, target, frame)
        elif isinstance(holder, Mapping) or (isinstance(holder, CallResult) and holder.is_settings):
            if isinstance(key, Constant):
                self.store(holder, str(key.value), value, frame)
            elif isinstance(holder, Mapping):
                holder.is_whole = False

    # --- branches -----------------------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If, frame: FollowedFunction) -> bool:
        question = self.question(node.test, frame)
        known = _known_truth(question, frame)
        if known is None and not self.here.loops and _asks_for_nothing(question, frame):
            # In a loop it may have got a value in the turn before.
            known = False
        if known is not None:
            return self._run(node.body if known else node.orelse, frame)
        before, start = dict(frame.names), len(self.here.records)
        left_body = self._branch(node.body, question.guards(holds=True), frame)
        after_body, middle = dict(frame.names), len(self.here.records)
        _replace(frame.names, before)
        left_else = self._branch(node.orelse, question.guards(holds=False), frame)
        self._mark_alone(start, middle, question)
        if left_body and left_else:
            return True
        if left_else:
            _replace(frame.names, after_body)
        elif not left_body:
            flags = _flags(after_body, frame.names, question)
            _merge(frame.names, after_body)
            frame.names.update(flags)
        if left_body or left_else:
            passed = question.guards(holds=not left_body, by_leaving=True)
            if isinstance((node.body if left_body else node.orelse)[-1], ast.Raise):
                # It ends the job, and leaves nobody alone.
                passed = [guard for guard in passed if not splits((guard.ranks,))]
            self.here.enter(passed)
        return False

    def _mark_alone(self, start: int, middle: int, question: Question) -> None:
        """Of two branches of which one starts the ranks, the other is for a process alone."""
        branches = self.here.records[start:middle], self.here.records[middle:]
        starts = [
            any(Role.SPAWN in record.roles for record in branch)
            and any(Role.PROCESS_GROUP in record.roles for record in branch)
            for branch in branches
        ]
        if starts[0] is not starts[1]:
            guard = Guard(Ranks.NOT_DISTRIBUTED, question.module, question.node, question.value, is_negated=starts[0])
            for record in branches[starts[0]]:
                record.guards = (guard, *record.guards)
                record.guards_at_callers = tuple(count + 1 for count in record.guards_at_callers)

    def _branch(self, statements: list[ast.stmt], passed: Sequence[Guard], frame: FollowedFunction) -> bool:
        guards = self.here.guards
        depth = len(guards)
        self.here.enter(passed)
        frame.branches += 1
        ended = self._run(statements, frame)
        frame.branches -= 1
        del guards[depth:]
        return ended

    def _try(self, node: ast.Try, frame: FollowedFunction) -> bool:
        left = self._run(node.body, frame)
        after_body = dict(frame.names)
        handlers_left = True
        for handler in node.handlers:
            if handler.name:
                frame.names[handler.name] = UNKNOWN
            failed = Guard(Ranks.MAY_BE_SOME, frame.module, handler.type or handler)
            handlers_left = self._branch(handler.body, (failed,), frame) and handlers_left
            _merge(frame.names, after_body)
            after_body = dict(frame.names)
        if not left:
            left_else = self._run(node.orelse, frame)
            left = left_else
        ended = left and handlers_left
        return self._run(node.finalbody, frame) or ended

    def _match(self, node: ast.Match, frame: FollowedFunction) -> bool:
        subject = self.value(node.subject, frame)
        before = dict(frame.names)
        depth = len(self.here.guards)
        by_leaving: list[Guard] = []
        for case in node.cases:
            question = self._question_of_case(case, node.subject, subject, frame)
            left = self._branch(case.body, question.guards(holds=True), frame)
            _merge(frame.names, before)
            # Whoever comes to the next one has not come to this.
            self.here.enter(question.guards(holds=False))
            if left:
                by_leaving += question.guards(holds=False, by_leaving=True)
        del self.here.guards[depth:]
        self.here.enter(by_leaving)
        return False

    def _question_of_case(
        self, case: ast.match_case, node: ast.expr, subject: AbstractValue, frame: FollowedFunction
    ) -> Question:
        """What a case asks: of several values whether it is one of them."""
        patterns = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
        values = [
            self.value(pattern.value, frame) if isinstance(pattern, ast.MatchValue) else Constant(pattern.value)
            for pattern in patterns
            if isinstance(pattern, ast.MatchValue | ast.MatchSingleton)
        ]
        if len(values) == len(patterns):
            is_one = len(values) == 1
            asked = truth_of(
                compared(subject, ast.Eq() if is_one else ast.In(), values[0] if is_one else Items(values))
            )
        else:
            is_any = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            asked = NO_RANK_TEST if is_any else truth_of(MadeOf("compare", (subject,)))
        guard = self.question(case.guard, frame) if case.guard else None
        tests = [asked, guard.ranks] if guard else [asked]
        return Question(all_of(tests), guard.value if guard else subject, guard.node if guard else node, frame.module)

    # --- loops and context managers -------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor, frame: FollowedFunction) -> bool:
        iterated = self.value(node.iter, frame)
        spot = self.spot(node, frame)
        self.iterate(iterated, spot)
        self.assign(node.target, self.item_of(iterated), frame)
        variable = node.target.id if isinstance(node.target, ast.Name) else ""
        self._loop(node.body, LoopSpot(id(node), spot, frame.names, variable), (), frame)
        self._run(node.orelse, frame)
        return False

    def _while(self, node: ast.While, frame: FollowedFunction) -> bool:
        passed = self.question(node.test, frame).guards(holds=True)
        self._loop(node.body, LoopSpot(id(node), self.spot(node, frame), frame.names), passed, frame)
        self._run(node.orelse, frame)
        is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return is_endless and not any(isinstance(inner, ast.Break) for inner in ast.walk(node))

    def _loop(self, body: list[ast.stmt], loop: LoopSpot, passed: Sequence[Guard], frame: FollowedFunction) -> None:
        before = dict(frame.names)
        self.here.loops.append(loop)
        self.filled.append(frame.names)
        self._branch(body, passed, frame)
        self.here.loops.pop()
        _merge(frame.names, before)

    def _with(self, node: ast.With | ast.AsyncWith, frame: FollowedFunction) -> bool:
        within = self.here.within
        depth = len(within)
        for item in node.items:
            value = self.value(item.context_expr, frame)
            within += [self._context_name(single, item.context_expr) for single in alternatives(value)]
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, frame)
        ended = self._run(node.body, frame)
        del within[depth:]
        return ended

    def _context_name(self, value: AbstractValue, node: ast.expr) -> str:
        if isinstance(value, MadeOf) and value.how.endswith("()"):
            return value.how.removesuffix("()")
        if isinstance(value, CallResult):
            return value.record.name
        return dotted(node).removesuffix("()")


_STATEMENTS: Final[dict[type[ast.AST], Callable[[ScriptFollower, Any, FollowedFunction], bool]]] = {
    ast.Expr: ScriptFollower._expr,
    ast.Assign: ScriptFollower._assign,
    ast.AnnAssign: ScriptFollower._ann_assign,
    ast.AugAssign: ScriptFollower._aug_assign,
    ast.If: ScriptFollower._if,
    ast.For: ScriptFollower._for,
    ast.AsyncFor: ScriptFollower._for,
    ast.While: ScriptFollower._while,
    ast.With: ScriptFollower._with,
    ast.AsyncWith: ScriptFollower._with,
    ast.Try: ScriptFollower._try,
    ast.Return: ScriptFollower._return,
    ast.Raise: ScriptFollower._leave,
    ast.Break: ScriptFollower._leave,
    ast.Continue: ScriptFollower._leave,
    ast.FunctionDef: ScriptFollower._function,
    ast.AsyncFunctionDef: ScriptFollower._function,
    ast.ClassDef: ScriptFollower._class,
    ast.Import: ScriptFollower._import,
    ast.ImportFrom: ScriptFollower._import,
    ast.Global: ScriptFollower._global,
    ast.Assert: ScriptFollower._assert,
    ast.Match: ScriptFollower._match,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = ScriptFollower._try


def _known_truth(question: Question, frame: FollowedFunction) -> bool | None:
    """Whether a condition holds in every run: the script is run as such, and not for its types."""
    test, value = question.node, question.value
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Compare) and not asks_for_rank(test):
        # Of constants, as a function gets them.
        return bool(value.value) if isinstance(value, Constant) else None
    if isinstance(test, ast.Name) and isinstance(value, Constant):
        # A switch, as a function gets it.
        return value.value if isinstance(value.value, bool) and frame.scopes[0] is not frame.module.values else None
    return False if dotted(test).rpartition(".")[2] == "TYPE_CHECKING" else None


def _asks_for_nothing(question: Question, frame: FollowedFunction) -> bool:
    """Whether a condition can't hold, as a function's name that it asks for is None: `if path:`, `if isinstance(path, str):`."""
    asked, value = question.node, question.value
    if isinstance(asked, ast.Call) and isinstance(value, MadeOf) and value.how == "builtins.isinstance()":
        if len(asked.args) != 2 or len(value.parts) != 2:
            return False
        asked, (value, kinds) = asked.args[0], value.parts
        for kind in kinds.items if isinstance(kinds, Items) else (kinds,):
            if not isinstance(kind, LibraryName) or kind.name in _KINDS_OF_NONE:
                return False
    is_none = isinstance(value, Constant) and value.value is None
    is_its_own = isinstance(asked, ast.Name) and asked.id in frame.names and frame.names is not frame.module.values
    return is_none and is_its_own and question.ranks is NO_RANK_TEST


_KINDS_OF_NONE: Final = ("builtins.object", "types.NoneType")


def _flags(
    after_body: dict[str, AbstractValue], after_else: dict[str, AbstractValue], question: Question
) -> dict[str, AbstractValue]:
    """Find the names that tell afterwards what the condition asked of the rank."""
    if not splits(question.ranks.holds):
        return {}
    found: dict[str, AbstractValue] = {}
    for name, within in after_body.items():
        without = after_else.get(name)
        if without is not None and without is not within:
            flag = flag_of(without, within, question.ranks)
            if flag is not None:
                found[name] = flag
    return found


def _replace(names: dict[str, AbstractValue], others: dict[str, AbstractValue]) -> None:
    names.clear()
    names.update(others)


def _merge(names: dict[str, AbstractValue], others: dict[str, AbstractValue]) -> None:
    """Join what names are bound to behind another branch."""
    for name, value in others.items():
        own = names.get(name)
        if own is None:
            names[name] = value
        elif own is not value:
            names[name] = choice((own, value))
