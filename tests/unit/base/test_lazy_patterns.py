"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import re

import pytest

from ddpdoctor.base.lazy_patterns import compile_lazily


def test_it_is_used_as_a_compiled_one() -> None:
    pattern = compile_lazily(r"rank (?P<rank>\d+)", re.IGNORECASE)
    for _ in range(2):
        found = pattern.search("[Rank 3]")
        assert found is not None
        assert found["rank"] == "3"
    assert pattern.sub("x", "rank 1, rank 2") == "x, x"
    assert pattern.pattern == r"rank (?P<rank>\d+)"
    assert pattern.flags & re.IGNORECASE


def test_a_wrong_one_is_an_error_once_it_is_used() -> None:
    pattern = compile_lazily("(")
    with pytest.raises(re.error):
        pattern.search("")
