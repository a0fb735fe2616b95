"""Rules of the analysis of logs, each by its name, with the log that taught it: what refutes, follows, repeats or outranks what. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

IGNORED: set[str] = set()
"""Names of rules that are left out, for a report on what each decides."""


class LogRule(msgspec.Struct, frozen=True):
    """A rule.

    Args:
        name: what it is about.
        taught_by: the log of the corpus whose answer is another one without it.
        applies: what it finds of the arguments that all rules of its list are asked with; something false where it doesn't apply.
        score: how much it counts beside others of its list.
        words: what it says, for who asks why.
    """

    name: str
    taught_by: str
    applies: Callable[..., Any]
    score: int = 0
    words: str = ""

    def __call__(self, *args: object) -> Any:
        """Apply the rule."""
        return None if self.name in IGNORED else self.applies(*args)
