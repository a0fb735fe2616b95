"""Expressions of a followed script: what each may be worth, and which ranks a condition lets through."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final

from ddpdoctor.facts.script import ITEM, Ranks
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.names import NameFollower, dotted
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
    splits,
    truth_of,
)
from ddpdoctor.scripts.scopes import FollowedFunction
from ddpdoctor.scripts.values import (
    NONE,
    TURN,
    Choice,
    Constant,
    Decorated,
    Function,
    Guard,
    Items,
    LibraryName,
    LoopSpot,
    MadeOf,
    Mapping,
    OnSomeRanks,
    ProjectObject,
    Quantity,
    Question,
    RankTest,
    Spot,
    choice,
    results_in,
)
from ddpdoctor.scripts.vocabulary import (
    DISTRIBUTED_TEST,
    hints_at_ranks,
    is_loaded,
    is_setting,
    meaning_of,
    roles_of,
)

_OPERATORS: Final = {ast.Mod: "%", ast.FloorDiv: "//", ast.Div: "/", ast.Mult: "*", ast.Add: "+", ast.Sub: "-"}


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


class ExpressionFollower(NameFollower):
    """Knows what expressions are worth, and remembers where they are met; its arguments are those of a `NameFollower`."""

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

    def value(self, node: ast.expr | None, frame: FollowedFunction) -> AbstractValue:
        """What an expression may be worth."""
        if node is None:
            return NONE
        handler = _EXPRESSIONS.get(type(node))
        return handler(self, node, frame) if handler else UNKNOWN

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

    def _constant(self, node: ast.Constant, frame: FollowedFunction) -> AbstractValue:
        return Constant(node.value)

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

    def kept(self, scopes: tuple[dict[str, AbstractValue], ...]) -> tuple[dict[str, AbstractValue], ...]:
        """The same scopes, which something within them holds on to."""
        self.filled += scopes
        return scopes


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


_TURN: Final = MadeOf(TURN, ())
"""The number of a loop's turn."""


def _is_text(value: AbstractValue) -> bool:
    return (isinstance(value, Constant) and isinstance(value.value, str)) or (
        isinstance(value, MadeOf) and value.how == "f"
    )


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
