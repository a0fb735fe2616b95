"""Fixes that an ordinary user can't carry out: they say so, and what to do instead, in the same words everywhere."""

from __future__ import annotations

from ddpdoctor.findings import Fix

NEEDS_ROOT = "(needs root, or ask the administrator)"


def by_root(text: str, commands: tuple[str, ...] = ()) -> Fix:
    """A fix whose text ends with who can carry it out."""
    return Fix(f"{text} {NEEDS_ROOT}", commands)
