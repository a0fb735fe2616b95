"""Regular expressions that are compiled when they are first used: most commands never need those of the analysis of logs and jobs."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._pattern, self._flags), name)
        # From now on this one is found without a detour.
        setattr(self, name, value)
        return value


def compile_lazily(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, once somebody uses the result; a wrong pattern is an error only then, and in the tests."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))
