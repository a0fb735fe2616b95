"""Conditions on ranks: which ranks a test lets through where it holds, and which where it doesn't."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.script import OriginKind, Ranks
from ddpdoctor.scripts.abstract_value import UNKNOWN, AbstractValue
from ddpdoctor.scripts.values import (
    CallResult,
    Choice,
    Constant,
    Items,
    LibraryName,
    MadeOf,
    MethodOf,
    ProjectObject,
    Quantity,
    RankTest,
    alternatives,
)
from ddpdoctor.scripts.vocabulary import DISTRIBUTED_TEST, hints_at_ranks, is_known_package

Passed = tuple[Ranks, ...]
"""Ranks let through: all of these conditions at once."""

RANK_KINDS: Final = (OriginKind.RANK, OriginKind.LOCAL_RANK, OriginKind.SPAWN_INDEX)
NOT_FOLLOWED: Final = RankTest((Ranks.MAY_BE_SOME,), (Ranks.MAY_BE_SOME,))
NO_RANK_TEST: Final = RankTest((), ())
ONE_PROCESS: Final = RankTest((Ranks.NOT_DISTRIBUTED,), (Ranks.NOT_DISTRIBUTED,))
"""Asked where there is one process alone."""

_RANK_ZERO: Final = RankTest((Ranks.ZERO,), (Ranks.NOT_ZERO,))
_LOCAL_RANK_ZERO: Final = RankTest((Ranks.LOCAL_ZERO,), (Ranks.NOT_LOCAL_ZERO,))
_SOME_RANKS: Final = RankTest((Ranks.SOME,), (Ranks.SOME,))
_OUTSIDE: Final = {-1, None}
"""Ranks of a run that isn't distributed."""


def negated(test: RankTest) -> RankTest:
    """The opposite of a test."""
    return RankTest(test.fails, test.holds)


def all_of(tests: list[RankTest]) -> RankTest:
    """Tests that are joined by `and`."""
    holds = tuple(dict.fromkeys(ranks for test in tests for ranks in test.holds))
    return RankTest(holds, _one_of([test.fails for test in tests]))


def any_of(tests: list[RankTest]) -> RankTest:
    """Tests that are joined by `or`."""
    return negated(all_of([negated(test) for test in tests]))


def _one_of(passed: list[Passed]) -> Passed:
    """Which ranks get through where one of several conditions holds. What asks whether the run is distributed lets none through there."""
    of_distributed = [single for single in passed if Ranks.NOT_DISTRIBUTED not in single]
    if not of_distributed:
        return passed[0] if passed else ()
    different = set(of_distributed)
    if different == {()} and len(of_distributed) < len(passed):
        # One process alone comes there; and perhaps those of a distributed run, for another reason.
        return (Ranks.MAY_BE_SOME,)
    if len(different) == 1:
        return of_distributed[0]
    if all(Ranks.MAY_BE_SOME not in single and not splits(single) for single in different):
        return ()
    return (Ranks.MAY_BE_SOME,)


def splits(passed: Iterable[Ranks]) -> bool:
    """Whether some ranks are let through, and others not."""
    return any(ranks not in (Ranks.ALL, Ranks.DISTRIBUTED, Ranks.NOT_DISTRIBUTED) for ranks in passed)


def quantity_in(value: AbstractValue) -> Quantity | None:
    """The rank, world size or the like that a value is, where it isn't another one outside of a distributed run."""
    found = None
    for single in alternatives(value):
        if isinstance(single, Quantity):
            if found and found.kind is not single.kind:
                return Quantity(OriginKind.RANK) if {found.kind, single.kind} <= set(RANK_KINDS) else None
            found = single
        elif not isinstance(single, Constant):
            return None
    return found


def truth_of(value: AbstractValue) -> RankTest:
    """The test of a value by itself."""
    if isinstance(value, Choice):
        return _truth_of_choice(value)
    if isinstance(value, RankTest):
        return value
    if isinstance(value, Quantity):
        if value.kind in (OriginKind.RANK, OriginKind.SPAWN_INDEX):
            return negated(_RANK_ZERO)
        if value.kind is OriginKind.LOCAL_RANK:
            return negated(_LOCAL_RANK_ZERO)
        return NO_RANK_TEST
    return NOT_FOLLOWED if isinstance(value, MadeOf) and mentions_rank(value) else NO_RANK_TEST


