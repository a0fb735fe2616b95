"""What was worked out of some facts isn't worked out again: each of a host's jobs asks for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def remembered(function: F) -> F:
    """The same function of frozen facts, which keeps its last answer for as long as it is asked about the very same ones."""
    last: tuple[tuple[Any, ...], Any] = (), None

    @wraps(function)
    def ask(*facts: Any) -> Any:
        nonlocal last
        known, answer = last
        if len(known) != len(facts) or any(one is not two for one, two in zip(known, facts, strict=True)):
            answer = function(*facts)
            last = facts, answer
        return answer

    return ask  # type: ignore[return-value]
