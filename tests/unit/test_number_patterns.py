"""The regular expression that compares two numbers."""

from __future__ import annotations

import re

import pytest

from tests.support.number_patterns import more_behind

PATTERN = re.compile(rf"\(size={more_behind(', count=')}[,)]")


@pytest.mark.parametrize(
    ("size", "count"), [(2, 4), (4, 16), (9, 10), (16, 18), (128, 129), (99, 100), (0, 1), (1024, 2048), (64, 640)]
)
def test_a_greater_number_is_found(size: int, count: int) -> None:
    assert PATTERN.search(f"(size={size}, count={count}, x)")
    assert not PATTERN.search(f"(size={count}, count={size}, x)")


@pytest.mark.parametrize("number", [0, 2, 10, 16, 128, 1024])
def test_the_same_number_is_none(number: int) -> None:
    assert not PATTERN.search(f"(size={number}, count={number})")


def test_all_pairs() -> None:
    for size in range(130):
        for count in range(130):
            assert bool(PATTERN.search(f"(size={size}, count={count})")) == (count > size), (size, count)