def flag_of(without: AbstractValue, within: AbstractValue, ranks: RankTest) -> RankTest | None:
    """The test that a flag is which is set, or taken back, by those ranks that a condition lets through; None for what is no flag.

    Args:
        without: what it is elsewhere.
        within: what it is where the condition holds.
        ranks: that the condition lets through, and those that it doesn't.
    """
    if not splits(ranks.holds) or not isinstance(without, Constant) or not _is_switch(without):
        return None
    settings = alternatives(within)
    if not all(isinstance(single, Constant) and _is_switch(single) for single in settings):
        return None
    changed = [
        single for single in settings if isinstance(single, Constant) and bool(single.value) != bool(without.value)
    ]
    if not changed:
        return None
    test = RankTest(ranks.holds, ranks.fails if len(changed) == len(settings) else ())
    return negated(test) if without.value else test


def _is_switch(value: Constant) -> bool:
    return value.value is None or isinstance(value.value, bool)


def opposite_of(ranks: Ranks) -> RankTest:
    """The test that lets these ranks through where it holds, and the others where it doesn't."""
    for test in (_RANK_ZERO, _LOCAL_RANK_ZERO):
        if ranks in test.holds:
            return test
        if ranks in test.fails:
            return negated(test)
    return RankTest((ranks,), (ranks,)) if splits((ranks,)) else NO_RANK_TEST


def _presence_of(value: Choice) -> RankTest | None:
    """The test whether there is something that some ranks alone have made: `writer is not None`."""
    makers = []
    for single in value.values:
        if isinstance(single, CallResult | ProjectObject):
            guards = single.record.guards if isinstance(single, CallResult) else single.guards
            makers.append(next((guard.ranks for guard in reversed(guards) if splits((guard.ranks,))), None))
        elif not isinstance(single, Constant) or single.value:
            return None
    if not makers or len(makers) == len(value.values) or makers[0] is None or len(set(makers)) > 1:
        return None
    # Some of these ranks may have made none.
    return RankTest((makers[0],), opposite_of(makers[0]).fails)


def mentions_rank(value: AbstractValue, depth: int = 4) -> bool:
    """Whether a rank is in what it is made of, be it in a way that says nothing."""
    if isinstance(value, Quantity):
        return value.kind in RANK_KINDS
    if isinstance(value, MadeOf | Choice) and depth:
        return any(
            mentions_rank(part, depth - 1) for part in (value.parts if isinstance(value, MadeOf) else value.values)
        )
    return isinstance(value, RankTest)


def _truth_of_choice(value: Choice) -> RankTest:
    """What a constant says is said outside of a distributed run, or where nothing is known of the rank yet."""
    if quantity := quantity_in(value):
        return truth_of(quantity)
    if presence := _presence_of(value):
        return presence
    tests = [single for single in value.values if isinstance(single, RankTest)]
    if not tests:
        is_rank = any(isinstance(single, Quantity) and single.kind in RANK_KINDS for single in value.values)
        return NOT_FOLLOWED if is_rank else NO_RANK_TEST
    others = [single for single in value.values if not isinstance(single, RankTest | Constant)]
    same = all((test.holds, test.fails) == (tests[0].holds, tests[0].fails) for test in tests)
    return tests[0] if same and not others else NOT_FOLLOWED


def is_followed(value: AbstractValue) -> bool:
    """Whether it is known what a condition asks that asks for this value: it, and all by which it is made. Numbers that are reckoned with are
    no ranks, else they would be called so."""
    if isinstance(value, LibraryName):
        return is_known_package(value.name)
    if isinstance(value, Choice):
        return all(map(is_followed, value.values))
    if isinstance(value, MethodOf):
        return is_followed(value.receiver)
    if isinstance(value, MadeOf):
        if hints_at_ranks(value.how):
            return False
        if value.how in _OF_ALL_PARTS:
            return all(map(is_followed, value.parts))
        if value.parts and (value.how in ("()", "[]") or value.how.startswith("?.")):
            return is_followed(value.parts[0])
        return not value.how.endswith("()") or is_known_package(value.how)
    return value is not UNKNOWN


_OF_ALL_PARTS: Final = ("and", "or", "not")


def _may_be_rank(left: AbstractValue, operator: ast.cmpop, right: AbstractValue) -> bool:
    """Whether something that can't be followed is asked whether it is the same as something else that is no text."""
    is_text = isinstance(right, Constant) and isinstance(right.value, str)
    return isinstance(operator, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) and not is_text and not is_followed(left)


