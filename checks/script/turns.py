"""Conditions that are met once in so many turns of a loop: `(step + 1) % accumulate == 0`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.checks.script.script_facts import parse_expression
from ddpdoctor.facts.script import Condition, Value

_EQUAL = (ast.Eq,)
_UNEQUAL = (ast.NotEq, ast.Gt)


class Turn(NamedTuple):
    """The turns in which a condition lets the script through: `counter % modulus == remainder`. is_met: in these; else in all others."""

    counter: str
    modulus: str
    remainder: int
    is_met: bool


def modulus_of(condition: Condition) -> Value | None:
    """After how many turns the condition is met again; None where it doesn't count them."""
    return next((origin.parts[1] for origin in condition.test.flattened() if origin.text == "%"), None)


def turn_of(condition: Condition) -> Turn | None:
    """The turns that a condition lets through, by the words of its test; None where they don't say."""
    test = parse_expression(condition.test.text)
    if test is None:
        return None
    turns = [turn for turn in _turns(test, not condition.is_negated) if turn is not None]
    return turns[0] if len(turns) == 1 else None


def _turns(test: ast.expr, holds: bool) -> Iterator[Turn | None]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _turns(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _turns(part, holds)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (*_EQUAL, *_UNEQUAL)):
        yield _turn(test.left, test.comparators[0], holds is isinstance(test.ops[0], _EQUAL))
    else:
        yield _turn(test, ast.Constant(0), not holds)


def _turn(counted: ast.expr, right: ast.expr, is_met: bool) -> Turn | None:
    if not isinstance(counted, ast.BinOp) or not isinstance(counted.op, ast.Mod):
        return None
    modulus = ast.unparse(counted.right)
    counter, more = _without_number(counted.left)
    wished, less = _without_number(right)
    if wished not in ("", modulus):
        return None
    remainder = less - more
    return Turn(
        counter, modulus, remainder % int(modulus) if modulus.isdecimal() and int(modulus) else remainder, is_met
    )


def _without_number(node: ast.expr) -> tuple[str, int]:
    """A sum's part that is no number, and the number: `i + 1`, `n - 1`, `0`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return "", node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant):
        number = node.right.value
        if isinstance(number, int):
            return ast.unparse(node.left), number if isinstance(node.op, ast.Add) else -number
    return ast.unparse(node), 0
