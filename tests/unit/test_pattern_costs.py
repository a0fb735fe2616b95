"""No regular expression of the project takes more than proportionally longer for a longer text: logs, command lines, settings and names
of files are written by others, who may choose what stands in them."""

from __future__ import annotations

import re

import pytest

from tests.support.patterns import Expression, collected, worst_growth

PARTS = 8
"""Of the expressions, for tests that run side by side."""
NOT_IN_THE_SOURCE = {
    "ddpdoctor/base/lazy_patterns.py: self._pattern": "from its callers, which are among the expressions",
    "ddpdoctor/checkpoints/kinds/foreign_kinds.py: number.pattern.encode('ascii')": "of magic_numbers.json, which are among the expressions",
    "ddpdoctor/checkpoints/kinds/text_kinds.py: words": "words of titles, in which nothing is repeated",
    "ddpdoctor/engine/registry.py: sign.pattern": "of the signs of the checks, which are among the expressions",
    "ddpdoctor/knowledge/cuda_stack.py: pattern": "a name of packages that ends in digits, from its callers",
    "ddpdoctor/logs/analyze/error_meanings.py: text": "of the meanings, which are among the expressions",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_time_grows_with_the_length_only(part: int) -> None:
    expressions, _ = collected()
    slow = [
        f"{expression.where}: {expression.method} {expression.compiled.pattern!r} on {growth}"
        for expression in expressions[part::PARTS]
        if (growth := worst_growth(expression))
    ]
    assert not slow, "\n".join(slow)


def test_every_expression_is_among_them() -> None:
    expressions, unknown = collected()
    assert set(unknown) == set(NOT_IN_THE_SOURCE)
    assert len(expressions) > 900


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"[\w.%+-]+:[^\s@]+@", "sub"),
        (r"\d+ \(local", "search"),
        (r"a.*b.*c", "search"),
        (r"(?:x+)+y", "match"),
        (r"got error: .*(?:reset|broken)", "findall"),
        (r"(?P<summary>.+)  +\[[a-z]+\]", "fullmatch"),
        (rb"^[^\n]*\S[^\n]*\n\s*\Z", "search"),
    ],
)
def test_one_that_is_not_linear_is_found(pattern: str | bytes, method: str) -> None:
    assert worst_growth(Expression("here", re.compile(pattern), method))


@pytest.mark.parametrize("pattern", [r"(?<![\w.])[\w.]+:", r"\d{1,9} \(local", r"^a.*b", r"[^\n]*"])
def test_one_that_is_linear_is_not(pattern: str) -> None:
    assert not worst_growth(Expression("here", re.compile(pattern), "search"))