def compared(left: AbstractValue, operator: ast.cmpop, right: AbstractValue) -> AbstractValue:
    """The test that a comparison is; something made of both where it is none of the rank."""
    if isinstance(operator, ast.In | ast.NotIn):
        test = _contained(left, right)
        if test is not None:
            return negated(test) if isinstance(operator, ast.NotIn) else test
    if quantity_in(left) is None and quantity_in(right) is not None and not isinstance(operator, ast.In | ast.NotIn):
        left, operator, right = right, _turned(operator), left
    quantity = quantity_in(left)
    if isinstance(left, MadeOf) and left.how == "%" and quantity_in(left.parts[0]) and _number(right) == 0:
        if isinstance(operator, ast.Eq | ast.NotEq):
            return negated(_LOCAL_RANK_ZERO) if isinstance(operator, ast.NotEq) else _LOCAL_RANK_ZERO
        return _SOME_RANKS
    if (
        isinstance(left, RankTest)
        and isinstance(right, Constant)
        and isinstance(operator, ast.Eq | ast.Is | ast.NotEq | ast.IsNot)
    ):
        same = isinstance(operator, ast.Eq | ast.Is)
        return left if bool(right.value) is same else negated(left)
    if quantity is None:
        is_asked_for = isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and _number(right) is None
        presence = _presence_of(left) if is_asked_for and isinstance(left, Choice) else None
        if presence is not None:
            return negated(presence) if isinstance(operator, ast.Is | ast.Eq) else presence
        return NOT_FOLLOWED if _may_be_rank(left, operator, right) else MadeOf("compare", (left, right))
    if quantity.kind is OriginKind.WORLD_SIZE:
        return _world_size(operator, _number(right))
    if quantity.kind in RANK_KINDS:
        zero = _LOCAL_RANK_ZERO if quantity.kind is OriginKind.LOCAL_RANK else _RANK_ZERO
        return _rank(operator, right, zero)
    return MadeOf("compare", (left, right))


def _contained(left: AbstractValue, right: AbstractValue) -> RankTest | None:
    if isinstance(right, LibraryName) and right.name == "os.environ" and isinstance(left, Constant):
        return DISTRIBUTED_TEST if str(left.value) in _LAUNCHERS_SETTINGS else NO_RANK_TEST
    quantity = quantity_in(left)
    if quantity is None or quantity.kind not in RANK_KINDS:
        return None
    if isinstance(right, Items) and all(isinstance(item, Constant) for item in right.items):
        numbers = {item.value for item in right.items if isinstance(item, Constant)}
        if 0 in numbers and numbers <= {0, *_OUTSIDE}:
            return _LOCAL_RANK_ZERO if quantity.kind is OriginKind.LOCAL_RANK else _RANK_ZERO
        if numbers <= _OUTSIDE:
            return negated(DISTRIBUTED_TEST)
    return _SOME_RANKS


_LAUNCHERS_SETTINGS: Final = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID",
    "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip


def _number(value: AbstractValue) -> object:
    return value.value if isinstance(value, Constant) else UNKNOWN


def _turned(operator: ast.cmpop) -> ast.cmpop:
    turned: dict[type[ast.cmpop], type[ast.cmpop]] = {
        ast.Lt: ast.Gt,
        ast.Gt: ast.Lt,
        ast.LtE: ast.GtE,
        ast.GtE: ast.LtE,
    }
    return turned.get(type(operator), type(operator))()


def _world_size(operator: ast.cmpop, number: object) -> RankTest:
    spelled = (type(operator), number)
    if spelled in ((ast.Gt, 1), (ast.GtE, 2), (ast.NotEq, 1), (ast.Gt, 0), (ast.IsNot, None), (ast.NotEq, None)):
        return DISTRIBUTED_TEST
    if spelled in ((ast.Eq, 1), (ast.LtE, 1), (ast.Lt, 2), (ast.Is, None), (ast.Eq, None)):
        return negated(DISTRIBUTED_TEST)
    return NO_RANK_TEST


def _rank(operator: ast.cmpop, right: AbstractValue, zero: RankTest) -> AbstractValue:
    number = _number(right)
    spelled = (type(operator), number)
    if number is False or number is True:
        return _SOME_RANKS
    if spelled in ((ast.Eq, 0), (ast.Is, 0), (ast.LtE, 0), (ast.Lt, 1)):
        return zero
    if spelled in ((ast.NotEq, 0), (ast.IsNot, 0), (ast.Gt, 0), (ast.GtE, 1)):
        return negated(zero)
    if spelled in ((ast.NotEq, -1), (ast.Gt, -1), (ast.GtE, 0), (ast.IsNot, None), (ast.NotEq, None)):
        return DISTRIBUTED_TEST
    if spelled in ((ast.Eq, -1), (ast.Lt, 0), (ast.LtE, -1), (ast.Is, None), (ast.Eq, None)):
        return negated(DISTRIBUTED_TEST)
    return _SOME_RANKS
