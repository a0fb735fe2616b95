"""Regular expressions that are compiled when they are first used: most commands never need those of the analysis of logs and jobs."""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self._pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._pattern, self._flags), name)
        # From now on this one is found without a detour.
        setattr(self, name, value)
        return value


def compile_lazily(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """As `re.compile`, once somebody uses the result; a wrong pattern is an error only then, and in the tests."""
    return cast("re.Pattern[str]", _LazyPattern(pattern, flags))
